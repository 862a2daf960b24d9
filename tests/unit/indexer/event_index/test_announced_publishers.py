"""Whose events are believed: those of the publisher that a worker announced, once it has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kv_events.messages import message_of
from support.kv_events.messages import stored as blocks_stored

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import SourceState, SourceStatus
from dynamo_router.indexer.wire.codec import encode_event_message, encode_heartbeat
from dynamo_router.indexer.wire.events import Cleared, RouterEvent, StorageTier

W, OTHER = WorkerWithDpRank(7), WorkerWithDpRank(8)
OURS, THEIRS = 11, 22


def stored(
    event_id: int,
    publisher: int,
    *blocks: int,
    worker: WorkerWithDpRank = W,
    tier: StorageTier = "device",
) -> bytes:
    return message_of(worker, event_id, blocks_stored(*blocks), publisher, tier)


def held(index: EventIndex, *blocks: int) -> dict[WorkerWithDpRank, int]:
    return index.scores(np.array([10 * b for b in blocks], dtype=np.uint64))


def source(index: EventIndex, worker: WorkerWithDpRank = W) -> SourceStatus:
    return {status.worker: status for status in index.sources()}[worker]


def test_before_anything_is_announced_whoever_publishes_is_believed(index: EventIndex) -> None:
    index.apply(stored(1, THEIRS, 1))
    assert held(index, 1) == {W: 1}
    assert index.counters()["unannounced"] == 0


def test_others_are_ignored_and_counted(index: EventIndex) -> None:
    index.announce_publisher(W, OURS)
    index.apply(stored(1, OURS, 1, 2))
    index.apply(stored(1, THEIRS, 3))
    index.apply(stored(2, THEIRS, 4, tier="disk"))
    index.apply(encode_heartbeat(W, 99, THEIRS, 99, 0))
    cleared = RouterEvent(W, 3, Cleared())
    index.apply(encode_event_message([cleared], THEIRS, 2, 0))
    assert held(index, 1, 2) == {W: 2} and held(index, 3) == {}
    status = source(index)
    assert (status.state, status.unannounced, status.messages) == (SourceState.EXACT, 4, 1)
    assert index.counters()["unannounced"] == 4
    index.apply(stored(2, OURS, 5))
    assert held(index, 5) == {W: 1}


def test_a_worker_announces_for_itself_alone(index: EventIndex) -> None:
    index.announce_publisher(W, OURS)
    index.apply(stored(1, THEIRS, 1, worker=OTHER))
    index.apply(stored(1, THEIRS, 1, worker=WorkerWithDpRank(7, 1)))
    assert held(index, 1) == {OTHER: 1, WorkerWithDpRank(7, 1): 1}


def test_what_was_believed_of_another_is_forgotten_and_asked_for(index: EventIndex) -> None:
    index.await_replays()
    index.apply(stored(1, THEIRS, 1))
    index.apply(stored(3, THEIRS, 9))  # behind a gap
    alarms = index.alarms
    index.announce_publisher(W, OURS)
    assert held(index, 1) == {}
    assert source(index).state is SourceState.REBUILDING and index.alarms > alarms
    assert index.counters()["held_now"] == 0
    index.apply(stored(2, THEIRS, 2))
    assert held(index, 2) == {}
    index.apply(encode_event_message([RouterEvent(W, 4, Cleared())], OURS, 3, 0))
    index.apply(stored(5, OURS, 5))
    assert held(index, 5) == {W: 1} and source(index).state is SourceState.EXACT


def test_the_same_announcement_again_changes_nothing(index: EventIndex) -> None:
    index.apply(stored(1, OURS, 1))
    for _ in range(3):
        index.announce_publisher(W, OURS)
    status = source(index)
    assert held(index, 1) == {W: 1} and status.state is SourceState.EXACT and not status.restarts


def test_an_engine_that_was_started_anew_is_believed_once_it_says_so(index: EventIndex) -> None:
    index.announce_publisher(W, OURS)
    index.apply(stored(1, OURS, 1))
    index.apply(stored(0, THEIRS, 2))  # its new publisher, of which we know nothing yet
    assert held(index, 1) == {W: 1}
    index.announce_publisher(W, THEIRS)
    assert held(index, 1) == {} and source(index).state is SourceState.REBUILDING
    index.apply(stored(2, OURS, 3))
    assert held(index, 3) == {}
    index.apply(stored(1, THEIRS, 4))
    assert held(index, 4) == {W: 1}


def test_one_of_whom_nothing_was_heard_is_asked_too_if_it_changed(index: EventIndex) -> None:
    index.announce_publisher(W, OURS)
    assert source(index).state is SourceState.SILENT
    index.apply(stored(0, THEIRS, 1))
    index.announce_publisher(W, THEIRS)
    assert source(index).state is SourceState.REBUILDING


def test_an_announcement_may_be_taken_back(index: EventIndex) -> None:
    index.announce_publisher(W, OURS)
    index.apply(stored(1, OURS, 1))
    index.announce_publisher(W, None)
    index.apply(stored(1, THEIRS, 2))
    assert held(index, 2) == {W: 1}


def test_a_worker_that_left_announces_anew(index: EventIndex) -> None:
    index.announce_publisher(W, OURS)
    index.unbind(W)
    index.apply(stored(1, THEIRS, 2))
    assert held(index, 2) == {W: 1}


@pytest.mark.parametrize("publisher_id", [-1, 2**64])
def test_an_id_that_does_not_fit_is_refused(index: EventIndex, publisher_id: int) -> None:
    with pytest.raises(OverflowError):
        index.announce_publisher(W, publisher_id)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("says"), st.sampled_from([OURS, THEIRS]), st.integers(0, 6)),
        st.tuples(st.just("beats"), st.sampled_from([OURS, THEIRS]), st.integers(0, 6)),
        st.tuples(st.just("announces"), st.sampled_from([OURS, THEIRS]), st.just(0)),
    ),
    max_size=20,
)


@given(_STEPS)
def test_strangers_leave_no_trace(steps: list[tuple[str, int, int]]) -> None:
    """Whatever others say in a worker's name, the index is as if they had not said it."""
    with_them, without = EventIndex(), EventIndex()
    try:
        for each in (with_them, without):
            each.announce_publisher(W, OURS)
        announced = OURS
        for what, publisher, number in steps:
            if what == "announces":
                announced = publisher
                for each in (with_them, without):
                    each.announce_publisher(W, publisher)
                continue
            message = stored(number, publisher, 100 * publisher + number)
            if what == "beats":
                message = encode_heartbeat(W, number, publisher, number, 0)
            with_them.apply(message)
            if publisher == announced:
                without.apply(message)
        blocks = [100 * publisher + n for publisher in (OURS, THEIRS) for n in range(7)]
        for block in blocks:
            assert held(with_them, block) == held(without, block)
        told, expected = source(with_them), source(without)
        assert (told.state, told.last_event_id, told.missing, told.applied) == (
            expected.state,
            expected.last_event_id,
            expected.missing,
            expected.applied,
        )
    finally:
        with_them.close()
        without.close()
