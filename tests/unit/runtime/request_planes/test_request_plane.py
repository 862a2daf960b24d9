"""The TCP request plane from end to end on loopback, and peers that misbehave."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from support.places import VECTORS
from support.polling import until

from dynamo_router.runtime.errors import InvalidRequestError
from dynamo_router.runtime.request_planes import (
    Fault,
    RequestClient,
    RequestContext,
    RequestError,
    RequestServer,
    annotated,
    request_server,
)
from dynamo_router.runtime.request_planes.frames import (
    RequestDecoder,
    TwoPartDecoder,
    encode_ack,
    encode_request,
)
from dynamo_router.runtime.request_planes.messages import (
    decode_request_message,
    encode_request_message,
)

pytestmark = pytest.mark.usefixtures("leaves_nothing")
PATH = "7f/dynamo/backend/generate"


async def count(body: Any, context: RequestContext) -> AsyncIterator[object]:
    for number in range(body["n"]):
        yield {"number": number, "id": context.id}
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[RequestServer]:
    running = RequestServer(capacity=100)
    await running.start()
    running.add(PATH, count)
    yield running
    await running.close()


@pytest.fixture
async def client() -> AsyncIterator[RequestClient]:
    running = RequestClient()
    await running.start()
    yield running
    await running.close()


def at(server: RequestServer, path: str = PATH) -> str:
    return f"127.0.0.1:{server.port}/{path}"


async def ask(client: RequestClient, address: str, body: Any, **more: Any) -> list[Any]:
    async with asyncio.timeout(20):
        return [part async for part in client.stream(address, body, **more)]


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_an_answer_comes_in_parts_and_in_order(
    server: RequestServer, client: RequestClient, codec: str
) -> None:
    parts = await ask(client, at(server), {"n": 200}, codec=codec, request_id="r1")
    assert parts == [{"number": number, "id": "r1"} for number in range(200)]
    assert await ask(client, at(server), {"n": 0}, codec=codec) == []


async def test_many_requests_share_a_connection(
    server: RequestServer, client: RequestClient
) -> None:
    answers = await asyncio.gather(*(ask(client, at(server), {"n": n}) for n in range(80)))
    assert [len(parts) for parts in answers] == list(range(80))
    assert client.connections == 1
    await until(lambda: server.in_flight == 0)


async def test_refusals_are_told_apart_and_shift_nothing(
    server: RequestServer, client: RequestClient
) -> None:
    results = await asyncio.gather(
        *(ask(client, at(server, PATH if n % 2 else "7f/x"), {"n": 3}) for n in range(6)),
        return_exceptions=True,
    )
    for n, result in enumerate(results):
        if n % 2:
            assert isinstance(result, list) and len(result) == 3
        else:
            assert isinstance(result, RequestError) and result.fault is Fault.UNAVAILABLE
            assert "Server unavailable: unknown endpoint 7f/x" in str(result)


async def test_a_worker_at_capacity_says_so(client: RequestClient) -> None:
    go = asyncio.Event()

    async def wait(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        await go.wait()

    server = RequestServer(capacity=1)
    await server.start()
    server.add(PATH, wait)
    first = client.stream(at(server), {})
    assert await anext(first) == 1
    with pytest.raises(RequestError, match="worker at capacity") as caught:
        await ask(client, at(server), {})
    assert caught.value.fault is Fault.OVERLOADED
    go.set()
    assert [part async for part in first] == []
    await server.close()


async def test_closing_the_answer_cancels_the_request(
    server: RequestServer, client: RequestClient
) -> None:
    ended = asyncio.Event()

    async def endless(body: Any, context: RequestContext) -> AsyncIterator[object]:
        try:
            while True:
                yield "x"
                await asyncio.sleep(0)
        finally:
            ended.set()

    server.add("endless", endless)
    async with aclosing(client.stream(at(server, "endless"), {})) as parts:
        assert await anext(parts) == "x"
    async with asyncio.timeout(10):
        await ended.wait()
    await until(lambda: server.in_flight == 0)


async def test_a_slow_reader_slows_the_worker_down(
    server: RequestServer, client: RequestClient
) -> None:
    sent = 0

    async def flood(body: Any, context: RequestContext) -> AsyncIterator[object]:
        nonlocal sent
        for _ in range(2000):
            sent += 1
            yield "x" * 20_000

    server.add("flood", flood)
    parts = client.stream(at(server, "flood"), {})
    await anext(parts)
    before = -1
    while before != sent:  # until it comes to a stop by itself
        before = sent
        for _ in range(50):
            await asyncio.sleep(0.001)
    assert sent < 1000
    assert 1 + len([part async for part in parts]) == 2000


@pytest.mark.parametrize(
    ("error", "error_type"),
    [(InvalidRequestError("max_tokens is missing"), "InvalidArgument"), (KeyError("oops"), None)],
)
async def test_a_handler_that_fails_sends_an_error_and_ends_well(
    server: RequestServer, client: RequestClient, error: Exception, error_type: str | None
) -> None:
    async def fail(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        raise error

    server.add("fail", fail)
    first, second = await ask(client, at(server, "fail"), {})
    assert first == 1 and second["event"] == "error"
    assert second.get("error", {}).get("error_type") == error_type


async def test_nobody_there(client: RequestClient, server: RequestServer) -> None:
    address = at(server)
    assert len(await ask(client, address, {"n": 1})) == 1
    await server.close()
    with pytest.raises(RequestError) as caught:
        await ask(client, address, {"n": 1})
    assert caught.value.fault in (Fault.UNREACHABLE, Fault.BROKEN)
    with pytest.raises(RequestError, match="^nowhere: ") as caught:
        await ask(client, "nowhere/path", {})
    assert caught.value.fault is Fault.UNREACHABLE


async def test_a_recorded_request_of_a_real_frontend_is_answered(
    server: RequestServer,
) -> None:
    """Byte for byte what a real worker sends: handshake, prologue, parts, end, sentinel."""
    recording = json.loads((VECTORS / "request_plane" / "frontend_round_robin.json").read_text())
    frame = next(f for f in recording["frames"] if f["what"] == "A.request")
    (request,) = RequestDecoder().feed(b64decode(frame["b64"]))
    message = decode_request_message(request.payload)

    async def tokens(body: Any, context: RequestContext) -> AsyncIterator[object]:
        for token in range(body["stop_conditions"]["max_tokens"]):
            yield annotated({"token_ids": [token]})

    server.add(request.path, tokens)
    received: list[Any] = []
    done = asyncio.Event()

    async def home(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = TwoPartDecoder()
        while data := await reader.read(65536):
            received.extend(decoder.feed(data))
            if received[-1].header == b'"sentinel"':
                break
        writer.close()
        done.set()

    listener = await asyncio.start_server(home, "127.0.0.1", 0)
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    payload = encode_request_message(message.id, address, "s", message.body, "msgpack", {})
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request(request.path, request.headers, payload))
    assert await reader.readexactly(4) == encode_ack()
    async with asyncio.timeout(10):
        await done.wait()
    headers = [json.loads(frame.header) if frame.header else None for frame in received]
    assert headers[:2] == [{"subject": "s", "stream_type": "response"}, {"error": None}]
    assert headers[2:] == [None] * 5 + ["sentinel"]
    writer.close()
    listener.close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n" * 9, b"\0\0\0\2{}\xff\xff\xff\xff"])
async def test_strangers_end_their_own_connection_only(
    server: RequestServer, client: RequestClient, data: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()
    assert len(await ask(client, at(server), {"n": 2})) == 2


async def test_callers_beyond_a_bound_are_turned_away(
    server: RequestServer, client: RequestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_server, "MAX_CALLERS", 1)
    assert len(await ask(client, at(server), {"n": 2})) == 2
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    assert len(await ask(client, at(server), {"n": 2})) == 2


async def test_draining_waits_for_answers(server: RequestServer, client: RequestClient) -> None:
    go = asyncio.Event()

    async def wait(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield 1
        await go.wait()
        yield 2

    server.add("wait", wait)
    parts = client.stream(at(server, "wait"), {})
    assert await anext(parts) == 1
    server.remove("wait")
    with pytest.raises(RequestError, match="unknown endpoint"):
        await ask(client, at(server, "wait"), {})
    assert not await server.drain(0.01)
    go.set()
    assert [part async for part in parts] == [2]
    assert await server.drain(10.0)
