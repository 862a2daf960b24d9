"""Events behind a gap, in any order: each is applied once, in its turn, and quickly found."""

import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import Missing, SourceState, SourceStatus
from dynamo_router.indexer.wire.codec import EventWriter

W = WorkerWithDpRank(7)


@pytest.fixture
def index() -> Iterator[EventIndex]:
    made = EventIndex()
    made.await_replays(max_events=1 << 17)
    yield made
    made.close()


def messages(count: int) -> list[bytes]:
    """Event n stores block n."""
    writer = EventWriter()
    made = []
    for n in range(1, count + 1):
        writer.stored(*W, n, None, [n], [n])
        made.append(writer.message(1, n - 1, 0))
    return made


def source(index: EventIndex) -> SourceStatus:
    (status,) = index.sources()
    return status


def apply(index: EventIndex, some: Iterable[bytes]) -> None:
    for message in some:
        index.apply(message)


@given(st.permutations(range(1, 13)), st.lists(st.integers(1, 12), max_size=8))
def test_any_order_and_any_repetition_ends_in_the_same(order: list[int], again: list[int]) -> None:
    index = EventIndex()
    index.await_replays()
    said = messages(12)
    heard: set[int] = set()
    try:
        for n in [*order[:6], *again, *order[6:]]:
            index.apply(said[n - 1])
            heard.add(n)
            done = next(k for k in range(13) if k + 1 not in heard)
            waiting = {k for k in heard if k > done}
            assert source(index).last_event_id == done
            assert index.counters()["held_now"] == len(waiting)
            if waiting:
                first = done + 1 if done else 0
                assert source(index).missing == Missing(1, first, min(waiting) - 1)
            assert all(index.scores(np.array([k], np.uint64)) for k in range(1, done + 1))
        assert source(index).duplicates == len(again)
        assert source(index).state is SourceState.EXACT and source(index).applied == 12
    finally:
        index.close()


@pytest.mark.parametrize("order", ["reversed", "shuffled", "ends"])
def test_sixty_thousand_events_in_no_order_are_soon_in_order(index: EventIndex, order: str) -> None:
    """With work that grew by the square of them this would take minutes."""
    said = messages(60_000)
    late = said[1:]
    if order == "reversed":
        late.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(late)
    else:
        late = [each for pair in zip(late[::-1], late, strict=True) for each in pair]
    for message in late:
        while not index.post(message):
            index.flush()
    index.apply(said[0])
    assert source(index).state is SourceState.EXACT and source(index).last_event_id == 60_000
    assert source(index).applied == 60_000 and index.counters()["held_now"] == 0


def test_what_is_given_up_leaves_the_run_at_the_end(index: EventIndex) -> None:
    said = messages(40)
    apply(index, [said[0], *said[39:30:-1], *said[10:20]])
    index.give_up(W)
    assert source(index).blocks == 9 and source(index).last_event_id == 40
    assert source(index).state is SourceState.REBUILDING and index.counters()["held_now"] == 0


def test_a_full_buffer_gives_the_gap_up() -> None:
    index = EventIndex()
    index.await_replays(max_events=10)
    apply(index, [messages(30)[n] for n in (0, *range(29, 18, -1))])
    assert index.counters()["overflows"] == 1 and index.counters()["held_now"] == 0
    index.close()
