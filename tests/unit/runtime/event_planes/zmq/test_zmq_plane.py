"""Planes over real sockets, whose publishers are found in a store of files."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
import zmq
from support.adversity.fault_proxy import FaultProxy
from support.adversity.zmq_messages import CUT_SHORT
from support.polling import until

from dynamo_router.base.envelope import EventEnvelope, encode_envelope
from dynamo_router.runtime.event_planes import PlaneState, endpoint_subject
from dynamo_router.runtime.event_planes.zmq import (
    EVENT_CHANNELS,
    Channel,
    ZmqPlane,
    encode_multipart,
)
from dynamo_router.runtime.event_planes.zmq import channels as channels_module
from dynamo_router.runtime.event_planes.zmq import sockets as sockets_module
from dynamo_router.runtime.event_planes.zmq.sockets import Inlet
from dynamo_router.runtime.event_planes.zmq.zmq_plane import ZmqSubscription
from dynamo_router.runtime.kv_stores import FileStore, StoreError

SUBJECT = endpoint_subject("n", "c", "e", "kv-events")
OTHER = endpoint_subject("n", "c", "e", "kv-resync")
Planes = Callable[[], ZmqPlane]


@pytest.fixture
async def planes(tmp_path: Path) -> AsyncIterator[Planes]:
    async with AsyncExitStack() as stack:

        def new() -> ZmqPlane:
            plane = ZmqPlane(FileStore(tmp_path / "store"), lease_ttl_s=20.0)
            stack.push_async_callback(plane.close)
            return plane

        yield new


def message(sequence: int, payload: bytes = b"x", publisher_id: int = 7) -> bytes:
    return encode_envelope(EventEnvelope(publisher_id, sequence, 0, "kv-events", payload))


class Heard:
    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def __call__(self, subject: str, payload: bytes) -> None:
        assert subject == SUBJECT
        self.messages.append(payload)


async def connected(plane: ZmqPlane, heard: Heard) -> None:
    """Publish until the first message is heard: who joins late misses what was before."""
    sequences = count()

    async def is_heard() -> bool:
        await plane.publish(SUBJECT, message(next(sequences)))
        return bool(heard.messages)

    await until(is_heard)


async def test_messages_arrive_whole_and_in_their_order(planes: Planes) -> None:
    here, there, heard = planes(), planes(), Heard()
    await there.subscribe(SUBJECT, heard)
    await here.offer(SUBJECT, 7)
    await connected(here, heard)
    heard.messages.clear()
    sent = [message(n, bytes(n % 5000)) for n in range(20_000, 21_000)]
    for payload in sent:
        await here.publish(SUBJECT, payload)
    await until(lambda: heard.messages[-1:] == sent[-1:])
    assert [m for m in heard.messages if m in sent] == sent
    assert there.stats.garbled == 0 and here.stats.published >= 1000


async def test_many_publishers_come_and_go(planes: Planes) -> None:
    here, there, heard = planes(), planes(), Heard()
    subscription = await there.subscribe(SUBJECT, heard)
    for publisher_id in range(1, 21):
        await here.offer(SUBJECT, publisher_id)
    await until(lambda: subscription.connected_to == 20)
    await until(lambda: here.registered)
    for publisher_id in range(1, 20):
        await here.withdraw(publisher_id)
    await until(lambda: subscription.connected_to == 1)
    await here.close()
    await until(lambda: subscription.connected_to == 0)
    assert here.state is PlaneState.CLOSED


async def test_a_publisher_that_starts_anew_is_heard_again(planes: Planes) -> None:
    first, there, heard = planes(), planes(), Heard()
    await there.subscribe(SUBJECT, heard)
    await connected(first, heard)
    await first.close()
    heard.messages.clear()
    await connected(planes(), heard)


async def test_messages_without_an_envelope_have_the_planes_own_id(planes: Planes) -> None:
    here, there = planes(), planes()
    heard: list[bytes] = []
    await there.subscribe(OTHER, lambda subject, payload: heard.append(payload))
    await here.offer(OTHER)

    async def is_heard() -> bool:
        await here.publish(OTHER, b"\x81\xa1a\x01")
        return bool(heard)

    await until(is_heard)
    assert set(heard) == {b"\x81\xa1a\x01"} and there.stats.garbled == 0


class Hostile:
    """A socket in place of a publisher, under a key that names publisher 7."""

    def __init__(self, folder: Path) -> None:
        self.store = FileStore(folder / "store")
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUB)
        self.socket.bind("tcp://127.0.0.1:*")
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def register(self, channel: Channel, key: str | None = None) -> None:
        bucket = self.store.bucket(EVENT_CHANNELS)
        await bucket.put(channel.key if key is None else key, channel.value())

    def says(self, payload: bytes) -> None:
        self.socket.send_multipart(encode_multipart("kv-events", 7, 0, payload))

    async def close(self) -> None:
        self.socket.close(0)
        self.context.term()
        await self.store.close()


@pytest.fixture
async def hostile(tmp_path: Path) -> AsyncIterator[Hostile]:
    made = Hostile(tmp_path)
    yield made
    await made.close()


async def test_garbage_and_other_publishers_words_are_refused(
    planes: Planes, hostile: Hostile
) -> None:
    there, heard = planes(), Heard()
    subscription = await there.subscribe(SUBJECT, heard)
    await hostile.register(Channel.over_zmq(SUBJECT, 7, hostile.address))
    await until(lambda: subscription.connected_to == 1)
    good = encode_multipart("kv-events", 7, 0, b"good")

    def is_connected() -> bool:
        hostile.socket.send_multipart(good)
        return bool(heard.messages)

    await until(is_connected)
    bad = [
        [b"kv-events"],
        [b"kv-events", *[b""] * 40],
        encode_multipart("kv-events", 8, 0, b"another publisher's"),
        encode_multipart("kv-events-2", 7, 0, b"another topic"),
        [*good[:3], good[3][:-1]],
    ]
    for frames in bad:
        hostile.socket.send_multipart(frames)
    last = encode_multipart("kv-events", 7, 1, b"last")
    # Again and again: after a refused message the connection may be made anew.
    await until(lambda: hostile.socket.send_multipart(last) or heard.messages[-1] == b"last")
    assert set(heard.messages) == {b"good", b"last"}
    assert there.stats.garbled == len(bad)
    hostile.socket.send_multipart([b"kv-events", *[b""] * 1000])
    await until(lambda: there.stats.garbled == len(bad) + 1)


async def test_an_inlet_that_was_closed_by_what_it_heard_stays_closed(hostile: Hostile) -> None:
    closed = asyncio.Event()
    inlet = Inlet(hostile.context, hostile.address, "kv-events", lambda _: True, closed.set)
    too_many = [b"kv-events", *[b""] * 1000]
    await until(lambda: hostile.socket.send_multipart(too_many) or closed.is_set())
    assert inlet.closed and inlet._renewal is None


async def test_who_sends_a_message_that_is_too_long_is_not_heard_any_more(
    planes: Planes, hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "MOST_BYTES", 100_000)
    there, heard = planes(), Heard()
    await there.subscribe(SUBJECT, heard)
    await hostile.register(Channel.over_zmq(SUBJECT, 7, hostile.address))

    def is_connected() -> bool:
        hostile.socket.send_multipart(encode_multipart("kv-events", 7, 0, b"good"))
        return bool(heard.messages)

    await until(is_connected)
    hostile.socket.send_multipart(encode_multipart("kv-events", 7, 0, bytes(200_000)))
    hostile.socket.send_multipart(encode_multipart("kv-events", 7, 0, b"more"))
    other, told = planes(), Heard()
    await there.subscribe(SUBJECT, told)
    await connected(other, told)
    assert b"more" not in heard.messages and not any(len(m) > 1000 for m in heard.messages)


async def test_a_publisher_is_heard_again_after_bytes_that_are_no_zmq(
    planes: Planes, hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "RENEW_S", 0.2)
    there, heard = planes(), Heard()
    proxy = FaultProxy(int(hostile.address.rpartition(":")[2]))
    await proxy.start()
    try:
        await there.subscribe(SUBJECT, heard)
        await hostile.register(Channel.over_zmq(SUBJECT, 7, f"tcp://{proxy.address}"))
        for number in range(3):
            said = b"%d" % number
            await until(lambda said=said: hostile.says(said) or said in heard.messages)
            connections = proxy.connections
            proxy.inject("down", b"\xff" * 64)
            await until(lambda before=connections: proxy.connections > before)
    finally:
        await proxy.close()


async def test_a_publisher_is_heard_again_that_came_out_of_step(
    planes: Planes, hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "RENEW_S", 0.2)
    monkeypatch.setattr(sockets_module, "PONG_MS", 200)
    there, heard = planes(), Heard()
    proxy = FaultProxy(int(hostile.address.rpartition(":")[2]))
    await proxy.start()
    whole = b"\x01\x00\x00\x01a"
    try:
        await there.subscribe(SUBJECT, heard)
        await hostile.register(Channel.over_zmq(SUBJECT, 7, f"tcp://{proxy.address}"))
        for beginning in CUT_SHORT:
            await until(lambda: hostile.says(b"good") or b"good" in heard.messages)
            heard.messages.clear()
            connections = proxy.connections
            proxy.inject("down", beginning)
            await until(lambda before=connections: proxy.connections > before)
        connections = proxy.connections
        await until(lambda: proxy.inject("down", whole) or proxy.connections > connections)
        await until(lambda: hostile.says(b"at last") or b"at last" in heard.messages)
    finally:
        await proxy.close()


async def test_a_key_speaks_for_itself_alone(planes: Planes, hostile: Hostile) -> None:
    there = planes()
    subscription = await there.subscribe(SUBJECT, Heard())
    mine = Channel.over_zmq(SUBJECT, 7, hostile.address)
    await hostile.register(mine, Channel.over_zmq(SUBJECT, 8, hostile.address).key)
    await hostile.register(Channel.over_zmq(SUBJECT, 9, hostile.address))
    await until(lambda: subscription.connected_to == 1)
    nats = Channel("n", "c", "e", "kv-events", 10, "Nats", "namespace.n")
    await hostile.register(nats)
    await hostile.register(Channel.over_zmq(SUBJECT, 11, hostile.address))
    await until(lambda: subscription.connected_to == 2)


async def test_an_address_that_takes_no_socket_stops_nothing(
    planes: Planes, hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, heard = planes(), Heard()
    subscription = await there.subscribe(SUBJECT, heard)
    no_address = Channel.over_zmq(SUBJECT, 8, "tcp://.host:5")
    # What no check of ours refuses, but the library does.
    monkeypatch.setattr(channels_module, "check_address", lambda address: address)
    await hostile.register(no_address)
    await until(lambda: subscription.left_out == 1)
    await hostile.register(Channel.over_zmq(SUBJECT, 7, hostile.address))
    await until(lambda: subscription.connected_to == 1)
    async with asyncio.timeout(60):
        await there.close()


async def test_where_nobody_can_listen_it_says_so(tmp_path: Path) -> None:
    plane = ZmqPlane(FileStore(tmp_path / "store"), "192.0.2.1")
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        await plane.offer(SUBJECT)
    async with asyncio.timeout(60):
        await plane.close()


async def test_a_subscription_that_is_refused_leaves_nothing(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = planes()

    async def refused(self: ZmqSubscription) -> None:
        raise StoreError("not for you", transient=False)

    monkeypatch.setattr(ZmqSubscription, "start", refused)
    with pytest.raises(StoreError):
        await plane.subscribe(SUBJECT, Heard())
    assert not plane._subscriptions


async def test_a_closed_plane_takes_nothing(planes: Planes) -> None:
    plane = planes()
    with pytest.raises(ValueError):
        await plane.publish("no.endpoint", b"")
    await plane.close()
    await plane.close()
    await plane.publish(SUBJECT, message(0))
    assert plane.stats.publish_dropped == 1
    with pytest.raises(RuntimeError):
        await plane.subscribe(SUBJECT, Heard())
    with pytest.raises(RuntimeError, match="closed"):
        await plane.offer(SUBJECT, 7)
    assert not plane._channels and not plane._outlets
