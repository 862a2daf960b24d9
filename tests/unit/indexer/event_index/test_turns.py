"""Callers that write get their turns while more is posted than can be applied."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.wire.codec import encode_router_event
from dynamo_router.indexer.wire.events import Removed, RouterEvent

W = WorkerWithDpRank(1)
DEADLINE_S = 60.0
# JSON takes longer to read than to copy, so that whoever posts is faster than the index.
LONG = encode_router_event(RouterEvent(W, 1, Removed(list(range(2**63, 2**63 + 20_000)))))


@pytest.fixture
def overloaded() -> Iterator[EventIndex]:
    """An index whose mailbox is never empty."""
    index = EventIndex(max_messages=32)
    stop = threading.Event()

    def post() -> None:
        while not stop.is_set():
            if not index.post(LONG):
                stop.wait(0.0001)

    poster = threading.Thread(target=post)
    poster.start()
    yield index
    stop.set()
    poster.join()
    index.close()


def returns(act: Callable[[], object]) -> bool:
    done = threading.Event()

    def run() -> None:
        act()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done.wait(DEADLINE_S)


@pytest.mark.parametrize(
    "act",
    [
        lambda index: index.flush(),
        lambda index: index.apply(LONG),
        lambda index: index.bind(W, 0),
        lambda index: index.unbind(W),
        lambda index: index.apply_cache_event(W, b'{"event_id": 1, "data": "cleared"}'),
        lambda index: index.dump_source(W),
    ],
    ids=["flush", "apply", "bind", "unbind", "apply_cache_event", "dump_source"],
)
def test_a_call_ends_while_others_go_on_posting(
    overloaded: EventIndex, act: Callable[[EventIndex], object]
) -> None:
    assert returns(lambda: act(overloaded))


def test_a_worker_is_bound_while_others_flush_without_end(overloaded: EventIndex) -> None:
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            overloaded.flush()

    flushing = [threading.Thread(target=flush) for _ in range(2)]
    for thread in flushing:
        thread.start()
    try:
        assert returns(lambda: [overloaded.bind(W, number) for number in range(20)])
    finally:
        stop.set()
        for thread in flushing:
            thread.join()


def test_a_flush_applies_all_that_was_posted_before_it() -> None:
    index = EventIndex()
    for count in range(1, 6):
        for _ in range(20):
            assert index.post(LONG)
        index.flush()
        assert index.counters()["messages"] == 20 * count
    index.close()


def test_what_waits_when_the_index_is_closed_is_dropped() -> None:
    index = EventIndex(max_messages=500)
    posted = 0
    while index.post(LONG):
        posted += 1
    index.close()
    counters = index.counters()
    assert counters["waiting"] == 0 and counters["messages"] < posted
    assert not index.post(LONG)
    index.flush()
    assert index.counters()["messages"] == counters["messages"]
    index.bind(W, 0)
    assert index.match(np.array([1], np.uint64), np.zeros(1, np.uint32)) == 0
