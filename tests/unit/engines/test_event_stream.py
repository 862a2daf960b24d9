"""What a publisher sends and when, step by step: no loop, no plane, a clock that is an argument."""

from collections.abc import Iterable

import pytest

from dynamo_router.base.envelope import decode_envelope
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.event_stream import EventStream, Outgoing, PublisherLimits
from dynamo_router.engines.outbox import StoredRun
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Cleared, Removed
from dynamo_router.kv_events.resync_wire import ResyncRequest, encode_request
from dynamo_router.runtime.event_planes.event_plane import KV_EVENTS, KV_HEARTBEAT

PUBLISHER = 99
WORKER = WorkerWithDpRank(7, 2)


def make(runs: Iterable[StoredRun] = (), **limits: int) -> EventStream:
    stream = EventStream(
        WORKER,
        PUBLISHER,
        snapshot=lambda: runs,
        wall_ms=lambda: 1234,
        limits=PublisherLimits(**limits),
        first_event_id=1,
    )
    stream.connected = True
    return stream


def ask(stream: EventStream, first: int | None = None, last: int | None = None) -> None:
    publisher = None if first is None else PUBLISHER
    stream.on_request("s", encode_request(ResyncRequest(7, 2, publisher, first, last)))


def drain(stream: EventStream, now: float = 0.0) -> list[Outgoing]:
    messages = []
    while (message := stream.next_message(now)) is not None:
        messages.append(message)
    return messages


def test_events_leave_numbered_and_stamped() -> None:
    stream = make(max_events_per_message=2)
    for block in (1, 2, 3):
        stream.removed([block], "device")
    first, second = drain(stream)
    assert [e.event_id for e in decode_event_message(first.payload)] == [1, 2]
    assert [e.event_id for e in decode_event_message(second.payload)] == [3]
    assert [decode_envelope(m.payload).sequence for m in (first, second)] == [0, 1]
    assert decode_envelope(first.payload).publisher_id == PUBLISHER
    assert stream.wait_s(0.0) is None and stream.next_event_id == 4


def test_a_replay_comes_before_events_and_a_heartbeat_after_both() -> None:
    stream = make(max_events_per_message=1)
    stream.removed([1], "device")
    (sent,) = drain(stream)
    ask(stream, 1, 1)
    stream.removed([2], "device")
    replayed, fresh, heartbeat = drain(stream)
    assert replayed == sent
    assert decode_event_message(fresh.payload)[0].data == Removed((2,))
    assert heartbeat.topic == KV_HEARTBEAT
    assert stream.stats.replays == stream.stats.heartbeats == 1


def test_announcements_keep_their_distance_and_say_when_the_next_is_due() -> None:
    stream = make([StoredRun(None, [5], [5])])
    ask(stream)
    assert stream.wait_s(10.0) == 0.0
    assert [e.data for e in decode_event_message(drain(stream, 10.0)[0].payload)][0] == Cleared()
    ask(stream)
    assert drain(stream, 10.25) == [] and stream.wait_s(10.25) == 0.75
    assert len(drain(stream, 11.0)) == 1 and stream.stats.announcements == 2


@pytest.mark.parametrize("asked", [False, True])
def test_without_a_connection_nothing_is_due(asked: bool) -> None:
    stream = make([StoredRun(None, [5], [5])])
    stream.connected = False
    stream.removed([1], "device")
    if asked:
        ask(stream)
    stream.want_heartbeat()
    assert stream.stale and drain(stream) == [] and stream.wait_s(0.0) is None
    stream.connected = True
    events, heartbeat = drain(stream)
    assert [events.topic, heartbeat.topic] == [KV_EVENTS, KV_HEARTBEAT]
    assert [e.event_id for e in decode_event_message(events.payload)] == [1, 2]
    assert not stream.stale and stream.stats.given_up == 1


def test_a_snapshot_that_fails_is_due_again_a_second_later() -> None:
    def broken() -> Iterable[StoredRun]:
        raise LookupError("the engine's own fault")

    stream = make()
    stream._snapshot = broken
    ask(stream)
    assert drain(stream, 5.0) == [] and stream.stale
    assert stream.wait_s(5.5) == 0.5 and stream.stats.errors == 1
