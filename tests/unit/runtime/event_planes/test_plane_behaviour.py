"""What every event plane does. Each test runs on the plane in process, alone and with subscriptions
shared, and on a real nats-server.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.polling import until

from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.runtime.event_planes.event_plane import EventPlane, PlaneState
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane
from dynamo_router.runtime.event_planes.shared_plane import SharedPlane

Message = tuple[str, bytes]


@pytest.fixture(params=["local", "shared", "nats"])
async def plane(request: pytest.FixtureRequest, leaves_nothing: None) -> AsyncIterator[EventPlane]:
    if request.param == "local":
        local = LocalPlane()
        yield local
        await local.close()
        return
    if request.param == "shared":
        local = LocalPlane()
        shared = SharedPlane(local)
        yield shared
        await shared.close()
        return
    async with EmbeddedNats() as server:
        plane = NatsPlane(server.url)
        await until(lambda: plane.state is PlaneState.CONNECTED)
        yield plane
        await plane.close()


async def test_messages_arrive_whole_and_in_order(plane: EventPlane) -> None:
    got: list[Message] = []
    await plane.subscribe("a.b", lambda subject, payload: got.append((subject, payload)))
    payloads = [b"", b"\x00\r\n\xff", b"MSG a.b 1 0\r\n", bytes(100_000)]
    payloads += [b"%d" % i for i in range(2000)]
    for payload in payloads:
        await plane.publish("a.b", payload)
    await plane.flush()
    await until(lambda: len(got) == len(payloads))
    assert got == [("a.b", payload) for payload in payloads]
    assert all(type(payload) is bytes for _, payload in got)
    assert plane.stats.published == plane.stats.received == len(payloads)
    assert plane.stats.publish_dropped == plane.stats.receive_dropped == 0


async def test_messages_of_subjects_with_one_handler_keep_their_order(plane: EventPlane) -> None:
    """Each once, also between messages of others, which have handlers of their own."""
    got: list[bytes] = []
    others: list[Message] = []
    batches = 0

    def take(payloads: list[bytes]) -> None:
        nonlocal batches
        batches += 1
        got.extend(payloads)
        if batches == 2:
            raise ValueError("a batch that its handler fails on")

    for subject in ("a.events", "a.beats"):
        await plane.subscribe_batches(subject, take)
    ended = await plane.subscribe_batches("a.ended", take)
    await plane.subscribe("other", lambda subject, payload: others.append((subject, payload)))
    await ended.close()
    subjects = ("a.events", "a.beats", "a.ended", "other")
    sent = [(subjects[i % 4], b"%d" % i + bytes(i % 700)) for i in range(2000)]
    for subject, payload in sent:
        await plane.publish(subject, payload)
    await plane.flush()
    wanted = [payload for subject, payload in sent if subject in subjects[:2]]
    await until(lambda: len(got) == len(wanted) and len(others) == 500)
    assert got == wanted
    assert others == [each for each in sent if each[0] == "other"]
    assert plane.stats.received == 1500 and plane.stats.handler_errors == 1


async def test_wildcards(plane: EventPlane) -> None:
    got: dict[str, list[str]] = {}
    for pattern in ("a.*", "a.>", "*.b", ">", "a.b"):
        got[pattern] = []
        await plane.subscribe(pattern, lambda s, _, pattern=pattern: got[pattern].append(s))  # type: ignore[misc]
    for subject in ("a", "a.b", "a.b.c", "x.b", "a%2Eb.c"):
        await plane.publish(subject, b"")
    await plane.flush()
    await until(lambda: len(got[">"]) == 5)
    await until(lambda: sum(map(len, got.values())) == 11)
    assert got == {
        "a.*": ["a.b"],
        "a.>": ["a.b", "a.b.c"],
        "*.b": ["a.b", "x.b"],
        ">": ["a", "a.b", "a.b.c", "x.b", "a%2Eb.c"],
        "a.b": ["a.b"],
    }


async def test_two_handlers_on_one_subject_both_hear(plane: EventPlane) -> None:
    one: list[bytes] = []
    other: list[bytes] = []
    await plane.subscribe("a", lambda _, payload: one.append(payload))
    await plane.subscribe("a", lambda _, payload: other.append(payload))
    await plane.publish("a", b"x")
    await until(lambda: one == other == [b"x"])


async def test_a_closed_subscription_is_silent(plane: EventPlane) -> None:
    kept: list[bytes] = []
    ended: list[bytes] = []
    subscription = await plane.subscribe("a", lambda _, payload: ended.append(payload))
    await plane.subscribe("a", lambda _, payload: kept.append(payload))
    await plane.publish("a", b"1")
    await until(lambda: kept == ended == [b"1"])
    assert subscription.subject == "a"
    await subscription.close()
    await subscription.close()
    await plane.publish("a", b"2")
    await until(lambda: kept == [b"1", b"2"])
    assert ended == [b"1"]


async def test_what_was_published_before_is_not_heard(plane: EventPlane) -> None:
    got: list[bytes] = []
    await plane.publish("a", b"early")
    await plane.subscribe("a", lambda _, payload: got.append(payload))
    await plane.publish("a", b"late")
    await until(lambda: got)
    assert got == [b"late"]


async def test_a_failing_handler_costs_one_message(plane: EventPlane) -> None:
    got: list[bytes] = []

    def handler(subject: str, payload: bytes) -> None:
        if payload == b"bad":
            raise LookupError("the handler's own fault")
        got.append(payload)

    await plane.subscribe("a", handler)
    for payload in (b"1", b"bad", b"bad", b"2"):
        await plane.publish("a", payload)
    await until(lambda: got == [b"1", b"2"])
    assert plane.stats.handler_errors == 2
    assert plane.stats.received == 4


async def test_malformed_subjects_are_the_callers_fault(plane: EventPlane) -> None:
    for subject in ("", "a..b", "a b", "a\r\nb", "a.*", "a.>"):
        with pytest.raises(ValueError):
            await plane.publish(subject, b"")
    for subject in ("", "a..b", "a b", ">.a", "a*"):
        with pytest.raises(ValueError):
            await plane.subscribe(subject, lambda *_: None)
    assert plane.stats.published == plane.stats.publish_dropped == 0


async def test_a_closed_plane_counts_what_it_cannot_send(plane: EventPlane) -> None:
    states: list[PlaneState] = []
    got: list[bytes] = []
    plane.on_state(states.append)
    await plane.subscribe("a", lambda _, payload: got.append(payload))
    assert plane.state is PlaneState.CONNECTED
    assert await plane.flush()
    await asyncio.gather(plane.close(), plane.close())
    await plane.close()
    assert plane.state is PlaneState.CLOSED
    assert states == [PlaneState.CLOSED]
    await plane.publish("a", b"x")
    assert plane.stats.publish_dropped == 1
    assert not await plane.flush()
    with pytest.raises(RuntimeError):
        await plane.subscribe("a", lambda *_: None)
    assert got == []


async def test_a_state_callback_may_fail_and_may_be_taken_off(plane: EventPlane) -> None:
    seen: list[PlaneState] = []

    def fail(state: PlaneState) -> None:
        raise LookupError("the callback's own fault")

    plane.on_state(fail)
    take_off = plane.on_state(lambda _: seen.append(PlaneState.CONNECTING))
    plane.on_state(seen.append)
    take_off()
    take_off()
    await plane.close()
    assert seen == [PlaneState.CLOSED]
    assert plane.stats.handler_errors == 1


async def test_closing_sends_what_was_published(plane: EventPlane) -> None:
    if not isinstance(plane, NatsPlane):
        return  # one plane is all there is
    other = NatsPlane(plane.url)
    await until(lambda: other.state is PlaneState.CONNECTED)
    got: list[bytes] = []
    await plane.subscribe("a", lambda _, payload: got.append(payload))
    for _ in range(3000):
        await other.publish("a", bytes(2000))
    await other.close()
    await until(lambda: len(got) == 3000)
