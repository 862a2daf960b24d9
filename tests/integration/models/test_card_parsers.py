"""Answers are read by the parsers that a model's card names, or refused where it names others."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.polling import until
from support.servers.discovered_fleet import Backend, registered
from support.servers.model_serving import TINY, ModelClient, model_serving
from support.servers.openai_serving import openai_serving

from dynamo_router.router.config import KvRouterConfig

ASK = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def name_parsers(backend: Backend, **parsers: str) -> None:
    """Write them into the one card of the store, as a worker of Dynamo's does."""
    (card,) = (Path(backend.environ["DYN_FILE_KV"]) / "v1" / "mdc").iterdir()
    said = json.loads(card.read_text())
    said["card_json"]["runtime_config"] |= parsers
    card.write_text(json.dumps(said))


async def chat(client: Any, **more: Any) -> tuple[int, Any]:
    body = {"model": "a", "messages": ASK, "max_tokens": 4, **more}
    async with client.session.post(f"{client.url}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json()


async def until_reason(client: Any, word: str) -> None:
    """Wait until what is seen of the one pool has this word in its reason, or has no reason."""

    async def shown() -> bool:
        _, body = await client.get("/pools")
        return all(word in p["reason"] and bool(word) == bool(p["reason"]) for p in body["pools"])

    await until(shown)


async def is_thought(client: Any) -> bool:
    """Whether the answer is taken for reasoning, which a parser that begins inside takes it for."""
    status, body = await chat(client)
    assert status == 200, body
    return bool(body["choices"][0]["message"].get("reasoning_content"))


@pytest.mark.parametrize("setting", [None, "none"])
async def test_the_cards_parser_reads_answers_unless_a_setting_says_another(
    backend: Backend, setting: str | None
) -> None:
    async with registered(backend, 1, model_id="a", engine=TINY):
        name_parsers(backend, reasoning_parser="deepseek_r1", tool_call_parser="hermes")
        async with model_serving(backend, reasoning_parser=setting) as client:
            await client.until_shares(a=1)
            assert await is_thought(client) == (setting is None)
            await until_reason(client, "")


async def test_serve_reads_the_card_of_the_workers_that_it_finds(backend: Backend) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(registered(backend, 1, model_id="a", engine=TINY))
        name_parsers(backend, reasoning_parser="deepseek_r1")
        served = await stack.enter_async_context(
            openai_serving(
                router=KvRouterConfig(block_size=16, use_kv_events=False, seed=1),
                discovery=backend.config,
            )
        )
        assert await is_thought(served)
        name_parsers(backend, reasoning_parser="newest")
        await until_reason(served, "newest")
        status, body = await chat(served)
        assert status == 501 and "'newest'" in body["error"]["message"]


async def test_a_parser_that_is_not_known_is_refused_by_name_where_it_is_needed(
    backend: Backend,
) -> None:
    async with (
        registered(backend, 1, model_id="a", engine=TINY),
        model_serving(backend) as client,
    ):
        await client.until_shares(a=1)
        assert not await is_thought(client)
        name_parsers(backend, tool_call_parser="newest")
        await until_reason(client, "newest")
        assert (await chat(client))[0] == 200
        status, body = await chat(client, tools=TOOLS)
        assert status == 501 and "--tool-call-parser" in body["error"]["message"]
        assert (await chat(client, tools=TOOLS, tool_choice="none"))[0] == 200
        name_parsers(backend, reasoning_parser="newer")
        await until_reason(client, "newer")
        status, body = await chat(client)
        assert status == 501 and "'newer'" in body["error"]["message"]
        assert (await client.complete("a"))[0] == 200
        assert client_state(client) == "serving"
        name_parsers(backend, reasoning_parser="qwen3", tool_call_parser="hermes")
        await until_reason(client, "")
        assert (await chat(client, tools=TOOLS))[0] == 200


def client_state(client: ModelClient) -> str:
    (pool,) = client.server.models.pools
    return pool.state
