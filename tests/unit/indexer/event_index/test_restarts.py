"""Engines that restart where their numbering does not show it, and workers that left."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.kv_events.messages import stored

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import Missing, SourceState, SourceStatus
from dynamo_router.indexer.wire.codec import (
    encode_event_message,
    encode_heartbeat,
    encode_router_event,
)
from dynamo_router.indexer.wire.events import Cleared, RouterEvent

W = WorkerWithDpRank(7)
LAST = 2**64 - 1


@pytest.fixture
def index() -> Iterator[EventIndex]:
    made = EventIndex()
    made.await_replays()
    yield made
    made.close()


def message(event_id: int, sequence: int, *blocks: int, publisher: int = 1) -> bytes:
    """A stored event of unrelated blocks; none: a clear."""
    events = [
        RouterEvent(W, event_id + n, stored(block, scale=1)) for n, block in enumerate(blocks)
    ]
    if not blocks:
        events = [RouterEvent(W, event_id, Cleared())]
    return encode_event_message(events, publisher, sequence, 0)


def bare(event_id: int, block: int) -> bytes:
    return encode_router_event(RouterEvent(W, event_id, stored(block, scale=1)))


def claims(index: EventIndex) -> set[int]:
    return {b for b in range(1, 100) if index.scores(np.array([b], np.uint64)).get(W)}


def source(index: EventIndex) -> SourceStatus:
    (status,) = index.sources()
    return status


# Behind a publisher that goes on -----------------------------------------------------------------


def test_an_envelope_that_is_missing_between_two_events_in_line_hides_a_restart(
    index: EventIndex,
) -> None:
    index.apply(message(1, 0, 10))
    index.apply(message(2, 2, 20))  # the new engine's event 1 was in envelope 1
    assert claims(index) == set() and source(index).restarts == 1
    assert source(index).state is SourceState.RECOVERING
    assert source(index).missing == Missing(1, 0, 1)
    index.apply(message(1, 1, 11))
    assert claims(index) == {11, 20} and source(index).state is SourceState.EXACT


@pytest.mark.parametrize("heartbeat", [False, True])
def test_a_gap_of_more_envelopes_than_events_hides_a_restart(
    index: EventIndex, heartbeat: bool
) -> None:
    index.apply(message(1, 0, 10))
    said = encode_heartbeat(W, 3, 1, 3, 0) if heartbeat else message(3, 3, 23)
    index.apply(said)  # the new engine's event 1 was in envelope 1
    assert claims(index) == set() and source(index).restarts == 1
    assert source(index).missing == Missing(1, 0, 3 if heartbeat else 2)
    for late in (message(2, 2, 22), message(1, 1, 21), message(3, 3, 23)):
        index.apply(late)
    assert claims(index) == {21, 22, 23} and source(index).state is SourceState.EXACT
    assert source(index).restarts == 1


@pytest.mark.parametrize("heartbeat", [False, True])
def test_what_was_said_before_a_restart_is_not_taken_for_what_is_missing(
    index: EventIndex, heartbeat: bool
) -> None:
    index.apply(encode_heartbeat(W, 4, 1, 4, 0) if heartbeat else message(4, 4, 24))
    for late in (message(1, 0, 10), message(2, 1), encode_heartbeat(W, 2, 1, 1, 0)):
        index.apply(late)  # event 0 or 1 of the new engine was in envelope 0 or 1, or later
    assert claims(index) == set() and source(index).duplicates == 2
    assert source(index).missing == Missing(1, 0, 4 if heartbeat else 3)


@pytest.mark.parametrize("heartbeat", [False, True])
def test_what_comes_late_shows_a_restart_after_it(index: EventIndex, heartbeat: bool) -> None:
    index.apply(message(1, 0, 10))
    index.apply(message(11, 2, 31))  # 2 to 10 in envelope 1, or 1 to 10 of a new engine
    index.apply(encode_heartbeat(W, 12, 1, 1, 0) if heartbeat else message(12, 1, 12))
    assert claims(index) == set() and source(index).restarts == 1
    assert source(index).state is SourceState.RECOVERING
    index.give_up(W)
    assert source(index).state is SourceState.REBUILDING


def test_without_anybody_to_ask_it_is_not_exact() -> None:
    index = EventIndex()
    index.apply(message(1, 0, 10))
    index.apply(message(2, 2, 20))
    assert claims(index) == {20} and source(index).state is SourceState.REBUILDING
    index.close()


def test_a_restart_in_a_gap_shows_when_the_gap_is_filled(index: EventIndex) -> None:
    index.apply(message(1, 0, 10))
    index.apply(message(11, 3, 31))  # of the new engine: 1 in envelope 1, 2 to 10 in envelope 2
    assert source(index).missing == Missing(1, 2, 10)
    index.apply(message(2, 2, *range(22, 31)))
    assert 10 not in claims(index) and source(index).restarts == 1
    assert source(index).state is SourceState.RECOVERING
    index.apply(message(1, 1, 21))
    index.apply(message(2, 2, *range(22, 31)))
    index.apply(message(11, 3, 31))
    assert claims(index) == set(range(21, 32)) and source(index).state is SourceState.EXACT


def test_an_event_that_comes_again_in_a_later_envelope_is_another_one(index: EventIndex) -> None:
    index.apply(message(1, 0, 10))
    index.apply(message(11, 2, 31))
    index.apply(message(1, 1, *range(21, 31)))  # 1 to 10 of the new engine
    assert 10 not in claims(index) and source(index).restarts == 1
    index.apply(message(11, 2, 31))
    assert claims(index) == set(range(21, 32)) and source(index).state is SourceState.EXACT


def test_what_waits_is_looked_at_again_in_its_turn(index: EventIndex) -> None:
    index.apply(message(1, 0, 10))
    index.apply(message(4, 4, 24))  # of the new engine: envelopes 2 to 4 begin with event 1
    index.apply(message(2, 1, 12))
    index.apply(message(3, 2, 13))
    assert claims(index) == set() and source(index).restarts == 1
    assert source(index).state is SourceState.RECOVERING


def test_events_of_one_envelope_follow_each_other(index: EventIndex) -> None:
    index.apply(message(1, 0, 10, 11, 12))
    index.apply(message(4, 1, 13, 14))
    assert claims(index) == {10, 11, 12, 13, 14}
    assert source(index).state is SourceState.EXACT and source(index).restarts == 0


# Where a numbering begins ------------------------------------------------------------------------


def test_a_lost_event_0_is_missed(index: EventIndex) -> None:
    index.apply(message(1, 1, 11))
    assert source(index).missing == Missing(1, 0, 0) and claims(index) == set()
    index.apply(message(0, 0, 10))
    assert claims(index) == {10, 11} and source(index).state is SourceState.EXACT


def test_an_engine_that_began_with_0_begins_so_again(index: EventIndex) -> None:
    index.apply(message(0, 0, 10))
    index.apply(message(1, 1, 11))
    index.apply(message(1, 3, 21))
    assert claims(index) == set() and source(index).missing == Missing(1, 0, 0)
    index.apply(message(0, 2, 20))
    assert claims(index) == {20, 21} and source(index).state is SourceState.EXACT


def test_sequences_wrap_around(index: EventIndex) -> None:
    index.apply(message(1, LAST - 1))
    for event_id, sequence in ((2, LAST), (3, 0), (4, 1), (5, 2)):
        index.apply(message(event_id, sequence, event_id))
    assert claims(index) == {2, 3, 4, 5}
    assert source(index).state is SourceState.EXACT and source(index).duplicates == 0
    index.apply(encode_heartbeat(W, 5, 1, 2, 0))
    index.apply(message(3, 0, 3))
    assert source(index).state is SourceState.EXACT and source(index).duplicates == 1


def test_an_impossible_id_is_refused(index: EventIndex) -> None:
    index.apply(message(1, 0, 1))
    index.apply(message(LAST, 1, 2))
    index.apply(encode_heartbeat(W, LAST, 1, 1, 0))
    assert claims(index) == {1} and source(index).state is SourceState.EXACT
    assert index.counters()["invalid"] == 2


# Without envelopes -------------------------------------------------------------------------------


def test_events_without_envelopes_are_never_exact(index: EventIndex) -> None:
    for event_id in range(1, 4):
        index.apply(bare(event_id, event_id))
    assert claims(index) == {1, 2, 3} and source(index).state is SourceState.APPROXIMATE


@pytest.mark.parametrize("first", [0, 1, 2, 30, 49])
def test_an_id_without_envelope_that_goes_back_is_a_restart(index: EventIndex, first: int) -> None:
    for event_id in range(50):
        index.apply(bare(event_id, 1 + event_id))
    for event_id in range(first, first + 10):
        index.apply(bare(event_id, 60 + event_id - first))
    index.give_up(W)
    assert claims(index) == set(range(60, 70)) and source(index).restarts == 1
    assert source(index).state is not SourceState.EXACT


def test_an_envelope_ends_a_source_without(index: EventIndex) -> None:
    index.apply(bare(1, 1))
    index.apply(message(1, 0, 2, publisher=0))
    assert claims(index) == {2} and source(index).state is SourceState.EXACT
    index.apply(bare(1, 3))
    assert claims(index) == {3} and source(index).state is SourceState.APPROXIMATE


# Others ------------------------------------------------------------------------------------------


def test_what_earlier_publishers_said_is_known(index: EventIndex) -> None:
    for publisher in range(1, 5):
        index.apply(message(1, 0, 10 * publisher, publisher=publisher))
    for publisher in range(1, 4):
        index.apply(message(1, 0, 10 * publisher, publisher=publisher))
    assert claims(index) == {40} and source(index).restarts == 3
    assert source(index).duplicates == 3 and source(index).state is SourceState.EXACT


def test_late_events_of_a_worker_that_left_are_not_believed(index: EventIndex) -> None:
    index.bind(W, 0)
    index.apply(message(1, 0, 1))
    index.unbind(W)
    for late in (message(1, 0, 1), message(2, 1, 2), encode_heartbeat(W, 2, 1, 1, 0)):
        index.apply(late)
    assert index.sources() == [] and index.counters()["departed"] == 3
    index.bind(W, 0)
    index.apply(message(1, 0, 1))  # even now
    assert claims(index) == set() and source(index).state is SourceState.SILENT
    index.apply(message(1, 0, 5, publisher=2))
    assert claims(index) == {5} and source(index).state is SourceState.EXACT


def test_a_worker_that_comes_back_with_its_publisher_goes_on(index: EventIndex) -> None:
    index.bind(W, 0)
    index.apply(message(1, 0, 1))
    index.unbind(W)
    index.apply(message(2, 1, 2))
    index.bind(W, 0)
    index.apply(message(3, 2))
    index.apply(message(4, 3, 4))
    assert claims(index) == {4} and source(index).state is SourceState.EXACT


def test_bare_events_of_a_worker_that_left_are_not_believed(index: EventIndex) -> None:
    index.bind(W, 0)
    index.apply(bare(1, 1))
    index.unbind(W)
    index.apply(bare(2, 2))
    assert index.sources() == []
    index.bind(W, 0)
    index.apply(bare(3, 3))
    assert claims(index) <= {3}


def test_a_new_process_may_publish_before_it_is_here(index: EventIndex) -> None:
    index.bind(W, 0)
    index.apply(message(1, 0, 1))
    index.unbind(W)
    index.apply(message(1, 0, 5, publisher=2))
    index.apply(message(1, 0, 1))
    assert claims(index) == {5}
    index.bind(W, 0)
    index.apply(message(1, 0, 1))
    assert claims(index) == {5} and source(index).state is SourceState.EXACT
