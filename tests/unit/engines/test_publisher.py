"""The KV-event publisher: batching, healing and its limits, on planes that the test controls."""

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from support.kv_events.publisher_scene import RESYNC, Scene, SwitchedPlane, stored
from support.polling import until

from dynamo_router.base.envelope import decode_envelope
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.outbox import StoredRun
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import SourceState
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Cleared, Removed
from dynamo_router.runtime.event_planes.event_plane import (
    PlaneState,
)


async def test_one_turn_of_the_loop_is_one_message(scene: Scene) -> None:
    scene.publisher.stored(None, [1, 2], [1, 2])
    scene.publisher.removed([2])
    await until(lambda: scene.messages)
    scene.publisher.stored(None, [3], [3])
    await until(lambda: len(scene.messages) == 2)
    assert [event.event_id for event in scene.events] == [1, 2, 3]
    assert {event.worker for event in scene.events} == {(7, 2)}
    assert scene.data == [stored(1, 2), Removed((2,)), stored(3)]
    stats = scene.publisher.stats
    assert (stats.messages, stats.events, stats.announcements) == (2, 3, 0)


async def test_envelopes_are_numbered_per_publisher(scene: Scene) -> None:
    for block in range(3):
        scene.publisher.removed([block])
        await until(lambda block=block: len(scene.messages) == block + 1)
    envelopes = [decode_envelope(message) for message in scene.messages]
    assert [e.sequence for e in envelopes] == [0, 1, 2]
    assert {e.publisher_id for e in envelopes} == {scene.publisher.publisher_id}
    assert 0 <= scene.publisher.publisher_id < 2**53
    assert {e.topic for e in envelopes} == {"kv-events"}
    other = Scene(scene.plane)
    assert other.publisher.publisher_id != scene.publisher.publisher_id


async def test_long_bursts_keep_the_bounds() -> None:
    scene = Scene(SwitchedPlane(), max_events_per_message=2, max_blocks_per_message=3)
    await scene.start()
    scene.publisher.stored(None, range(7), range(7))
    scene.publisher.removed([1])
    scene.publisher.removed([2])
    scene.publisher.removed([3])
    await until(lambda: len(scene.events) == 6)
    for message in scene.messages:
        assert len(decode_event_message(message)) <= 2
    assert [event.event_id for event in scene.events] == list(range(1, 7))
    await scene.publisher.close()


async def test_a_request_makes_it_announce_all(scene: Scene) -> None:
    scene.cache.blocks = [1, 2, 3]
    scene.publisher.stored(None, [1, 2, 3], [1, 2, 3])
    await until(lambda: scene.messages)
    await scene.resync()
    await until(lambda: len(scene.events) == 3)
    assert [event.event_id for event in scene.events] == [1, 2, 3]
    assert scene.data[1:] == [Cleared(), stored(1, 2, 3)]
    assert scene.publisher.stats.resync_requests == 1


@pytest.mark.parametrize(
    ("worker_id", "dp_rank", "meant"),
    [(7, None, True), (7, 2, True), (7, 1, False), (8, None, False), (None, None, True)],
)
async def test_only_requests_for_this_worker_count(
    scene: Scene, worker_id: int | None, dp_rank: int | None, meant: bool
) -> None:
    await scene.resync(worker_id, dp_rank)
    await scene.idle()
    assert scene.data == ([Cleared()] if meant else [])
    assert scene.publisher.stats.resync_requests == int(meant)


IMPOSSIBLE = [
    {"worker_id": 7, "publisher_id": 1, "from_event_id": -1},
    {"worker_id": 7, "publisher_id": -1},
    {"worker_id": 7, "from_event_id": 1},
    {"worker_id": 7, "publisher_id": 1, "until_event_id": 1},
    {"worker_id": 7, "publisher_id": 1, "from_event_id": 5, "until_event_id": 4},
    {"worker_id": 7, "publisher_id": 1, "from_event_id": "x"},
]


@pytest.mark.parametrize(
    "junk",
    [b"", b"\xc1", b"{}", b"\x80", b"\x81\xa9worker_id\xa17", b"\x07"]
    + [msgspec.msgpack.encode(request) for request in IMPOSSIBLE],
)
async def test_junk_requests_are_counted(scene: Scene, junk: bytes) -> None:
    await scene.plane.publish(RESYNC, junk)
    await scene.idle()
    assert scene.data == []
    assert scene.publisher.stats.errors == 1
    assert scene.plane.stats.handler_errors == 0


async def test_requests_are_coalesced_and_spaced(scene: Scene) -> None:
    for _ in range(5):
        await scene.resync()
    await until(lambda: scene.cache.snapshots == 1)
    for _ in range(5):
        await scene.resync()
    await scene.idle()
    assert scene.cache.snapshots == 1
    scene.publisher.removed([9])  # ordinary events do not wait
    await until(lambda: scene.data == [Cleared(), Removed((9,))])
    scene.clock.advance(0.9)
    await scene.idle()
    assert scene.cache.snapshots == 1
    scene.clock.advance(0.2)
    await until(lambda: scene.cache.snapshots == 2)
    scene.clock.advance(10)
    await scene.idle()
    assert scene.cache.snapshots == 2
    assert scene.publisher.stats.announcements == 2


async def test_after_an_outage_it_announces_the_cache_of_then(scene: Scene) -> None:
    scene.publisher.stored(None, [1], [1])
    await until(lambda: scene.messages)
    scene.plane.switch(False)
    scene.publisher.removed([1])
    scene.publisher.stored(None, [2], [2])
    scene.cache.blocks = [2]
    await scene.idle()
    assert len(scene.messages) == 1 and scene.plane.lost == 0
    scene.plane.switch(True)
    await until(lambda: len(scene.events) == 3)
    assert scene.data[1:] == [Cleared(), stored(2)]
    assert [event.event_id for event in scene.events] == [1, 2, 3]
    assert scene.publisher.stats.given_up == 1


async def test_also_an_outage_without_changes_is_healed(scene: Scene) -> None:
    scene.cache.blocks = [1]
    scene.plane.switch(False)
    scene.plane.switch(True)
    await until(lambda: scene.data == [Cleared(), stored(1)])


async def test_a_flapping_plane_costs_one_announcement_a_second(scene: Scene) -> None:
    for _ in range(20):
        scene.plane.switch(False)
        scene.plane.switch(True)
        await scene.idle()
    assert scene.cache.snapshots == 1
    scene.clock.advance(1.0)
    await until(lambda: scene.cache.snapshots == 2)


async def test_a_plane_that_comes_late_hears_it_all() -> None:
    scene = Scene(SwitchedPlane(connected=False))
    scene.publisher.stored(None, [1], [1])
    scene.cache.blocks = [1]
    await scene.start()
    await scene.idle()
    assert not scene.messages
    scene.plane.switch(True)
    await until(lambda: scene.data == [Cleared(), stored(1)])
    await scene.publisher.close()


async def test_a_plane_that_comes_late_to_an_untouched_cache_hears_nothing() -> None:
    scene = Scene(SwitchedPlane(connected=False))
    await scene.start()
    scene.plane.switch(True)
    scene.publisher.stored(None, [1], [1])
    await until(lambda: scene.data == [stored(1)])
    await scene.publisher.close()


async def test_an_outage_in_the_middle_of_an_announcement() -> None:
    scene = Scene(SwitchedPlane(), max_blocks_per_message=1)
    await scene.start()
    scene.cache.blocks = list(range(1, 20))
    await scene.resync()
    while len(scene.messages) < 5:
        await asyncio.sleep(0)  # one message a turn
    scene.plane.switch(False)
    heard = len(scene.events)
    await scene.idle()
    assert len(scene.events) == heard < 20
    scene.plane.switch(True)
    scene.clock.advance(1.0)
    await until(lambda: len(scene.events) == heard + 20)
    assert scene.data[heard] == Cleared()
    assert [e.event_id for e in scene.events] == list(range(1, heard + 21))
    await scene.publisher.close()


async def test_an_announcement_is_not_cut_short_by_the_next() -> None:
    scene = Scene(SwitchedPlane(), max_blocks_per_message=1)
    await scene.start()
    scene.cache.blocks = list(range(1, 30))
    for _ in range(10):
        await scene.resync()
        scene.clock.advance(1.0)
        await asyncio.sleep(0)
    await until(lambda: len(scene.events) == 60)
    assert [i for i, data in enumerate(scene.data) if data == Cleared()] == [0, 30]
    await scene.publisher.close()


async def test_too_many_changes_at_once_become_an_announcement() -> None:
    scene = Scene(SwitchedPlane(), max_blocks_per_message=4, max_queued_blocks=8)
    await scene.start()
    for block in range(20):
        scene.publisher.stored(None, [block], [block])
    scene.cache.blocks = [1]
    await until(lambda: scene.data == [Cleared(), stored(1)])
    assert scene.publisher.stats.given_up == 1
    await scene.publisher.close()


async def test_a_snapshot_that_fails_is_tried_again(scene: Scene) -> None:
    scene.cache.broken = True
    await scene.resync()
    await until(lambda: scene.cache.snapshots == 1)
    scene.publisher.removed([1])  # on top of who knows what
    await scene.idle()
    assert scene.data == []
    assert scene.publisher.stats.errors == 1
    scene.cache.broken = False
    scene.cache.blocks = [5]
    scene.clock.advance(1.0)
    await until(lambda: scene.data == [Cleared(), stored(5)])


async def test_a_hash_that_is_none_is_healed(scene: Scene) -> None:
    scene.publisher.removed([1])
    scene.publisher.removed([-1])
    scene.cache.blocks = [2]
    await until(lambda: len(scene.events) == 3)
    assert scene.data == [Removed((1,)), Cleared(), stored(2)]
    assert [event.event_id for event in scene.events] == [1, 2, 3]
    assert scene.publisher.stats.errors == 1


async def test_columns_of_unequal_length_are_the_callers_fault(scene: Scene) -> None:
    with pytest.raises(ValueError):
        scene.publisher.stored(None, [1, 2], [1])
    await scene.idle()
    assert not scene.messages


async def test_flush_and_close_send_what_waits(scene: Scene) -> None:
    scene.publisher.stored(None, [1], [1])
    assert await scene.publisher.flush()
    assert scene.data == [stored(1)]
    scene.publisher.cleared()
    await scene.publisher.close()
    await scene.publisher.close()
    assert scene.data == [stored(1), Cleared()]
    assert scene.plane.state is PlaneState.CONNECTED
    assert not scene.plane.watchers
    await scene.resync()
    await scene.idle()
    assert scene.cache.snapshots == 0


async def test_flush_during_an_outage_says_no(scene: Scene) -> None:
    scene.plane.switch(False)
    scene.publisher.stored(None, [1], [1])
    assert not await scene.publisher.flush()


@pytest.mark.parametrize(
    "make",
    [
        lambda plane: Scene(plane, max_events_per_message=0),
        lambda plane: Scene(plane, max_queued_blocks=1),
    ],
)
async def test_bounds_that_are_none(make: Callable[[SwitchedPlane], Scene]) -> None:
    with pytest.raises(ValueError):
        make(SwitchedPlane())


async def test_a_router_follows_blocks_between_tiers_and_heals_in_all_of_them(
    scene: Scene,
) -> None:
    worker, index = WorkerWithDpRank(7, 2), EventIndex()
    chain = np.array([1, 2, 3], dtype=np.uint64)
    try:
        publisher = scene.publisher
        publisher.stored(None, [1, 2, 3], [1, 2, 3])
        publisher.stored(2, [3], [3], "host_pinned")
        publisher.removed([3])
        await until(lambda: len(scene.events) == 3)
        for message in scene.messages:
            index.apply(message)
        assert index.tier_scores(chain) == {worker: (2, 1, 0, 0)}
        publisher.removed([3], "host_pinned")
        publisher.stored(2, [3], [3], "disk")
        await until(lambda: len(scene.events) == 5)
        del scene.messages[:]  # the router misses both
        scene.cache.runs = [StoredRun(None, [1], [1]), StoredRun(1, [2], [2], "external")]
        scene.clock.advance(60)
        await scene.resync()
        await until(lambda: len(scene.events) == 4 + 2)  # a clear for each tier ever told of
        for message in scene.messages:
            index.apply(message)
        assert index.tier_scores(chain) == {worker: (1, 0, 0, 1)}
        assert index.sources()[0].state is SourceState.EXACT
    finally:
        index.close()
