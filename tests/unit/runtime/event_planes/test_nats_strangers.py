"""The NATS plane and its connections against servers that misbehave, played by the test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from nats.errors import Error as NatsError
from support.polling import closed_after, until

from dynamo_router.base.backoff import Backoff
from dynamo_router.runtime.event_planes.event_plane import PlaneState
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane
from dynamo_router.transport.nats import nats_link

pytestmark = pytest.mark.usefixtures("leaves_nothing")

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

INFO = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"proto":1}\r\n'


@contextlib.asynccontextmanager
async def plane_at(url: str) -> AsyncIterator[NatsPlane]:
    async with closed_after(NatsPlane(url, backoff=Backoff(0.005, 0.05))) as plane:
        yield plane


@contextlib.asynccontextmanager
async def fake_server(talk: Talk) -> AsyncIterator[str]:
    """Something that listens but is no healthy nats-server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    pass


async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


async def bad_info(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"INFO {\r\n")
    await writer.drain()
    await reader.read()


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(INFO)
    await reader.readline()
    writer.write(b"-ERR 'Authorization Violation'\r\n")
    await writer.drain()
    await reader.read()


async def refuse_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(INFO)
    await reader.readline()
    await reader.readline()
    writer.write(b"PONG\r\n-ERR 'maximum connections exceeded'\r\n")
    await writer.drain()


@pytest.mark.parametrize("talk", [hang_up, babble, bad_info, refuse, refuse_later])
async def test_a_server_that_is_none(talk: Talk) -> None:
    attempts = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await talk(reader, writer)

    async with fake_server(counted) as url, plane_at(url) as plane:
        await plane.subscribe("a", lambda *_: None)
        await plane.publish("a", b"x")
        await until(lambda: attempts >= 3)
        assert plane.stats.received == plane.stats.handler_errors == 0


async def test_closing_in_the_middle_of_connecting() -> None:
    reached = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await silent(reader, writer)

    async with fake_server(mute) as url, plane_at(url) as plane:
        await reached.wait()
        assert plane.state is PlaneState.CONNECTING
    assert plane.state is PlaneState.CLOSED


@pytest.mark.parametrize("lossy", [False, True])
async def test_a_link_may_be_closed_at_any_step_of_its_loss(lossy: bool) -> None:
    """nats-py may end a wait for the socket by cancelling it for us too, at one of these steps."""
    connections: list[asyncio.StreamWriter] = []

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
                connections.append(writer)

    async with fake_server(welcome) as url:
        for turns in range(40):
            lost: list[None] = []
            link = nats_link.NatsLink(lambda lost=lost: lost.append(None), lambda: None)
            await link.open(url)
            connections.pop().transport.abort()
            for _ in range(turns):
                await asyncio.sleep(0)
                if lossy:  # it then has messages that will never leave
                    with contextlib.suppress(NatsError, OSError):
                        await link.publish("a", b"x")
            await link.close()
            assert not link.alive
            assert not await link.flush()
