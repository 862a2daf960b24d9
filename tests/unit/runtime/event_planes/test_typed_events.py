"""EventPublisher and EventSubscriber, in one process and over a real nats-server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from support.polling import until

from dynamo_router.base.envelope import EventEnvelope, encode_envelope
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.runtime.event_planes.event_plane import PlaneState
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane
from dynamo_router.runtime.event_planes.shared_plane import SharedPlane
from dynamo_router.runtime.event_planes.typed_events import EventPublisher, EventSubscriber

SUBJECT = "namespace.n.component.c.endpoint.e.load"


class Load(msgspec.Struct):
    worker: int
    share: float = 0.0


@pytest.fixture(params=["local", "nats"])
async def plane(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    server = EmbeddedNats()
    made: LocalPlane | NatsPlane = LocalPlane()
    if request.param == "nats":
        await server.start()
        made = NatsPlane(server.url)
        await until(lambda: made.state is PlaneState.CONNECTED)
    try:
        yield made
    finally:
        await made.close()
        await server.stop()


async def test_values_arrive_as_they_are_and_in_order(plane: Any) -> None:
    subscriber = await EventSubscriber.open(plane, SUBJECT, Load)
    publisher: EventPublisher[Load] = EventPublisher(plane, SUBJECT)
    for worker in range(3):
        await publisher.publish(Load(worker, 0.5))
    heard = [await subscriber.next() for _ in range(3)]
    assert [event.value for event in heard] == [Load(worker, 0.5) for worker in range(3)]
    assert [event.sequence for event in heard] == [0, 1, 2]
    assert {event.publisher_id for event in heard} == {publisher.publisher_id}
    await subscriber.close()


async def test_one_member_of_a_group_gets_each_value(plane: Any) -> None:
    members = [await EventSubscriber.open(plane, SUBJECT, Load, group="g") for _ in range(2)]
    alone = await EventSubscriber.open(plane, SUBJECT, Load)
    other = await EventSubscriber.open(plane, SUBJECT, Load, group="h")
    publisher: EventPublisher[Load] = EventPublisher(plane, SUBJECT)
    for worker in range(64):
        await publisher.publish(Load(worker))
    await until(lambda: alone.stats.received == other.stats.received == 64)
    await until(lambda: sum(member.stats.received for member in members) == 64)
    assert all(member.stats.received for member in members)
    heard = Counter[int]()
    for member in members:
        await member.close()
        heard.update([event.value.worker async for event in member])
    assert heard == Counter(range(64))


async def test_a_member_that_leaves_leaves_its_part_to_the_others(plane: Any) -> None:
    stays, leaves = [await EventSubscriber.open(plane, SUBJECT, Load, group="g") for _ in range(2)]
    await leaves.close()
    publisher: EventPublisher[Load] = EventPublisher(plane, SUBJECT)
    for worker in range(8):
        await publisher.publish(Load(worker))
    await until(lambda: stays.stats.received == 8)
    assert leaves.stats.received == 0


async def test_what_is_none_of_the_type_is_counted_and_passed_over(plane: Any) -> None:
    subscriber = await EventSubscriber.open(plane, SUBJECT, Load)
    wrong = EventEnvelope(1, 0, 0, "load", msgspec.msgpack.encode({"worker": "x"}))
    for junk in (b"\xc1", encode_envelope(wrong)):
        await plane.publish(SUBJECT, junk)
    publisher: EventPublisher[Load] = EventPublisher(plane, SUBJECT)
    await publisher.publish(Load(1))
    assert (await subscriber.next()).value == Load(1)
    assert subscriber.stats.undecodable == 2


async def test_what_waits_is_bounded_and_a_loss_shows() -> None:
    plane = LocalPlane()
    subscriber = await EventSubscriber.open(plane, SUBJECT, Load, max_waiting=2)
    publisher: EventPublisher[Load] = EventPublisher(plane, SUBJECT)
    for worker in range(5):
        await publisher.publish(Load(worker))
    assert [(await subscriber.next()).value.worker for _ in range(2)] == [3, 4]
    assert subscriber.stats.dropped == 3 and subscriber.stats.missed == 0
    late = EventEnvelope(publisher.publisher_id, 9, 0, "load", msgspec.msgpack.encode(Load(9)))
    await plane.publish(SUBJECT, encode_envelope(late))
    assert subscriber.stats.missed == 4
    await plane.close()


async def test_a_subscriber_that_is_closed_ends_who_waits() -> None:
    plane = LocalPlane()
    subscriber = await EventSubscriber.open(plane, SUBJECT, Load)

    async def all_of_them() -> list[int]:
        return [event.value.worker async for event in subscriber]

    waiting = asyncio.create_task(all_of_them())
    await EventPublisher[Load](plane, SUBJECT).publish(Load(3))
    await until(lambda: not subscriber._waiting)
    await subscriber.close()
    assert await waiting == [3]
    with pytest.raises(RuntimeError, match="closed"):
        await subscriber.next()
    await plane.close()


async def test_a_plane_without_groups_says_so() -> None:
    plane = SharedPlane(LocalPlane())
    with pytest.raises(ValueError, match="no groups"):
        await EventSubscriber.open(plane, SUBJECT, Load, group="g")
    with pytest.raises(ValueError, match="at least 1"):
        await EventSubscriber.open(plane, SUBJECT, Load, max_waiting=0)
    await plane.close()
