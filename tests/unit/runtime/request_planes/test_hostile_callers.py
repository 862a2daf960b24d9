"""Callers that talk nonsense on the connection that brings them their answer."""

import asyncio
import contextlib
import json
import select
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.polling import until

from dynamo_router.engines.mocker.config import MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.runtime.request_planes import RequestClient, RequestContext, RequestServer
from dynamo_router.runtime.request_planes.frames import encode_request, encode_two_part
from dynamo_router.runtime.request_planes.messages import KILL, STOP, encode_request_message

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.mark.parametrize(
    "words",
    [
        STOP,
        KILL,
        encode_two_part(json.dumps("strange").encode()),
        encode_two_part(b"\xff"),
        struct.pack(">QQQ", 1 << 40, 0, 0),
        struct.pack(">QQQ", 0, 1 << 63, 0),
        struct.pack(">QQQ", 100_000, 0, 0) + b"x" * 8000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_whatever_a_caller_says_ends_its_answer_and_no_other(words: bytes) -> None:
    ended: list[str] = []

    async def endless(body: Any, context: RequestContext) -> AsyncIterator[object]:
        try:
            yield context.id
            await asyncio.Event().wait()
        finally:
            ended.append(context.id)

    server = RequestServer()
    await server.start()
    server.add("x", endless)
    homes: dict[str, asyncio.StreamWriter] = {}

    async def home(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header, _, _ = struct.unpack(">QQQ", await reader.readexactly(24))
        homes[json.loads(await reader.readexactly(header))["subject"]] = writer

    listener = await asyncio.start_server(home, "127.0.0.1", 0)
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    _, asking = await asyncio.open_connection("127.0.0.1", server.port)
    for name in ("hostile", "honest"):
        payload = encode_request_message(name, address, name, {}, "msgpack", {})
        asking.write(encode_request("x", {}, payload))
    await until(lambda: len(homes) == 2)
    homes["hostile"].write(words)
    await until(lambda: ended == ["hostile"] and server.in_flight == 1)
    await server.close()
    assert ended == ["hostile", "honest"]
    for writer in (asking, *homes.values()):
        writer.close()
    listener.close()
    await listener.wait_closed()


async def test_a_caller_that_reads_no_acknowledgement_is_dropped_and_no_other() -> None:
    server = RequestServer()
    await server.start()
    _, honest = await asyncio.open_connection("127.0.0.1", server.port)
    with socket.create_connection(("127.0.0.1", server.port)) as hostile:
        hostile.setblocking(False)
        many = encode_request("nowhere", {}, b"") * 10_000
        sent = 0

        def dropped() -> bool:
            nonlocal sent
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sent += hostile.send(many[sent % len(many) :])
            return server.unread_callers == 1

        await until(dropped)
    await until(lambda: len(server._callers) == 1)
    fleet = MockFleet(MockerConfig(), requests=server)
    page = fleet.metrics.text().decode()
    assert "dynamo_router_request_plane_unread_callers_total 1.0" in page
    assert "dynamo_router_request_plane_requests 0.0" in page
    await server.close()
    honest.close()


TOGETHER = 300


async def test_answers_that_come_home_together_are_connected_before_any_is_accepted() -> None:
    """What finds no room in the kernel's queue would try again after a second, then two."""
    client = RequestClient()
    await client.start()
    host, _, port = client.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(socket.socket()) for _ in range(TOGETHER)]
        for line in lines:
            line.setblocking(False)
            line.connect_ex((host, int(port)))
        _, connected, _ = select.select([], lines, [], 0)
        assert len(connected) == TOGETHER
    await client.close()
