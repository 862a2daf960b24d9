"""A server that stops while clients call: what they had sent before they heard of it is served."""

import asyncio

import pytest
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import RawClient, head_of, listening, raw_client

from dynamo_router.transport.http2 import ServerCall

pytestmark = pytest.mark.usefixtures("leaves_nothing")
GRACE_S = 15.0


class Waiting:
    """A method whose calls end one by one."""

    def __init__(self) -> None:
        self.ends: list[asyncio.Event] = []

    async def serve(self, call: ServerCall) -> None:
        end = asyncio.Event()
        self.ends.append(end)
        await end.wait()


async def ended(client: RawClient, stream: int) -> bytes:
    """The status of a call, once it came."""
    while not any(f.flags & raw.END_STREAM for f in client.frames if f.stream == stream):
        await client.read()
    return client.status(stream)[0]


@pytest.mark.parametrize("busy", [True, False])
async def test_a_call_that_crosses_the_notice_is_served(busy: bool) -> None:
    method = Waiting()
    async with listening({"/a.B/wait": method.serve}) as (server, port):
        async with raw_client(port) as client:
            client.greet()
            await client.until(raw.SETTINGS)
            await until(lambda: len(server) == 1)
            if busy:
                client.send(raw.headers(1, head_of("/a.B/wait"), end=True))
                await until(lambda: server.calls_open)
            stopping = asyncio.create_task(server.stop(GRACE_S))
            await client.until(raw.GOAWAY)
            client.send(raw.headers(3, head_of("/a.B/wait"), end=True))
            await until(lambda: len(method.ends) == 1 + busy)
            if busy:
                method.ends[0].set()
                assert await ended(client, 1) == b"0"
            ping = await client.until(raw.PING)
            client.send(raw.frame(raw.PING, 0, ping.payload, raw.ACK))
            while len(client.goaways()) < 2:
                await client.read()
            method.ends[-1].set()
            assert await ended(client, 3) == b"0"
            await stopping


async def test_a_client_that_has_just_connected_is_served() -> None:
    method = Waiting()
    async with listening({"/a.B/wait": method.serve}) as (server, port):
        async with raw_client(port) as client:
            await until(lambda: len(server) == 1)
            stopping = asyncio.create_task(server.stop(GRACE_S))
            await asyncio.sleep(0)
            client.greet()
            client.send(raw.headers(1, head_of("/a.B/wait"), end=True))
            await until(lambda: method.ends)
            method.ends[0].set()
            assert await ended(client, 1) == b"0"
            await stopping
