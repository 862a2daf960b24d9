"""The TCP request plane from end to end on loopback, and peers that misbehave."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from support.places import VECTORS
from support.polling import until

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


def at(server: RequestServer, path: str = PATH) -> str:
    return f"127.0.0.1:{server.port}/{path}"


async def ask(client: RequestClient, address: str, body: Any, **more: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [part async for part in client.stream(address, body, **more)]


async def test_many_requests_share_a_connection(
    server: RequestServer, client: RequestClient
) -> None:
    answers = await asyncio.gather(*(ask(client, at(server), {"n": n}) for n in range(80)))
    assert [len(parts) for parts in answers] == list(range(80))
    assert client.connections == 1
    await until(lambda: server.in_flight == 0)


async def test_nobody_there(client: RequestClient, server: RequestServer) -> None:
    address = at(server)
    assert len(await ask(client, address, {"n": 1})) == 1
    await server.close()
    with pytest.raises(RequestError) as caught:
        await ask(client, address, {"n": 1})
    assert caught.value.fault in (Fault.UNREACHABLE, Fault.BROKEN)
    with pytest.raises(RequestError, match="^nowhere/path: ") as caught:
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
