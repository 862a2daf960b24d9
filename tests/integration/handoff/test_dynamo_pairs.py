"""Dynamo's mock workers in prefill and decode roles behind our frontend, ours behind Dynamo's.

Needs them, and is not the only proof: set DYNAMO_PEER to a Python that has ai-dynamo 1.6.1.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.engines.planned_words import words_for
from support.polling import until
from support.servers.discovered_fleet import backend_of, registered
from support.servers.dynamo_peer import PEER, DynamoFrontend, DynamoMockers
from support.servers.model_serving import ModelClient, model_serving

from dynamo_router.bench.load.dynamo_peer import write_model
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.workers.records import EventPlaneConfig

pytestmark = pytest.mark.skipif(PEER is None, reason="DYNAMO_PEER names no Python with ai-dynamo")
REQUESTS, AT_ONCE, STORM = 1000, 50, 300
ROUTER = KvRouterConfig(use_kv_events=False, seed=1)
TOKENS = 80


def prompt_of(number: int) -> list[int]:
    return [3 + (number * 31 + place) % 1900 for place in range(TOKENS)]


@asynccontextmanager
async def their_pairs(tmp_path: Path, *modes: str) -> AsyncIterator[ModelClient]:
    """Our frontend in front of two of their workers in each mode."""
    environ = {"DYN_FILE_KV": str(tmp_path / "store")}
    with backend_of("file", tmp_path) as files, ExitStack() as stack:
        files.environ.update(environ)
        for kind in modes:
            mode = ("--disaggregation-mode", kind)
            mockers = DynamoMockers(tmp_path / kind, environ, "file", "zmq", 2, *mode)
            stack.callback(mockers.kill)
            mockers.launch()
        always = DisaggConfig(disagg="always")
        async with model_serving(files, router=ROUTER, disagg=always) as client:
            models = client.server.models
            await until(lambda: sum(p.share for p in models.pools if p.answers) == 2, 60.0)
            yield client
            for each in models.pools:
                pool = each.workers
                assert pool is not None
                slots = pool.router.slots
                await until(lambda slots=slots: not int(slots.own_requests().sum()), 60.0)
                await until(lambda slots=slots: not int(slots.active_blocks().sum()))
                assert not pool.prefills


async def answers_of(client: ModelClient) -> tuple[Counter[Any], Counter[Any]]:
    """Usage and reason of a thousand answers, and the pairs that gave them."""
    at_once = asyncio.Semaphore(AT_ONCE)
    said: Counter[Any] = Counter()
    pairs: Counter[Any] = Counter()

    async def ask(number: int) -> None:
        async with at_once:
            status, body = await client.complete("tiny", prompt_of(number))
        assert status == 200, body
        usage, told = body["usage"], body["nvext"]["worker_id"]
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        said[(*counts, body["choices"][0]["finish_reason"])] += 1
        pairs[told.get("prefill_worker_id"), told["decode_worker_id"]] += 1

    await asyncio.gather(*map(ask, range(REQUESTS)))
    return said, pairs


async def test_a_thousand_requests_to_their_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their answers are drawn at random: what can be equal is what is counted."""
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "store"))
    async with their_pairs(tmp_path, "prefill", "decode") as client:
        said, pairs = await answers_of(client)
        assert said == {(TOKENS, 4, "length"): REQUESTS}
        prefill, decode = ({pair[at] for pair in pairs} for at in (0, 1))
        assert len(prefill) == len(decode) == 2 and prefill.isdisjoint(decode | {None})
        await storm(client)


async def storm(client: ModelClient) -> None:
    """Clients that leave in all phases of a request."""
    url = f"{client.url}/v1/completions"

    async def leave(number: int) -> bool:
        body = {"model": "tiny", "prompt": prompt_of(number), "max_tokens": 64, "stream": True}
        try:
            async with (
                asyncio.timeout(number * 1e-4),
                client.session.post(url, json=body) as answer,
            ):
                await answer.content.read()
            return False
        except TimeoutError:
            return True

    left = await asyncio.gather(*map(leave, range(STORM)))
    assert sum(left) > STORM / 10
    status, _ = await client.complete("tiny", prompt_of(0))
    assert status == 200


async def test_a_thousand_requests_to_our_pairs_behind_their_frontend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "kv"))
    model = tmp_path / "model"
    write_model(model)
    # The model's token that ends an answer is 1: an engine that makes it is cut short there.
    engine = EngineConfig(block_size=16, num_gpu_blocks=2048, vocab_size=2000, eos_token_id=(1,))
    more: dict[str, Any] = {
        "model_path": str(model),
        "model_id": "ours",
        "engine": engine,
        "dialect": "dynamo",
        "plane": EventPlaneConfig(event_plane="zmq"),
    }
    with backend_of("file", tmp_path) as files:
        files.environ["DYN_FILE_KV"] = str(tmp_path / "kv")
        async with (
            registered(
                files, 2, component="prefill", disaggregation_mode="prefill", **more
            ) as first,
            registered(files, 2, component="backend", disaggregation_mode="decode", **more) as then,
        ):
            environ = dict(files.environ)
            frontend = DynamoFrontend(tmp_path / "front", environ, "file", "zmq")
            await asyncio.to_thread(frontend.start)
            try:
                await thousand(f"http://127.0.0.1:{frontend.port}/v1/completions", engine)
            finally:
                frontend.kill()
            engines = [each.engine for fleet in (first, then) for each in fleet.engines]
            assert all(each.inactive_blocks for each in engines), "each has worked"
            await until(lambda: not any(each.kept or each.active_blocks for each in engines))


async def thousand(url: str, engine: EngineConfig) -> None:
    """The words and the usage of each answer are those of one engine that runs all of it."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def ask(number: int, session: aiohttp.ClientSession) -> None:
        body = {"model": "ours", "prompt": prompt_of(number), "max_tokens": 6}
        async with at_once, session.post(url, json=body) as reply:
            answer = await reply.json()
        assert reply.status == 200, answer
        usage, choice = answer["usage"], answer["choices"][0]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (TOKENS, 6)
        assert choice["text"].split() == words_for(prompt_of(number), 6, engine)
        assert choice["finish_reason"] == "length"

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(ask(number, session) for number in range(REQUESTS)))
