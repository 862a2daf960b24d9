"""The client of engines over HTTP against one that says what it likes, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.calls import too_late
from support.fake_engine import prompt
from support.polling import until
from support.servers.http_engine import (
    LLAMA,
    WHOLE,
    Asked,
    HttpEngine,
    Script,
    answers_of,
    event,
    part,
    reply,
    stream,
    stream_head,
)

from dynamo_router.base.errors import StatusCode, WorkerError
from dynamo_router.workers.channels import ConnectionPolicy
from dynamo_router.workers.dialects import OpenAiClient
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.trtllm_proto import pb

PATH = "/v1/completions"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
POLICY = ConnectionPolicy(connect_timeout_s=2.0, max_message_bytes=20_000)


@pytest.fixture
async def engine() -> AsyncIterator[HttpEngine]:
    async with HttpEngine() as running:
        yield running


@pytest.fixture
async def client(engine: HttpEngine) -> AsyncIterator[OpenAiClient]:
    made = OpenAiClient(engine.address, POLICY, block_size=16)
    yield made
    await made.close()


async def generated(
    client: OpenAiClient, request: Any = None, **more: Any
) -> tuple[list[int], Any]:
    call = client.generate((request or prompt("r1", 8)).SerializeToString(), **more)
    return answers_of([message async for message in call])


async def failure(client: OpenAiClient, request: Any = None, **more: Any) -> EngineCallError:
    with pytest.raises(EngineCallError) as error:
        await generated(client, request, **more)
    return error.value


async def test_a_stream(engine: HttpEngine, client: OpenAiClient) -> None:
    engine.answers[PATH] = WHOLE
    await client.describe(timeout=5)
    metadata = (("traceparent", "00-1"), ("authorization", "secret"), ("x-dynamo-dp-rank", "3"))
    tokens, last = await generated(client, metadata=metadata)
    assert tokens == [11, 12] and last.finish_reason == "length" and last.cached_tokens == 3
    asked = engine.asked[-1]
    assert asked.body["prompt"] == list(range(1, 9)) and asked.body["model"] == "tiny"
    assert asked.headers["traceparent"] == "00-1" and "authorization" not in asked.headers
    assert asked.headers["x-request-id"] == "r1"
    assert asked.headers["x-data-parallel-rank"] == "3"


async def test_a_stream_byte_by_byte(engine: HttpEngine, client: OpenAiClient) -> None:
    async def slowly(asked: Asked, writer: asyncio.StreamWriter) -> None:
        for at in range(len(WHOLE)):
            writer.write(WHOLE[at : at + 1])
            await writer.drain()

    engine.answers[PATH] = slowly
    assert (await generated(client))[0] == [11, 12]


async def test_a_whole_answer(engine: HttpEngine, client: OpenAiClient) -> None:
    engine.answers[PATH] = reply(json.dumps(part(11, 12, reason="stop")).encode())
    request = prompt("r1", 8)
    request.streaming = False
    tokens, last = await generated(client, request)
    assert tokens == [] and list(last.output_token_ids) == [11, 12]


async def test_an_id_that_no_header_can_have(engine: HttpEngine, client: OpenAiClient) -> None:
    engine.answers[PATH] = WHOLE
    await generated(client, prompt("a\r\nevil: 1", 8))
    assert "x-request-id" not in engine.asked[-1].headers and "evil" not in engine.asked[-1].headers


async def test_an_answer_goes_on_after_its_end(engine: HttpEngine, client: OpenAiClient) -> None:
    """An engine that says [DONE] and does not end the body."""

    async def on_and_on(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE)
        while True:
            writer.write(b": still here\n\n")
            await writer.drain()

    engine.answers[PATH] = on_and_on
    assert (await generated(client))[0] == [11, 12]
    await engine.left.wait()


CUT = b"5\r\n: ab\n\r\n10"
BAD: dict[str, tuple[bytes, Origin, str]] = {
    "500": (reply(b'{"error": {"message": "oh"}}', status=500), Origin.ENGINE, "INTERNAL"),
    "429": (
        reply(b"{}", status=429, more="Retry-After: 3\r\n"), Origin.ENGINE, "RESOURCE_EXHAUSTED",
    ),
    "400": (reply(b"no json", status=400), Origin.ENGINE, "INVALID_ARGUMENT"),
    "413": (reply(b"", status=413), Origin.REQUEST_SIZE, "RESOURCE_EXHAUSTED"),
    "an error without end": (
        b"HTTP/1.1 503 X\r\n\r\n" + b"x" * 500_000, Origin.ENGINE, "UNAVAILABLE",
    ),
    "a redirect": (
        reply(b"", status=307, more="Location: http://127.0.0.1:1/\r\n"), Origin.ENGINE, "INTERNAL",
    ),
    "another content type": (
        stream(part(1, reason="stop"), kind="text/html"), Origin.ENGINE, "INTERNAL",
    ),
    "no content type": (b"HTTP/1.1 200 OK\r\n\r\n", Origin.ENGINE, "INTERNAL"),
    "no HTTP": (b"SSH-2.0-x\r\n\r\n", Origin.ENGINE, "INTERNAL"),
    "a header without end": (
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, Origin.ENGINE, "INTERNAL",
    ),
    "nothing": (b"", Origin.TRANSPORT, "UNAVAILABLE"),
    "half a header": (b"HTTP/1.1 200 OK\r\nConte", Origin.TRANSPORT, "UNAVAILABLE"),
    "garbage": (stream(part(1), b"{{{"), Origin.ENGINE, "INTERNAL"),
    "compressed": (
        stream_head().replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + b"\x1f\x8b\x08",
        Origin.ENGINE, "INTERNAL",
    ),
    "an error in mid-stream": (
        stream(part(1), {"error": {"message": "full", "code": 503}}), Origin.ENGINE, "UNAVAILABLE",
    ),
    "no end": (stream(part(1)), Origin.ENGINE, "INTERNAL"),
    "chunks cut off": (CHUNKED + CUT, Origin.TRANSPORT, "UNAVAILABLE"),
    "chunks of no length": (CHUNKED + b"zz\r\n", Origin.ENGINE, "INTERNAL"),
    "a body cut off": (
        stream_head().replace(b"\r\n\r\n", b"\r\nContent-Length: 99\r\n\r\n") + event(part(1)),
        Origin.TRANSPORT, "UNAVAILABLE",
    ),
    "a line without end": (
        stream_head() + b"data: " + b"x" * 50_000, Origin.ANSWER_SIZE, "RESOURCE_EXHAUSTED",
    ),
    "an event without end": (
        stream_head() + b"data: x\n" * 10_000, Origin.ANSWER_SIZE, "RESOURCE_EXHAUSTED",
    ),
    "more than was asked for": (
        stream(*(part(1) for _ in range(100))), Origin.ENGINE, "INTERNAL",
    ),
    "text alone": (
        stream({"choices": [{"text": "hello"}]}), Origin.ENGINE, "UNIMPLEMENTED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_an_answer_that_is_none(engine: HttpEngine, client: OpenAiClient, name: str) -> None:
    answer, origin, code = BAD[name]
    engine.answers[PATH] = answer
    error = await failure(client, timeout=10)
    assert (error.origin, error.code().name) == (origin, code), error.details()
    assert len(error.details()) <= 1024
    engine.answers[PATH] = WHOLE  # and the client is none the worse for it
    assert (await generated(client))[0] == [11, 12]


async def test_what_it_says_of_when_to_come_back(engine: HttpEngine, client: OpenAiClient) -> None:
    engine.answers[PATH] = BAD["429"][0]
    assert "retry after 3" in (await failure(client)).details()


@pytest.mark.parametrize(
    "body, origin",
    [
        (b"{", Origin.ENGINE),
        (b"{}", Origin.ENGINE),
        (b'{"choices": [{"text": "' + b"x" * 50_000, Origin.ANSWER_SIZE),
    ],
)
async def test_a_whole_answer_that_is_none(
    engine: HttpEngine, client: OpenAiClient, body: bytes, origin: Origin
) -> None:
    engine.answers[PATH] = reply(body)
    request = prompt("r1", 8)
    request.streaming = False
    assert (await failure(client, request)).origin is origin


async def silence(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def one_token(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(stream_head() + event(part(11)))
    await asyncio.Event().wait()


async def comments(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(stream_head())
    while True:
        writer.write(b": ping\n\n")
        await writer.drain()
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("script", [silence, one_token, comments])
async def test_a_deadline(engine: HttpEngine, client: OpenAiClient, script: Script) -> None:
    engine.answers[PATH] = script
    error = await too_late(
        lambda seconds: failure(client, timeout=seconds), lambda: engine.generations
    )
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    assert error.origin is Origin.DEADLINE
    await engine.left.wait()


@pytest.mark.parametrize("script", [silence, one_token])
async def test_a_cancelled_call_closes_its_connection(
    engine: HttpEngine, client: OpenAiClient, script: Script
) -> None:
    engine.answers[PATH] = script
    call = client.generate(prompt("r1", 8).SerializeToString())
    await until(lambda: engine.generations)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        async for _ in call:
            pass
    await engine.left.wait()


async def aborted(engine: HttpEngine, client: OpenAiClient, script: Script) -> tuple[Any, Any, Any]:
    """A call that was aborted under way, its messages to come, and those read before."""
    engine.answers[PATH] = script
    call = client.generate(prompt("r1", 8).SerializeToString())
    messages = aiter(call)
    found = [await anext(messages)] if script is one_token else []
    await until(lambda: engine.generations)
    assert (await client.abort("r1", timeout=1))[0]
    return call, messages, found


@pytest.mark.parametrize("script, tokens", [(silence, []), (one_token, [11])])
async def test_an_aborted_call_ends_with_what_there_is(
    engine: HttpEngine, client: OpenAiClient, script: Script, tokens: list[int]
) -> None:
    _, messages, found = await aborted(engine, client, script)
    found += [message async for message in messages]
    told, last = answers_of(found)
    assert told == list(last.output_token_ids) == tokens and last.finish_reason == "cancelled"
    await engine.left.wait()
    assert not (await client.abort("r1", timeout=1))[0]


@pytest.mark.parametrize("script", [silence, one_token])
async def test_who_is_cancelled_as_it_is_aborted_is_cancelled(
    engine: HttpEngine, client: OpenAiClient, script: Script
) -> None:
    call, messages, _ = await aborted(engine, client, script)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        async for _ in messages:
            pass
    await engine.left.wait()


async def test_a_reader_that_is_slow_makes_the_engine_wait(
    engine: HttpEngine, client: OpenAiClient
) -> None:
    written = 0

    async def flood(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(stream_head())
        while True:
            writer.write(event(part(11, logprobs={"tokens": ["x" * 1000]})))
            await writer.drain()
            written += 1

    engine.answers[PATH] = flood
    request = prompt("r1", 8)
    request.max_tokens = 10**6
    call = client.generate(request.SerializeToString())
    messages = aiter(call)
    await anext(messages)
    before = -1
    while before != written:  # until nothing more is taken
        before = written
        for _ in range(200):
            await asyncio.sleep(0)
    assert written < 20_000
    call.cancel()
    await engine.left.wait()


async def test_nobody_listens(client: OpenAiClient, engine: HttpEngine) -> None:
    await engine.__aexit__()
    error = await failure(client)
    assert error.origin is Origin.CONNECT
    with pytest.raises(EngineCallError):
        await client.check_health(timeout=1)
    await engine.__aenter__()


async def test_after_its_end_nothing_is_sent(engine: HttpEngine, client: OpenAiClient) -> None:
    engine.answers[PATH] = one_token
    call = client.generate(prompt("r1", 8).SerializeToString())
    await until(lambda: engine.generations)
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        async for _ in call:
            pass
    assert (await failure(client)).origin is Origin.CONNECT


async def test_a_request_that_it_has_no_word_for(engine: HttpEngine, client: OpenAiClient) -> None:
    request = prompt("r1", 8)
    request.sampling_config.beam_width = 4
    error = await failure(client, request)
    assert error.code() is StatusCode.INVALID_ARGUMENT and not engine.generations


async def test_health(engine: HttpEngine, client: OpenAiClient) -> None:
    await client.check_health(timeout=5)
    engine.answers["/health"] = reply(b'{"error": {"message": "Loading model"}}', status=503)
    with pytest.raises(WorkerError, match="Loading model"):
        await client.check_health(timeout=5)
    engine.answers["/health"] = reply(b"", status=404)
    await client.check_health(timeout=5)
    engine.answers["/v1/models"] = reply(b"", status=401)
    with pytest.raises(WorkerError, match="401"):
        await client.check_health(timeout=5)
    engine.answers["/health"] = silence
    with pytest.raises((EngineCallError, WorkerError)):
        await client.check_health(timeout=0.05)


async def test_llama_is_known_by_its_list_of_models(
    engine: HttpEngine, client: OpenAiClient
) -> None:
    engine.answers["/v1/models"] = reply(json.dumps(LLAMA).encode())
    engine.answers["/props"] = reply(b'{"total_slots": 3}')
    _, facts = await client.describe(timeout=5)
    assert facts.settings == {"max_num_seqs": 3} and facts.vocab_size == 4096
    first = {"content": "\u6f22", "tokens": [162], "tokens_predicted": 3}
    last = {"stop": True, "stop_type": "eos", "tokens_predicted": 3}
    engine.answers["/completion"] = stream(first, last)
    engine.answers["/tokenize"] = reply(b'{"tokens": [230, 188, 162]}')
    tokens, _ = await generated(client)
    assert tokens == [230, 188, 162]
    assert engine.asked[-1].body == {"content": "\u6f22", "add_special": False}
    # Its threads are few, and each open connection has one.
    assert {each.headers["connection"] for each in engine.asked[-2:]} == {"close"}
    for nonsense in (b"[]", b'{"tokens": [-1, 162]}', b'{"tokens": [4294967296]}'):
        engine.answers["/tokenize"] = reply(nonsense)
        assert "/tokenize" in (await failure(client)).details()
    engine.answers["/tokenize"] = reply(json.dumps({"tokens": [1] * 5000}).encode())
    assert "more than" in (await failure(client)).details()


async def test_what_is_not_told_stays_unknown(engine: HttpEngine, client: OpenAiClient) -> None:
    _, facts = await client.describe(timeout=5)  # no /metrics
    assert (facts.model_id, facts.max_seq_len, facts.settings) == ("tiny", 512, {})
    engine.answers["/v1/models"] = reply(b"<html>")
    with pytest.raises(WorkerError, match="/v1/models"):
        await client.describe(timeout=5)


async def test_embeddings(engine: HttpEngine, client: OpenAiClient) -> None:
    asked = pb.EmbedRequest(request_id="e", tokenized=pb.TokenizedInput(input_token_ids=[1, 2]))
    with pytest.raises(EngineCallError) as error:
        await client.embed(asked.SerializeToString())
    assert error.value.code() is StatusCode.NOT_FOUND
    engine.answers["/v1/embeddings"] = reply(b'{"data": [{"embedding": [0.5, 2]}]}')
    answer = pb.EmbedResponse.FromString(await client.embed(asked.SerializeToString()))
    assert list(answer.embedding) == [0.5, 2.0] and answer.prompt_tokens == 2
    for lie in (b'{"data": []}', b'{"data": [{"embedding": ["x"]}]}', b"{"):
        engine.answers["/v1/embeddings"] = reply(lie)
        with pytest.raises(EngineCallError, match="cannot be read"):
            await client.embed(asked.SerializeToString())
