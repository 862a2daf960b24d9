"""Workers that nobody told of but their own messages: bounded, and nobody else's concern."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.kv_events.messages import message_of
from support.kv_events.messages import stored as blocks_stored

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import SourceState
from dynamo_router.indexer.wire.codec import (
    encode_cache_event,
    encode_heartbeat,
)
from dynamo_router.indexer.wire.events import RouterEvent, Stored, StoredBlock

KNOWN = WorkerWithDpRank(2**40)
CHAIN = np.array([100], np.uint64)


@pytest.fixture
def index() -> Iterator[EventIndex]:
    made = EventIndex(max_workers=3)
    yield made
    made.close()


def stored(worker: WorkerWithDpRank, event_id: int = 1, publisher: int = 2) -> bytes:
    return message_of(worker, event_id, blocks_stored(10), publisher)


def strangers(index: EventIndex, count: int) -> None:
    for worker_id in range(count):
        index.apply(stored(WorkerWithDpRank(worker_id)))


def overlap(index: EventIndex, number: int = 0) -> int:
    out = np.zeros(4, np.uint32)
    index.match(CHAIN, out)
    return int(out[number])


def test_a_bound_worker_never_loses_its_binding(index: EventIndex) -> None:
    others = [WorkerWithDpRank(2**41 + n) for n in range(3)]
    for number, worker in enumerate((*others, KNOWN)):
        index.bind(worker, number)
    strangers(index, 10)
    index.apply(stored(KNOWN))
    assert overlap(index, 3) == 1
    for other in others:
        index.unbind(other)
    index.apply(stored(KNOWN, 2))
    assert overlap(index, 3) == 1


def test_strangers_beyond_the_bound_are_refused_and_counted(index: EventIndex) -> None:
    strangers(index, 10)
    assert len(index.sources()) == 3 and index.counters()["refused"] == 7
    index.apply(encode_heartbeat(WorkerWithDpRank(50), 3, 1, 2, 0))
    assert len(index.sources()) == 3 and index.counters()["refused"] == 8
    strangers(index, 3)  # those that are in are heard
    assert index.counters()["refused"] == 8


def test_a_worker_that_is_bound_after_the_strangers_came_is_indexed(index: EventIndex) -> None:
    strangers(index, 10)
    index.bind(KNOWN, 0)
    index.apply(stored(KNOWN))
    assert overlap(index) == 1


def test_one_that_is_bound_or_announced_makes_room_for_another(index: EventIndex) -> None:
    strangers(index, 3)
    index.bind(WorkerWithDpRank(0), 0)
    index.announce_publisher(WorkerWithDpRank(1), 2)
    assert overlap(index) == 1  # what it said before counts
    strangers(index, 10)
    assert len(index.sources()) == 5


def test_one_that_left_makes_room_for_another(index: EventIndex) -> None:
    strangers(index, 3)
    index.unbind(WorkerWithDpRank(1))
    index.apply(stored(WorkerWithDpRank(9)))
    assert len(index.sources()) == 3 and index.counters()["refused"] == 0


def test_unnumbered_events_are_the_callers_word(index: EventIndex) -> None:
    strangers(index, 3)
    event = encode_cache_event(RouterEvent(KNOWN, 1, Stored(None, [StoredBlock(10, 100)])))
    index.apply_cache_event(KNOWN, event)
    index.apply(stored(KNOWN))
    assert KNOWN in index.scores(CHAIN) and index.counters()["refused"] == 0


def test_what_strangers_send_costs_no_memory_beyond_the_bound(index: EventIndex) -> None:
    strangers(index, 100)
    before = index.counters()["index_bytes"]
    strangers(index, 20_000)
    assert index.counters()["index_bytes"] == before and len(index.sources()) == 3


def chain(
    worker: WorkerWithDpRank, event_id: int, *blocks: int, parent: int | None = None
) -> bytes:
    return message_of(worker, event_id, blocks_stored(*blocks, parent=parent, scale=1), 2)


def test_a_stranger_holds_no_more_than_its_share_until_it_is_known() -> None:
    index = EventIndex(max_unknown_blocks=8)
    index.apply(chain(KNOWN, 1, *range(1, 9)))
    index.apply(chain(KNOWN, 2, 9, parent=8))
    (source,) = index.sources()
    assert source.blocks == 8 and source.state is SourceState.REBUILDING
    assert index.counters()["refused"] == 1
    index.apply(chain(KNOWN, 3, 50))
    index.bind(KNOWN, 0)
    index.apply(chain(KNOWN, 4, 9, parent=8))
    assert index.sources()[0].blocks == 9 and index.counters()["refused"] == 2
    index.close()


def test_strangers_leave_room_behind_gaps_for_others() -> None:
    index = EventIndex(max_unknown_blocks=100)
    index.await_replays(max_events=40)
    index.bind(KNOWN, 0)
    for worker_id in range(5):
        worker = WorkerWithDpRank(worker_id)
        index.apply(chain(worker, 1, 1))
        for event_id in range(3, 20):
            index.apply(chain(worker, event_id, event_id))
    assert index.counters()["held_now"] <= 10
    index.apply(chain(KNOWN, 1, 1))
    for event_id in range(3, 30):
        index.apply(chain(KNOWN, event_id, event_id))
    assert index.counters()["held_now"] >= 27
    index.apply(chain(KNOWN, 2, 2))
    known = {source.worker: source for source in index.sources()}[KNOWN]
    assert known.state is SourceState.EXACT and known.blocks == 29
    index.close()
