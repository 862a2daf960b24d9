"""JetStreamPlane on a real nats-server: what lasts, what is refused, and what becomes of faults."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from support.free_port import free_port
from support.polling import until
from support.servers.jetstream import JetStreamServer

from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.event_planes import EmbeddedNats, NatsPlane, PlaneState
from dynamo_router.runtime.event_planes.jetstream import (
    jetstream_plane,
    stream_client,
    stream_reader,
)
from dynamo_router.runtime.event_planes.jetstream.jetstream_plane import JetStreamPlane
from dynamo_router.runtime.event_planes.jetstream.object_store import SnapshotStore
from dynamo_router.runtime.event_planes.jetstream.stream_client import EventStreamClient
from dynamo_router.runtime.event_planes.jetstream.stream_names import StreamNames
from dynamo_router.runtime.event_planes.jetstream.stream_reader import StreamPosition
from dynamo_router.runtime.kv_stores import NatsAddress, NatsConnection, StoreError

NAMES = StreamNames.of_endpoint("dynamo", "backend", "generate")
BEATS = "namespace.dynamo.component.backend.endpoint.generate.kv-heartbeat"


class Rig:
    """A server, and planes on it that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.server = JetStreamServer(folder / "nats")
        self.stack = AsyncExitStack()

    def client(self, names: StreamNames = NAMES, url: str | None = None) -> EventStreamClient:
        connection = NatsConnection(NatsAddress(url or self.server.url))
        self.stack.push_async_callback(connection.close)
        return EventStreamClient(connection, names, max_age_s=3600.0)

    async def reader(
        self, name: str = "r1", position: StreamPosition | None = None, *, start: bool = True
    ) -> tuple[JetStreamPlane, list[bytes]]:
        plane = JetStreamPlane(
            NatsPlane(self.server.url),
            self.client(),
            reader=name,
            position=position,
            held=[BEATS],
        )
        self.stack.push_async_callback(plane.close)
        heard: list[bytes] = []
        if start:
            await plane.start()
            await plane.subscribe(NAMES.subject, lambda subject, payload: heard.append(payload))
        return plane, heard

    async def publisher(self) -> JetStreamPlane:
        plane = JetStreamPlane(NatsPlane(self.server.url), self.client())
        self.stack.push_async_callback(plane.close)
        await plane.start()
        await until(lambda: plane.state is PlaneState.CONNECTED)
        return plane


@pytest.fixture
def in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused soon."""
    monkeypatch.setattr(jetstream_plane, "START_S", 0.3)


@pytest.fixture
def silence_is_noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_client, "IDLE_HEARTBEAT_S", 0.5)
    monkeypatch.setattr(stream_reader, "SILENCE_S", 1.75)
    monkeypatch.setattr(stream_reader, "FALL_BACK_S", 0.5)
    monkeypatch.setattr(jetstream_plane, "LOOK_S", 0.2)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    made.server.start()
    try:
        yield made
    finally:
        await made.stack.aclose()
        made.server.kill()


async def say(plane: JetStreamPlane, *numbers: int) -> None:
    for number in numbers:
        await plane.publish(NAMES.subject, b"%d" % number)
    assert await plane.flush()


def said(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def test_a_reader_hears_what_was_said_before_it_came_and_since(rig: Rig) -> None:
    publisher = await rig.publisher()
    await say(publisher, 1, 2)
    plane, heard = await rig.reader()
    await until(lambda: plane.caught_up and plane.state is PlaneState.CONNECTED)
    await say(publisher, 3)
    await until(lambda: heard == said(1, 2, 3))
    await until(lambda: plane.position.sequence == 3)
    assert plane.stats.lapses == 0


async def test_what_nobody_was_given_does_not_count_as_read(rig: Rig) -> None:
    """Between the end of a subscription and that of the plane a snapshot may be saved."""
    publisher = await rig.publisher()
    plane, heard = await rig.reader()
    (subscription,) = plane._handlers
    other, others = await rig.reader("r2")
    await say(publisher, 1, 2)
    await until(lambda: plane.position.sequence == 2)
    await subscription.close()
    await say(publisher, 3)
    await until(lambda: others == said(1, 2, 3))
    assert await plane.flush()
    assert plane.reader.read == 2
    again: list[bytes] = []
    await plane.subscribe(NAMES.subject, lambda subject, payload: again.append(payload))
    await say(publisher, 4)
    await until(lambda: again == said(3, 4))
    assert heard == said(1, 2) and plane.stats.lapses == 0


async def test_a_held_message_is_not_told_to_who_has_left(rig: Rig) -> None:
    publisher = await rig.publisher()
    plane, heard = await rig.reader()
    gone: list[bytes] = []
    left: list[bytes] = []
    leaving = await plane.subscribe(BEATS, lambda subject, payload: gone.append(payload))
    await plane.subscribe(BEATS, lambda subject, payload: left.append(payload))
    await until(lambda: plane.caught_up)
    plane.reader.caught_up = False  # what they speak of is on its way
    await publisher.publish(BEATS, b"beat")
    await until(lambda: len(plane._held) == 2)
    await leaving.close()
    await say(publisher, 1)
    await until(lambda: left == [b"beat"])
    assert heard == said(1) and not gone


async def test_a_reader_that_comes_back_goes_on_behind_its_position(rig: Rig) -> None:
    publisher = await rig.publisher()
    plane, heard = await rig.reader()
    await say(publisher, 1, 2)
    await until(lambda: plane.position.sequence == 2)
    position = plane.position
    await plane.close()
    await say(publisher, 3)
    again, more = await rig.reader(position=position)
    await until(lambda: more == said(3))
    assert heard == said(1, 2) and again.stats.lapses == 0


async def test_one_that_is_not_of_ours_is_read_too(rig: Rig) -> None:
    """Dynamo's publishers of the time of JetStream."""
    plane, heard = await rig.reader()
    await until(lambda: plane.state is PlaneState.CONNECTED)
    await plane.publish(f"{NAMES.stream}.queue", b"old")
    await until(lambda: heard == [b"old"])


async def test_what_was_purged_unread_is_a_lapse(rig: Rig) -> None:
    publisher = await rig.publisher()
    plane, _ = await rig.reader()
    await say(publisher, 1, 2)
    await until(lambda: plane.position.sequence == 2)
    position = plane.position
    await plane.close()
    await say(publisher, 3, 4, 5)
    await rig.client().purge_below(5)
    again, heard = await rig.reader(position=position)
    await until(lambda: heard == said(5))
    await until(lambda: again.stats.lapses == 1)


@pytest.mark.usefixtures("silence_is_noticed_soon")
async def test_a_stream_that_was_made_anew_is_read_from_its_beginning(rig: Rig) -> None:
    publisher = await rig.publisher()
    plane, heard = await rig.reader()
    await say(publisher, 1, 2, 3)
    await until(lambda: len(heard) == 3)
    await rig.client().remove()
    client = rig.client()
    await client.ensure()
    await say(publisher, 4)
    await until(lambda: heard[3:] == said(4), 30.0)
    await until(lambda: plane.stats.lapses == 1)


async def test_a_server_that_is_killed_loses_nothing(rig: Rig) -> None:
    publisher = await rig.publisher()
    plane, heard = await rig.reader()
    await say(publisher, *range(20))
    await until(lambda: len(heard) == 20)
    rig.server.kill()
    await until(lambda: plane.state is PlaneState.CONNECTING)
    await rig.server.come_back()
    await until(lambda: publisher.state is PlaneState.CONNECTED)
    await say(publisher, 20)
    await until(lambda: heard == said(*range(21)))
    assert plane.stats.lapses == 0


async def test_a_server_that_stood_still_goes_on(rig: Rig) -> None:
    publisher = await rig.publisher()
    plane, heard = await rig.reader()
    await until(lambda: plane.state is PlaneState.CONNECTED)
    rig.server.pause()
    await publisher.publish(NAMES.subject, b"1")
    await until(lambda: plane.state is PlaneState.CONNECTING, 30.0)
    rig.server.resume()
    await until(lambda: heard == said(1), 30.0)
    assert plane.stats.lapses == 0


async def test_a_beat_waits_for_what_was_said_before_it(rig: Rig) -> None:
    publisher = await rig.publisher()
    await say(publisher, *range(2000))
    plane, heard = await rig.reader(start=False)
    order: list[bytes] = []
    await plane.start()
    await plane.subscribe(BEATS, lambda subject, payload: order.append(payload))
    await until(lambda: plane.client.connection is not None)
    await publisher.publish(BEATS, b"beat")
    await publisher.flush()
    await plane.subscribe(NAMES.subject, lambda subject, payload: order.append(payload))
    await until(lambda: len(order) >= 2000)
    await publisher.publish(BEATS, b"beat")
    await until(lambda: b"beat" in order)
    assert order[:2000] == said(*range(2000)) and not heard


async def test_two_readers_of_one_name_are_one_too_many(rig: Rig, in_short: None) -> None:
    plane, heard = await rig.reader("same")
    await until(lambda: plane.state is PlaneState.CONNECTED)
    other, _ = await rig.reader("same", start=False)
    with pytest.raises(ConfigError, match=r"router_id.*another router reads.*'same'"):
        await other.start()
    await say(plane, 1)
    await until(lambda: heard == said(1))


async def test_a_reader_that_died_makes_room_for_the_next(rig: Rig) -> None:
    plane, _ = await rig.reader("same")
    await until(lambda: plane.state is PlaneState.CONNECTED)
    link = await plane.client.connection.link()
    plane.client.names = StreamNames("x", "x", "x")  # it does not come back
    await link.close()
    again, heard = await rig.reader("same")
    await say(again, 1)
    await until(lambda: heard == said(1))


async def test_a_server_without_streams_is_refused(rig: Rig, in_short: None) -> None:
    server = await rig.stack.enter_async_context(EmbeddedNats(free_port()))
    plane = JetStreamPlane(NatsPlane(server.url), rig.client(url=server.url), reader="r")
    rig.stack.push_async_callback(plane.close)
    with pytest.raises(ConfigError, match=r"durable_kv_events: NATS at .*JetStream"):
        await plane.start()


async def test_a_stream_of_another_endpoint_is_refused_by_name(rig: Rig) -> None:
    await rig.client().ensure()
    names = StreamNames("another.subject", NAMES.stream, NAMES.bucket)
    plane = JetStreamPlane(NatsPlane(rig.server.url), rig.client(names), reader="r")
    rig.stack.push_async_callback(plane.close)
    with pytest.raises(ConfigError, match=r"is of namespace\.dynamo.*not of another\.subject"):
        await plane.start()


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"max_msg_size": 10}, "takes no messages above 10 bytes"),
        ({"discard": DiscardPolicy.NEW, "max_msgs": 5}, "refuses new messages once it is full"),
    ],
)
async def test_a_stream_that_takes_not_all_is_refused_by_name(
    rig: Rig, setting: dict[str, Any], why: str
) -> None:
    config = StreamConfig(NAMES.stream, subjects=[NAMES.subject], **setting)
    await rig.client().connection.call(lambda js: js.add_stream(config))
    plane, _ = await rig.reader(start=False)
    with pytest.raises(ConfigError, match=why) as refusal:
        await plane.start()
    assert refusal.value.key == "durable_kv_events"


async def test_a_stream_that_never_gets_full_may_refuse_what_is_new_then(rig: Rig) -> None:
    config = StreamConfig(
        NAMES.stream, subjects=[NAMES.subject], discard=DiscardPolicy.NEW, max_age=3600.0
    )
    await rig.client().connection.call(lambda js: js.add_stream(config))
    await rig.reader()


async def test_a_server_without_room_is_refused(tmp_path: Path, rig: Rig, in_short: None) -> None:
    settings = tmp_path / "small.conf"
    settings.write_text("jetstream { max_file_store: 1MB }\n")
    with JetStreamServer(tmp_path / "small", "--config", str(settings)) as small:
        plane = JetStreamPlane(NatsPlane(small.url), rig.client(url=small.url), reader="r")
        rig.stack.push_async_callback(plane.close)
        with pytest.raises(ConfigError, match=r"durable_kv_events: NATS refuses the stream"):
            await plane.start()
        await plane.close()


@pytest.mark.usefixtures("silence_is_noticed_soon")
async def test_events_go_on_while_the_stream_cannot_be_had(rig: Rig) -> None:
    publisher = await rig.publisher()
    plane, heard = await rig.reader()
    await until(lambda: plane.state is PlaneState.CONNECTED)
    await publisher.close()
    # The name is taken by a stream of something else: it cannot be made again.
    other = StreamNames("another.subject", NAMES.stream, NAMES.bucket)
    await rig.client().remove()
    await rig.client(other).ensure()
    await until(lambda: plane.fallbacks == 1, 30.0)
    await until(lambda: plane.state is PlaneState.CONNECTED)
    assert plane.caught_up and plane.stats.lapses == 1
    await say(plane, 1)
    await until(lambda: heard == said(1))
    await rig.client(other).remove()
    await until(lambda: plane.reader.is_open and plane._live is None, 30.0)
    await say(plane, 2)
    await until(lambda: heard == said(1, 2))


async def test_a_snapshot_is_replaced_and_read_back(rig: Rig) -> None:
    connection = NatsConnection(NatsAddress(rig.server.url))
    rig.stack.push_async_callback(connection.close)
    store = SnapshotStore(connection, NatsAddress(rig.server.url), NAMES)
    assert await store.position() is None and await store.load() is None
    for sequence, snapshot in ((7, bytes(range(256)) * 4096), (9, b"short")):
        position = StreamPosition("then", sequence)
        await store.save(position, snapshot)
        assert await store.position() == position
        assert await store.load() == (position, snapshot)
    await store.remove()
    assert await store.load() is None


async def test_a_snapshot_elsewhere_is_an_error_and_no_crash(rig: Rig) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    connection = NatsConnection(NatsAddress(url))
    rig.stack.push_async_callback(connection.close)
    with pytest.raises(StoreError):
        await SnapshotStore(connection, NatsAddress(url), NAMES).position()


async def test_the_server_says_how_far_readers_are(rig: Rig) -> None:
    publisher = await rig.publisher()
    await say(publisher, *range(10))
    client = rig.client()
    facts = await client.ensure()
    plane, heard = await rig.reader("a", StreamPosition(facts.created, 6))
    await until(lambda: heard == said(6, 7, 8, 9) and plane.position.sequence == 10)
    late, _ = await rig.reader("late", StreamPosition(facts.created, 3), start=False)
    await late.start()  # nobody listens there yet, so that it does not read
    end = await client.read_from(4, "b", lambda message: None)  # and this one acknowledges nothing
    found = {reader.name: reader for reader in await client.readers()}
    assert found["a"].acked == 10 and found["a"].bound
    assert found["b"].acked == 3 and found["b"].bound and "late" not in found
    await end()

    async def unbound() -> bool:
        return [r.bound for r in await client.readers() if r.name == "b"] == [False]

    await until(unbound, 60.0)
    await client.remove_reader("b")
    await client.remove_reader("b")
    assert [reader.name for reader in await client.readers()] == ["a"]
    await plane.close()
    assert await client.readers() == []
    await client.purge_below(8)
    assert await client.facts() == (facts.created, 8, 10)
