"""A listener of HTTP: what runs when it ends."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.polling import until
from support.security.certificates import Authority
from support.servers.http1_server import answer, bodies, post

from dynamo_router.base.errors import ConfigError
from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.server.services.connections import LEAST, HttpConnections
from dynamo_router.transport.http1 import Client, HttpLimits, HttpListener, Receive, Scope, Send
from dynamo_router.transport.security import ServerTls, ServerTlsConfig


class Application:
    """Answers when it may."""

    def __init__(self) -> None:
        self.go = asyncio.Semaphore(0)
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send, **more: Any) -> None:
        self.begun += 1
        await self.go.acquire()
        await answer(send, b"%d" % self.begun)

    def route_of(self, scope: Mapping[str, Any]) -> str:
        return ""


@pytest.mark.usefixtures("leaves_nothing")
async def test_what_was_sent_ahead_is_answered_before_it_ends() -> None:
    application: Any = Application()
    listener = HttpListener(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(b"") * 3)
    await until(lambda: application.begun == 1)
    draining = asyncio.create_task(listener.drain(60))
    for number in range(1, 4):
        await until(lambda number=number: application.begun == number)  # type: ignore[misc]
        assert not draining.done()
        application.go.release()
    await draining
    assert bodies(await reader.read()) == [b"1", b"2", b"3"]
    writer.close()
    await listener.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.usefixtures("leaves_nothing")
async def test_what_does_not_end_is_ended() -> None:
    application: Any = Application()
    listener = HttpListener(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(b"") * 3)
    await until(lambda: application.begun == 1)
    await listener.drain(0)
    await listener.close()
    with pytest.raises(ConnectionResetError):
        found = await reader.read()
        assert found == b""
        raise ConnectionResetError  # it came as an end
    assert application.begun == 1
    writer.close()


@pytest.mark.usefixtures("leaves_nothing")
async def test_several_processes_may_share_a_port_if_all_of_them_want_to() -> None:
    application: Any = Application()
    first, second, alone = (HttpListener(application) for _ in range(3))
    port = await first.start("127.0.0.1", 0, key="port", reuse_port=True)
    assert await second.start("127.0.0.1", port, key="port", reuse_port=True) == port
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
        await alone.start("127.0.0.1", port, key="http_port")
    assert caught.value.key == "http_port"
    for listener in (first, second, alone):
        await listener.close()


@pytest.mark.usefixtures("leaves_nothing")
async def test_if_one_address_cannot_be_had_none_is_listened_on() -> None:
    application: Any = Application()
    listener, other = HttpListener(application), HttpListener(application)
    taken = await other.start("127.0.0.1", 0, key="port")
    port = await listener.start("127.0.0.1", 0, key="http_port")
    with pytest.raises(ConfigError, match="cannot listen"):
        await listener.start("127.0.0.1", taken, key="admin_port")
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    await other.close()


MANY = 200
TURNS = 20


def test_what_connects_at_once_is_accepted_in_a_few_turns() -> None:
    """The servers of uvloop accept one in a turn: of a burst the last waits for all the others."""
    uvloop.run(_connect_many())


async def _connect_many() -> None:
    application: Any = Application()
    listener = HttpListener(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert listener.open == MANY
    await listener.close()
    await until(lambda: not listener.open)


@pytest.mark.usefixtures("leaves_nothing")
async def test_a_connection_for_which_there_is_no_room_is_told_so() -> None:
    application: Any = Application()
    listener = HttpListener(application, enter=lambda host, *_: f"no room for {host}")
    port = await listener.start("127.0.0.1", 0, key="port")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ") and b"connection: close" in head
    assert b"no room for 127.0.0.1" in body
    assert not application.begun and not listener.open
    writer.close()
    await listener.close()


class Order:
    """Notes whose requests begin, one after another."""

    def __init__(self) -> None:
        self.hosts: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send, **more: Any) -> None:
        self.hosts.append(scope["client"][0])
        await answer(send, b"")

    def route_of(self, scope: Mapping[str, Any]) -> str:
        return ""


FLOOD, OTHER = ("127.0.0.1", 0), ("127.0.0.2", 0)
AT_ONCE = 300


def test_of_requests_that_come_at_once_those_of_another_address_are_read_soon() -> None:
    uvloop.run(_flood())


async def _flood() -> None:
    application: Any = Order()
    listener = HttpListener(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=own))
            for own in (*[FLOOD] * AT_ONCE, OTHER)
        ]
        await until(lambda: listener.open == len(clients))
        for client in clients:
            client.sendall(post(b"x" * 100))
        await until(lambda: len(application.hosts) == len(clients))
    assert application.hosts.index(OTHER[0]) < AT_ONCE / 4
    await listener.close()
    await until(lambda: not listener.open)


@pytest.mark.usefixtures("leaves_nothing")
async def test_a_client_that_begins_no_tls_has_little_time(tmp_path: Path) -> None:
    hits: Counter[str] = Counter()
    count: Any = lambda limit: hits.update([limit])  # noqa: E731
    application: Any = Application()
    limits = HttpLimits(handshake_s=0.05)
    listener = HttpListener(application, limits=limits, on_limit=count)
    cert, key = Authority(tmp_path).issue("server")
    context = ServerTls(ServerTlsConfig(cert=cert, key=key)).ssl_context()
    port = await listener.start("127.0.0.1", 0, key="port", tls=context)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    assert hits == {"connection_handshake_s": 1} and not listener.open
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    assert hits["client_violations"] == 1
    writer.close()
    await listener.close()


@pytest.mark.usefixtures("leaves_nothing")
async def test_who_makes_room_before_its_tls_is_made_is_gone(tmp_path: Path) -> None:
    """Else one address could have any number of connections that begin no TLS."""
    application: Any = Application()
    hits: Counter[str] = Counter()
    connections = HttpConnections(LEAST, 600.0, LimitHits(), young_s=0.0)
    listener = HttpListener(
        application,
        enter=connections.enter,
        limits=HttpLimits(handshake_s=600.0),
        on_limit=lambda limit: hits.update([limit]),
    )
    cert, key = Authority(tmp_path).issue("server")
    context = ServerTls(ServerTlsConfig(cert=cert, key=key)).ssl_context()
    port = await listener.start("127.0.0.1", 0, key="port", tls=context)
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LEAST + 2)]
    for reader, _ in clients[:2]:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
    assert len(connections) == LEAST and not hits
    for _, writer in clients:
        writer.close()
    await listener.close()
    assert not len(connections)


@pytest.mark.usefixtures("leaves_nothing")
async def test_what_was_accepted_in_the_turn_in_which_it_closes_is_closed() -> None:
    lost: list[asyncio.Protocol] = []

    class Lost(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.append(self)

    application: Any = Application()
    listener = HttpListener(application, enter=lambda *_: Lost())
    ours, theirs = socket.socketpair()
    listener._open(None, theirs, "127.0.0.1")
    await listener.close()
    assert len(lost) == 1 and theirs.fileno() == -1
    ours.close()


@pytest.mark.usefixtures("leaves_nothing")
async def test_a_connection_that_is_made_as_it_drains_has_one_request() -> None:
    application: Any = Application()
    made = asyncio.Event()
    held: list[asyncio.Task[Any]] = []

    class Late(HttpListener):
        async def _make(self, *connection: Any) -> Any:
            held.append(asyncio.current_task())  # type: ignore[arg-type]
            if len(held) > 1:
                await made.wait()
            return await super()._make(*connection)

    listener = Late(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    _, first = await asyncio.open_connection("127.0.0.1", port)
    first.write(post(b""))
    await until(lambda: application.begun == 1)
    reader, late = await asyncio.open_connection("127.0.0.1", port)
    late.write(post(b"") * 2)
    await until(lambda: len(held) == 2)
    draining = asyncio.create_task(listener.drain(60))
    await asyncio.sleep(0)
    made.set()
    for _ in range(3):
        application.go.release()
    assert bodies(await asyncio.wait_for(reader.read(), 60)) == [b"2"]
    await draining
    first.close()
    late.close()
    await listener.close()


class Talker:
    """Answers without an end, as long as its client reads."""

    def __init__(self) -> None:
        self.sent, self.is_stuck = 0, False

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, client: Client, **more: Any
    ) -> None:
        client.begin(200, [])
        while client.reads and self.sent < 64 * PART:
            client.write_part(bytes(PART))
            self.sent += PART
            await asyncio.sleep(0)
        self.is_stuck = not client.reads
        await client.drained()

    def route_of(self, scope: Mapping[str, Any]) -> str:
        return ""


PART = 64 << 10


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such bound")
async def test_what_a_client_does_not_read_is_not_kept_by_the_megabyte_for_it() -> None:
    application: Any = Talker()
    listener = HttpListener(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(post(b""))
        await until(lambda: application.is_stuck or application.sent >= 64 * PART)
    assert application.is_stuck and application.sent < 16 * PART
    await listener.close()
    await until(lambda: not listener.open)
