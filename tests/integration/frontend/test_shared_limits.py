"""One set of limits for all doors: what gRPC callers may use, OpenAI's clients may, and no more."""

import asyncio
from typing import Any

import pytest
from grpc import aio
from support.calls import messages_of
from support.fake_engine import FakeEngine, prompt, stall
from support.polling import until
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.openai.tools import MOST_TOOLS, ToolChoice
from dynamo_router.frontend.processor.encoder import Encoder
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.workers.trtllm_proto import SERVICE, pb

WORD = {"model": "tiny", "prompt": "word", "max_tokens": 4, "temperature": 1.0}


def hits(served: Served, limit: str) -> int:
    return served.server.parts.hits[limit]


def in_use(served: Served) -> tuple[int, int]:
    calls = served.server.parts.calls
    return calls.requests.used, calls.bytes.used


async def begin_body(served: Served, length: int, sent: bytes) -> Any:
    """A connection with a request whose body has begun."""
    host, _, port = served.server.openai_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n"
    writer.write(head.encode() + sent)
    return reader, writer


async def test_each_answer_and_each_prompt_is_a_request() -> None:
    engine = FakeEngine(stall)
    peers = CallerLimits(max_requests=8, max_share_per_caller=0.5)
    async with openai_serving(engine, peers=peers) as served:
        three = asyncio.create_task(served.post("/v1/completions", {**WORD, "n": 3}))
        await until(lambda: len(engine.requests) == 3)
        assert in_use(served)[0] == 3
        for more in ({"n": 2}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}):
            status, told = await served.post("/v1/completions", {**WORD, **more})
            assert status == 429 and "max_requests: one caller may have 4" in str(told), told
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 2}
        assert (await served.post("/v1/chat/completions", chat))[0] == 429
        inputs = {"model": "tiny", "input": ["a", "b"]}
        assert (await served.post("/v1/embeddings", inputs))[0] == 429
        assert hits(served, "max_requests_per_caller") == 5
        engine.go.set()
        assert (await three)[0] == 200
        assert in_use(served) == (0, 0)


async def test_each_answer_counts_the_bytes_of_its_prompt_and_guide() -> None:
    """Which its request to an engine has once more."""
    engine = FakeEngine(stall)
    peers = CallerLimits(max_request_bytes=400_000, max_share_per_caller=0.5)
    async with openai_serving(engine, peers=peers) as served:
        word = {**WORD, "prompt": [1] * 100, "guided_regex": "a" * 10_000}
        status, told = await served.post("/v1/completions", {**word, "n": 32})
        assert status == 429 and "max_request_bytes" in str(told), told
        asked = asyncio.create_task(served.post("/v1/completions", {**word, "n": 3}))
        await until(lambda: len(engine.requests) == 3)
        assert in_use(served)[1] > 3 * 10_300
        engine.go.set()
        assert (await asked)[0] == 200
        assert in_use(served) == (0, 0)


async def test_a_guide_is_made_once_for_all_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that is long takes long to write."""
    made = []
    schema = ToolChoice._schema

    def counted(choice: ToolChoice) -> dict[str, Any]:
        made.append(choice)
        return schema(choice)

    monkeypatch.setattr(ToolChoice, "_schema", counted)
    tools = [{"type": "function", "function": {"name": "weather"}}]
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 1.0}
    async with openai_serving(FakeEngine()) as served:
        for forced in ("required", {"type": "function", "function": {"name": "weather"}}):
            body = {**ask, "tools": tools, "tool_choice": forced, "n": 8}
            assert (await served.post("/v1/chat/completions", body))[0] == 200
    assert len(made) == 2


async def test_an_agent_with_many_tools_is_served() -> None:
    described = {"type": "string", "description": "it"}
    schema = {"type": "object", "properties": {str(n): described for n in range(8)}}
    tools = [
        {"type": "function", "function": {"name": f"tool{n}", "parameters": schema}}
        for n in range(MOST_TOOLS)
    ]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tools": tools}
    frontend = FrontendConfig(http_frontend=0, tool_call_parser="hermes")
    async with openai_serving(FakeEngine(), frontend=frontend) as served:
        status, told = await served.post("/v1/chat/completions", body)
        assert status == 200, told
        status, told = await served.post("/tokenize", {"prompt": "x", "more": ["x"] * 40_000})
        assert status == 400 and "strings, lists and objects" in str(told)


async def test_a_caller_has_one_share_at_both_doors() -> None:
    engine = FakeEngine(stall)
    peers = CallerLimits(max_requests=4, max_share_per_caller=0.5)
    async with (
        openai_serving(engine, peers=peers) as served,
        aio.insecure_channel(served.server.grpc_address) as channel,
    ):
        generate = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        over_grpc = asyncio.create_task(messages_of(generate(prompt("a").SerializeToString())))
        await until(lambda: len(engine.requests) == 1)
        status, _ = await served.post("/v1/completions", {**WORD, "n": 2})
        assert status == 429
        engine.go.set()
        assert pb.GenerateResponse.FromString((await over_grpc)[-1])
        assert (await served.post("/v1/completions", {**WORD, "n": 2}))[0] == 200


async def test_bodies_that_have_not_come_whole_count() -> None:
    """And a client that leaves takes its bytes with it."""
    peers = CallerLimits(max_request_bytes=400_000, max_share_per_caller=0.5)
    async with openai_serving(FakeEngine(), peers=peers) as served:
        begun = [await begin_body(served, 1 << 20, b" " * 90_000) for _ in range(2)]
        await until(lambda: in_use(served)[1] == 180_000)
        reader, writer = await begin_body(served, 1 << 20, b" " * 90_000)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ") and b"retry-after" in head
        assert b"connection: close" in head
        assert b"max_request_bytes: one caller may have 200000" in await reader.read()
        assert hits(served, "max_request_bytes_per_caller") == 1
        for _, each in (*begun, (reader, writer)):
            each.close()
        await until(lambda: in_use(served)[1] == 0)
        assert (await served.post("/v1/completions", WORD))[0] == 200


async def test_texts_that_wait_are_bounded_and_end_with_their_clients() -> None:
    """The thread of long texts is busy; what waits for it is refused beyond its bound."""
    peers = CallerLimits(max_computation_bytes=1_000_000, max_share_per_caller=0.5)
    async with openai_serving(FakeEngine(), peers=peers) as served:
        off_loop, text = served.server.parts.off_loop, {"prompt": "word " * 60_000}
        clients = [asyncio.create_task(served.post("/tokenize", text)) for _ in range(2)]
        await until(lambda: off_loop.waiting_bytes or all(each.done() for each in clients))
        refused = {"prompt": "word " * 101_000}
        status, told = await served.post("/tokenize", refused)
        assert status == 429 and "max_computation_bytes" in str(told), told
        for each in clients:
            each.cancel()
        await asyncio.wait(clients)
        await until(lambda: not off_loop.waiting)


async def test_a_text_that_must_be_too_long_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts, encode = [], Encoder.encode

    def counted(encoder: Encoder, text: str, *more: Any, **named: Any) -> Any:
        texts.append(text)
        return encode(encoder, text, *more, **named)

    monkeypatch.setattr(Encoder, "encode", counted)
    peers = CallerLimits(max_prompt_tokens=1000)
    frontend = FrontendConfig(http_frontend=0)
    async with openai_serving(FakeEngine(), peers=peers, frontend=frontend) as served:
        text = "word " * 100_000
        for path, body in (
            ("/tokenize", {"prompt": text}),
            ("/tokenize", {"messages": [{"role": "user", "content": text}]}),
            ("/v1/completions", {**WORD, "prompt": text}),
            ("/v1/completions", {**WORD, "prompt": ["a", text]}),
            ("/v1/embeddings", {"model": "tiny", "input": text}),
            (
                "/v1/chat/completions",
                {"model": "tiny", "messages": [{"role": "user", "content": text}]},
            ),
        ):
            status, told = await served.post(path, body)
            assert status == 400 and "max_prompt_tokens" in str(told), (path, told)
        assert not texts
        assert hits(served, "max_prompt_tokens") == 6
        status, told = await served.post("/tokenize", {"prompt": "a b " * 5000})
        assert status == 400 and "max_prompt_tokens" in str(told)  # known once it is counted
        assert (await served.post("/tokenize", {"prompt": "a b " * 400}))[0] == 200
