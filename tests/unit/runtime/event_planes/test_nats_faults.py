"""The NATS plane under faults: no server, a killed one, a late one, a stalled one."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from itertools import pairwise
from random import Random

import pytest
import structlog
import uvloop
from support.free_port import free_port
from support.polling import until

from dynamo_router.base.backoff import Backoff
from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.runtime.event_planes.event_plane import PlaneState, PlaneStats
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane
from dynamo_router.runtime.event_planes.outgoing_buffer import OutgoingBuffer
from dynamo_router.transport.nats import nats_link

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def impatient() -> Backoff:
    return Backoff(0.005, 0.05)


@contextlib.asynccontextmanager
async def plane_at(url: str, **options: object) -> AsyncIterator[NatsPlane]:
    plane = NatsPlane(url, backoff=impatient(), **options)  # type: ignore[arg-type]
    try:
        yield plane
    finally:
        await plane.close()


async def kill(server: EmbeddedNats, what: int = signal.SIGKILL) -> None:
    assert server.pid is not None
    os.kill(server.pid, what)
    if what == signal.SIGKILL:
        await until(lambda: not server.running)


async def test_a_server_killed_and_restarted_on_its_port(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url) as plane:
        states: list[PlaneState] = []
        got: list[bytes] = []
        plane.on_state(states.append)
        await until(lambda: plane.state is PlaneState.CONNECTED)
        await plane.subscribe("a.*", lambda _, payload: got.append(payload))
        await plane.publish("a.b", b"before")
        await until(lambda: got == [b"before"])

        await kill(nats)
        await until(lambda: plane.state is PlaneState.CONNECTING)
        assert not await plane.flush()
        await plane.subscribe("x", lambda _, payload: got.append(payload))
        await plane.publish("a.b", b"meanwhile")
        await plane.publish("x", b"also")
        assert plane.buffered_messages == 2

        await nats.start()
        await until(lambda: len(got) == 3)
        assert got == [b"before", b"meanwhile", b"also"]
        assert states == [PlaneState.CONNECTED, PlaneState.CONNECTING, PlaneState.CONNECTED]
        assert plane.stats == PlaneStats(published=3, received=3, connects=2, lapses=1)


async def test_many_restarts_in_a_row(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url) as plane:
        got: list[bytes] = []
        await plane.subscribe("a", lambda _, payload: got.append(payload))
        for i in range(5):
            await until(lambda: plane.state is PlaneState.CONNECTED)
            await plane.publish("a", b"%d" % i)
            await until(lambda i=i: len(got) == i + 1)
            await kill(nats)
            await nats.start()
            await until(lambda i=i: plane.stats.connects == i + 2)
        assert got == [b"0", b"1", b"2", b"3", b"4"]


async def test_restarts_at_any_moment(nats: EmbeddedNats) -> None:
    """Also in the middle of connecting, subscribing and flushing: nobody stays behind."""
    random = Random(1)
    async with contextlib.AsyncExitStack() as stack:
        planes = [await stack.enter_async_context(plane_at(nats.url)) for _ in range(4)]
        got: list[bytes] = []
        for plane in planes:
            await plane.subscribe("a", lambda _, payload: got.append(payload))
        for _ in range(15):
            await planes[0].publish("a", bytes(random.randrange(1000)))
            await kill(nats)
            await nats.start()
            for _ in range(random.randrange(60)):
                await asyncio.sleep(0)
        await until(lambda: all(p.state is PlaneState.CONNECTED for p in planes))
        for plane in planes:
            assert await plane.flush()
            await plane.publish("a", b"last")
        await until(lambda: got.count(b"last") == 16)


async def test_a_server_killed_under_load(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url) as plane:
        got: list[int] = []
        await plane.subscribe("a", lambda _, payload: got.append(int(payload[:8])))
        await until(lambda: plane.state is PlaneState.CONNECTED)
        for i in range(20_000):
            await plane.publish("a", b"%08d" % i + bytes(500))
            if i == 10_000:
                await kill(nats)
                await nats.start()
        await until(lambda: plane.stats.connects == 2)
        await plane.publish("a", b"%08d" % 20_000)
        await until(lambda: got and got[-1] == 20_000)
        # At most once, and in order.
        assert got == sorted(set(got))


async def test_a_server_that_comes_late() -> None:
    server = EmbeddedNats(free_port())
    async with plane_at(server.url) as plane:
        got: list[bytes] = []
        await plane.subscribe("a", lambda _, payload: got.append(payload))
        for i in range(3):
            await plane.publish("a", b"%d" % i)
        assert plane.state is PlaneState.CONNECTING
        await server.start()
        await until(lambda: len(got) == 3)
        assert got == [b"0", b"1", b"2"]
        assert plane.state is PlaneState.CONNECTED
    await server.stop()


async def test_the_buffer_is_bounded_and_drops_the_oldest() -> None:
    server = EmbeddedNats(free_port())
    async with plane_at(server.url, buffer_messages=10, buffer_bytes=100) as plane:
        got: list[bytes] = []
        await plane.subscribe("a", lambda _, payload: got.append(payload))
        for i in range(15):
            await plane.publish("a", b"%d" % i)
        assert plane.buffered_messages == 10
        assert plane.stats.publish_dropped == 5
        await plane.publish("a", bytes(90))
        assert plane.buffered_messages < 10
        before = plane.stats.publish_dropped
        await plane.publish("a", bytes(101))  # larger than all of it
        assert plane.buffered_messages == 0
        assert plane.stats.publish_dropped > before
        await plane.publish("a", b"last")
        await server.start()
        await until(lambda: got == [b"last"])
    await server.stop()


async def test_closing_without_a_server_counts_the_rest() -> None:
    async with plane_at(f"nats://127.0.0.1:{free_port()}") as plane:
        for _ in range(3):
            await plane.publish("a", b"x")
    assert plane.state is PlaneState.CLOSED
    assert plane.stats == PlaneStats(publish_dropped=3)


async def test_the_log_speaks_once_per_change(nats: EmbeddedNats) -> None:
    with structlog.testing.capture_logs() as lines:
        await nats.stop()
        async with plane_at(nats.url) as plane:
            attempts = 0

            async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal attempts
                attempts += 1
                writer.close()

            port = int(nats.url.rpartition(":")[2])
            server = await asyncio.start_server(count, "127.0.0.1", port)
            await until(lambda: attempts > 5)
            server.close()
            await server.wait_closed()
            await nats.start()
            await until(lambda: plane.state is PlaneState.CONNECTED)
            await kill(nats)
            await until(lambda: plane.state is PlaneState.CONNECTING)
            await nats.start()
            await until(lambda: plane.state is PlaneState.CONNECTED)
    said = [line["event"] for line in lines if "plane" in line["event"]]
    away, there = (
        "the event plane is not reachable, will keep trying",
        "the event plane is connected",
    )
    assert said == [away, there, away, there]


async def stall_and_recover() -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats())
        plane = await stack.enter_async_context(plane_at(server.url, heartbeat_s=0.05))
        got: list[bytes] = []
        await plane.subscribe("a", lambda _, payload: got.append(payload[:1]))
        async with asyncio.timeout(60):
            await until(lambda: plane.state is PlaneState.CONNECTED)
            await kill(server, signal.SIGSTOP)
            while plane.state is not PlaneState.CONNECTING:
                # More than the socket takes, so that the loss is met with a full backlog.
                await plane.publish("a", bytes(100_000))
                await asyncio.sleep(0.001)
            await kill(server, signal.SIGCONT)
            await plane.publish("a", b"!")
            await until(lambda: b"!" in got)
        assert plane.stats.connects >= 2
        await kill(server, signal.SIGKILL)  # and at the very end a loss that nobody waits for


async def test_a_server_that_stands_still_is_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_link, "FLUSH_TIMEOUT_S", 1.0)
    await stall_and_recover()


def test_the_same_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_link, "FLUSH_TIMEOUT_S", 1.0)
    uvloop.run(stall_and_recover())


async def test_a_few_messages_wake_no_task_of_their_own(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url) as plane:
        await until(lambda: plane.state is PlaneState.CONNECTED)
        got: list[bytes] = []
        tasks: set[asyncio.Task[object] | None] = set()

        def on_message(_: str, payload: bytes) -> None:
            got.append(payload)
            tasks.add(asyncio.current_task())

        await plane.subscribe("a", on_message)
        for i in range(20):
            await plane.publish("a", b"%d" % i)
            await plane.flush()
        assert plane._link is not None
        assert tasks <= {None, plane._link._client._reading_task}
        # Of many that come together the first are handed over so, and the others behind them.
        for i in range(20, 520):
            await plane.publish("a", b"%d" % i)
        await plane.flush()
        await until(lambda: len(got) == 520)
        assert got == [b"%d" % i for i in range(520)]


async def test_a_slow_consumer_loses_and_counts(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url, pending_messages=10) as slow, plane_at(nats.url) as sender:
        got: list[bytes] = []
        await until(lambda: slow.state is sender.state is PlaneState.CONNECTED)
        await slow.subscribe("a", lambda _, payload: got.append(payload))
        for i in range(5000):
            await sender.publish("a", b"%d" % i)
        await sender.flush()
        await until(lambda: len(got) + slow.stats.receive_dropped == 5000)
        assert slow.stats.receive_dropped > 0
        assert slow.stats.received == len(got)
        assert slow.stats.connects == 1


async def test_a_flood_leaves_others_their_turns(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url) as flooded, plane_at(nats.url) as sender:
        await until(lambda: flooded.state is sender.state is PlaneState.CONNECTED)
        got: list[bytes] = []
        seen_by_turn: list[int] = []
        await flooded.subscribe("a", lambda _, payload: got.append(payload))

        async def take_turns() -> None:
            while len(got) < 5000:
                seen_by_turn.append(len(got))
                await asyncio.sleep(0)
            seen_by_turn.append(len(got))

        turns = asyncio.create_task(take_turns())
        for _ in range(5000):
            await sender.publish("a", b"x")
        await sender.flush()
        await asyncio.wait_for(turns, 60)
        longest = max(after - before for before, after in pairwise(seen_by_turn))
        assert longest <= nats_link.MESSAGES_A_TURN


async def test_a_message_beyond_the_servers_limit_is_dropped(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url) as plane:
        got: list[bytes] = []
        await plane.subscribe("a", lambda _, payload: got.append(payload))
        await plane.publish("a", bytes(2 << 20))  # met in the buffer
        await until(lambda: plane.stats.publish_dropped == 1)
        await plane.publish("a", bytes(2 << 20))  # met at once
        await plane.publish("a", b"small")
        await until(lambda: got == [b"small"])
        assert plane.stats == PlaneStats(published=1, publish_dropped=2, received=1, connects=1)


async def test_a_flush_may_be_cancelled(nats: EmbeddedNats) -> None:
    async with plane_at(nats.url) as plane:
        got: list[bytes] = []
        await plane.subscribe("a", lambda _, payload: got.append(payload))
        await until(lambda: plane.state is PlaneState.CONNECTED)
        for _ in range(3):
            task = asyncio.create_task(plane.flush())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await plane.flush()
        await plane.publish("a", b"x")
        await until(lambda: got == [b"x"])
        assert plane.stats.connects == 1


async def test_several_addresses_are_tried_in_turn(nats: EmbeddedNats) -> None:
    async with plane_at(f"127.0.0.1:{free_port()}, {nats.url}") as plane:
        await until(lambda: plane.state is PlaneState.CONNECTED)


@pytest.mark.parametrize(
    "url", ["", "http://x:1", "nats://", "nats://h:port", "nats://h:70000", "a,"]
)
async def test_no_address_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NatsPlane(url)
    assert caught.value.key == "nats"


def test_the_outgoing_buffer_keeps_its_books() -> None:
    buffer = OutgoingBuffer(3, 10)
    assert [buffer.push("a", bytes(n)) for n in (4, 4, 4, 0)] == [0, 0, 1, 0]
    subject, payload = buffer.pop()
    buffer.put_back(subject, payload)
    assert buffer.push("a", bytes(10)) == 2 and len(buffer) == 2
    assert buffer.push("a", bytes(11)) == 3 and len(buffer) == 0
    assert buffer.clear() == 0


@pytest.mark.parametrize(
    "strange",
    [
        b"PUB a.\xff 1\r\nx\r\n",
        b"HPUB a.b 5 6\r\nabcdex\r\n",
        b"HPUB a.b 16 17\r\nNATS/1.0 \xff\xff\xff\r\n\r\nx\r\n",
    ],
    ids=["subject", "no headers", "headers"],
)
async def test_what_cannot_be_read_ends_no_connection(nats: EmbeddedNats, strange: bytes) -> None:
    async with plane_at(nats.url, heartbeat_s=60.0) as plane:
        got: list[bytes] = []
        await plane.subscribe("a.*", lambda _, payload: got.append(payload))
        await until(lambda: plane.state is PlaneState.CONNECTED)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(nats.url.rpartition(":")[2])
        )
        many = 2 * nats_link.AT_ONCE  # so that some wait for their handler
        writer.write(b'CONNECT {"headers":true,"verbose":false}\r\n' + strange * many)
        writer.write(b"PUB a.b 3\r\nend\r\n")
        await writer.drain()
        await until(lambda: b"end" in got)
        assert len(got) + plane.stats.receive_dropped == many + 1
        assert plane.stats.receive_dropped and plane.stats.connects == 1
        writer.close()
        await writer.wait_closed()
