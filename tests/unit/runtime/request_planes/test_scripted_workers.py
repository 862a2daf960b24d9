"""Workers that send what they must not, or nothing, or what a real one was recorded sending."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from support.places import VECTORS
from support.polling import until

from dynamo_router.runtime.request_planes import (
    AnswerTimeouts,
    Fault,
    RequestClient,
    RequestError,
)
from dynamo_router.runtime.request_planes.frames import RequestDecoder, encode_ack
from dynamo_router.runtime.request_planes.messages import (
    data_frame,
    decode_request_message,
    final_frame,
    handshake,
    prologue,
)

pytestmark = pytest.mark.usefixtures("leaves_nothing", "closes_lines")
PATH = "7f/dynamo/backend/generate"
LINES: list[asyncio.StreamWriter] = []
"""connections that scripted workers opened"""


@pytest.fixture
async def closes_lines() -> AsyncIterator[None]:
    yield
    while LINES:
        line = LINES.pop()
        line.close()
        with suppress(OSError):
            await line.wait_closed()


@pytest.fixture
async def hasty() -> AsyncIterator[RequestClient]:
    """A client that soon gives a worker up."""
    running = RequestClient(timeouts=AnswerTimeouts(0.3, 0.3, 0.3))
    await running.start()
    yield running
    await running.close()


async def ask(client: RequestClient, address: str, body: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [part async for part in client.stream(address, body)]


Script = Callable[[asyncio.StreamWriter, Any], Any]


async def scripted(script: Script) -> tuple[asyncio.Server, str]:
    """A worker that reads a request and then does what `script` says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = RequestDecoder()
        try:
            while data := await reader.read(65536):
                for request in decoder.feed(data):
                    await script(writer, decode_request_message(request.payload))
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    return running, f"127.0.0.1:{running.sockets[0].getsockname()[1]}/{PATH}"


async def call_home(message: Any, *data: bytes) -> asyncio.StreamWriter:
    host, port = message.call_home.address.rsplit(":", 1)
    _, writer = await asyncio.open_connection(host, int(port))
    LINES.append(writer)
    writer.write(b"".join(data))
    return writer


async def broken_after_one_part(writer: asyncio.StreamWriter, message: Any) -> None:
    writer.write(encode_ack())
    subject = message.call_home.subject
    home = await call_home(message, handshake(subject), prologue(), data_frame(1, "msgpack"))
    home.close()


async def never_acknowledges(writer: asyncio.StreamWriter, message: Any) -> None:
    pass


async def test_a_worker_that_reads_nothing_keeps_no_connection(hasty: RequestClient) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        with pytest.raises(RequestError) as error:
            await ask(hasty, f"{place}/{PATH}", "x" * (24 << 20))
        assert error.value.fault is Fault.SILENT
        transport = hasty._tcp._lines[place]._transport
        assert transport is not None
        await until(lambda: transport.get_write_buffer_size() == 0)
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


async def accepts_and_is_silent(writer: asyncio.StreamWriter, message: Any) -> None:
    writer.write(encode_ack())


async def comes_home_and_is_silent(writer: asyncio.StreamWriter, message: Any) -> None:
    """It never sends its prologue."""
    writer.write(encode_ack())
    await call_home(message, handshake(message.call_home.subject))


async def accepts_and_dies(writer: asyncio.StreamWriter, message: Any) -> None:
    writer.write(encode_ack())
    await writer.drain()
    writer.close()


async def refuses_in_words_of_its_own(writer: asyncio.StreamWriter, message: Any) -> None:
    writer.write(encode_ack("not today"))


async def lies_about_lengths(writer: asyncio.StreamWriter, message: Any) -> None:
    writer.write(encode_ack())
    (await call_home(message, handshake(message.call_home.subject), b"\xff" * 24)).close()


async def comes_home_twice(writer: asyncio.StreamWriter, message: Any) -> None:
    writer.write(encode_ack())
    begin = handshake(message.call_home.subject)
    first = await call_home(message, begin, prologue())
    second = await call_home(message, begin, prologue(), final_frame("msgpack"))
    stranger = await call_home(message, handshake("unknown"), b"\0" * 24)
    for home in (first, second, stranger):
        home.close()


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (broken_after_one_part, Fault.BROKEN),
        (never_acknowledges, Fault.SILENT),
        (accepts_and_is_silent, Fault.SILENT),
        (comes_home_and_is_silent, Fault.SILENT),
        (accepts_and_dies, Fault.BROKEN),
        (refuses_in_words_of_its_own, Fault.REFUSED),
        (lies_about_lengths, Fault.PROTOCOL),
        (comes_home_twice, Fault.BROKEN),
    ],
)
async def test_a_worker_that_misbehaves_is_told_from_the_others(
    hasty: RequestClient, script: Script, fault: Fault
) -> None:
    worker, address = await scripted(script)
    try:
        with pytest.raises(RequestError) as caught:
            await ask(hasty, address, {})
        assert caught.value.fault is fault
    finally:
        worker.close()
        await hasty.close()
        await worker.wait_closed()


async def answers_and_never_acknowledges(writer: asyncio.StreamWriter, message: Any) -> None:
    begin = handshake(message.call_home.subject)
    whole = begin, prologue(), data_frame(1, "msgpack"), final_frame("msgpack")
    (await call_home(message, *whole)).close()


async def test_a_line_whose_acknowledgement_is_missing_is_given_up(hasty: RequestClient) -> None:
    """The answer came all the same; but the next acknowledgement would be taken for its own."""
    worker, address = await scripted(answers_and_never_acknowledges)
    try:
        assert await ask(hasty, address, {}) == [1]
        (line,) = hasty._tcp._lines.values()
        await until(lambda: not line.alive)
        assert await ask(hasty, address, {}) == [1]  # over a new one
    finally:
        worker.close()
        await hasty.close()
        await worker.wait_closed()


async def test_a_stranger_at_the_port_for_answers_makes_us_keep_nothing(
    client: RequestClient,
) -> None:
    """It announces a handshake of 100 KiB and sends part of it, or sends garbage."""
    host, port = client.address.rsplit(":", 1)
    for data in (b"\0" * 5 + b"\1\x90\0" + b"\0" * 16 + b"x" * 5000, b"\xff" * 24):
        reader, writer = await asyncio.open_connection(host, int(port))
        LINES.append(writer)
        writer.write(data)
        async with asyncio.timeout(60):
            assert await reader.read() == b""


async def test_recorded_answers_of_a_real_worker_are_read(client: RequestClient) -> None:
    cases = json.loads((VECTORS / "request_plane" / "tcp_generate.json").read_text())["cases"]
    case = cases["complete_3_tokens"]

    async def replay(writer: asyncio.StreamWriter, message: Any) -> None:
        writer.write(b64decode(case["ack"]["b64"]))
        frames = [f for f in case["response_connection"] if f["dir"].startswith("worker")]
        data = [b64decode(frame["b64"]) for frame in frames if "b64" in frame]
        await call_home(message, handshake(message.call_home.subject), *data[1:])

    worker, address = await scripted(replay)
    parts = await ask(client, address, case["request"]["body"])
    tokens = [token for part in parts for token in part["data"]["token_ids"]]
    assert len(tokens) == 3 and parts[-1]["data"]["finish_reason"] == "length"
    await client.close()
    worker.close()
