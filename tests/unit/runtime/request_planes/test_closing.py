"""A server or client closes whatever its peers do: one that reads nothing holds up nobody."""

import asyncio
import socket
from contextlib import suppress

import pytest
from support.polling import DEADLINE_S, until

from dynamo_router.runtime.request_planes.frames import encode_request
from dynamo_router.runtime.request_planes.request_client import RequestClient
from dynamo_router.runtime.request_planes.request_server import RequestServer

pytestmark = pytest.mark.usefixtures("leaves_nothing")


async def connect(port: int) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
    return peer


async def test_a_caller_that_reads_no_acknowledgement() -> None:
    server = RequestServer()
    await server.start()
    request = encode_request("nowhere", {}, b"") * 1000
    with await connect(server.port) as peer:
        loop = asyncio.get_running_loop()
        await until(lambda: len(server._callers) == 1)
        (caller,) = server._callers
        with suppress(ConnectionError):  # it may be closed for what it leaves unread by then
            while caller._transport is None or not caller._transport.get_write_buffer_size():
                await loop.sock_sendall(peer, request)
        async with asyncio.timeout(DEADLINE_S):
            await server.close()


async def test_a_caller_that_comes_as_the_server_closes() -> None:
    server = RequestServer()
    await server.start()
    with await connect(server.port):
        async with asyncio.timeout(DEADLINE_S):
            await server.close()


async def test_a_worker_that_comes_as_the_client_closes() -> None:
    client = RequestClient()
    await client.start()
    with await connect(int(client.address.rpartition(":")[2])):
        async with asyncio.timeout(DEADLINE_S):
            await client.close()
