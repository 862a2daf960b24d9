"""Prefill and decode engines with gRPC services of their own, found in a store by the command
`frontend`, and an OpenAI client of it."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.handoffs.fabric import Fabric, greedy
from support.handoffs.token_wires import (
    SglangGrpcWire,
    TokenWire,
    VllmGrpcPushWire,
    VllmGrpcWire,
)
from support.polling import closed_after, until
from support.processes import command
from support.servers.discovered_fleet import Backend, backend, registered
from support.servers.model_serving import TINY
from tokenizers import Tokenizer

from dynamo_router.engines.mocker.own_model import OWN_MODEL, OWN_VOCABULARY
from dynamo_router.runtime.kv_stores import open_store

__all__ = ["backend"]
WIRES: dict[str, type[TokenWire]] = {
    "vllm": VllmGrpcWire,
    "vllm-push": VllmGrpcPushWire,
    "sglang": SglangGrpcWire,
}
ROLES = {"prefill": 71, "decode": 72}
"""With the id of the worker of each."""
MESSAGES = [{"role": "user", "content": "Which way is it from here to there, and how far?"}]


async def register(backend: Backend, wire: TokenWire) -> None:
    """Write what a worker of the engine's role has in the store, with the engine as the worker."""
    async with closed_after(open_store(backend.kind, backend.environ)) as store:
        more: dict[str, Any] = {"model_id": "tiny", "engine": TINY}
        async with registered(backend, 1, disaggregation_mode=wire.role, **more) as fleet:
            own, number = f"{fleet.worker_ids[0]:x}", ROLES[wire.role]
            for name in ("v1/mdc", "v1/instances"):
                bucket = store.bucket(name)
                for entry in (await bucket.entries("")).entries:
                    if own not in entry.key:
                        continue
                    value = json.loads(entry.value)
                    value["instance_id"] = number
                    if "transport" in value:
                        value["transport"] = {"trtllm_grpc": wire.engine.url + wire.query}
                    key = entry.key.replace(own, f"{number:x}")
                    await bucket.put(key, json.dumps(value).encode())


@asynccontextmanager
async def pair(
    folder: Path, backend: Backend, kind: str
) -> AsyncIterator[tuple[str, dict[str, TokenWire]]]:
    """The URL of a frontend that has found both engines."""
    fabric = Fabric(WIRES[kind].shape)
    wires = {role: WIRES[kind](fabric, role) for role in ROLES}
    async with AsyncExitStack() as stack:
        for wire in wires.values():
            await wire.enter(stack)
            wire.engine.vocabulary = OWN_VOCABULARY
            await register(backend, wire)
        words = ("--discovery", backend.kind, "--http-port", "0", "--disagg", "always")
        served = await stack.enter_async_context(
            command(folder / "frontend", "frontend", "--no-kv-events", *words)
        )
        found = re.search(r"openai (\S+)", await served.says("dynamo-router ready"))
        assert found is not None, served.text
        yield f"http://{found[1]}", wires
        assert await served.stop() == 0
    assert not fabric.recomputed


async def chatted(session: aiohttp.ClientSession, url: str, streamed: bool) -> tuple[str, str]:
    """An answer's text, and why it ended."""
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "stream": streamed}
    async with session.post(f"{url}/v1/chat/completions", json=asked) as answer:
        body = await answer.text()
        assert answer.status == 200, body
    if not streamed:
        choice = json.loads(body)["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    *events, done = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"]


@pytest.mark.parametrize("kind", WIRES)
async def test_a_chat_is_computed_by_one_and_answered_by_the_other(
    tmp_path: Path, backend: Backend, kind: str
) -> None:
    async with pair(tmp_path, backend, kind) as (url, wires), aiohttp.ClientSession() as session:

        async def is_served() -> bool:
            async with session.get(f"{url}/pools") as answer:
                pools = (await answer.json())["pools"]
            return len(pools) == 2 and all(pool["share"] for pool in pools)

        await until(is_served)
        expected = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
        for streamed in (False, True):
            text, reason = await chatted(session, url, streamed)
            first, then = (wires[role].legs.asked[-1] for role in ROLES)
            assert (first.phase, then.phase) == ("prefill", "decode")
            assert first.prompt == then.prompt and first.request_id == then.request_id
            assert (text, reason) == (expected.decode(greedy(then.prompt, 6)), "length")
        assert [len(wire.legs.asked) for wire in wires.values()] == [2, 2]
