"""The event index: numbering, restarts, losses, bounds, and reading while its thread writes."""

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.kv_events.messages import stored
from support.polling import wait_until

from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import SOURCES_IN_A_STEP, EventIndex
from dynamo_router.indexer.source import Missing, SourceState, SourceStatus
from dynamo_router.indexer.wire.codec import encode_event_message
from dynamo_router.indexer.wire.events import Cleared, Removed, RouterEvent, Stored

W = WorkerWithDpRank(7)
Data = Stored | Removed | Cleared


def message(
    event_id: int,
    data: Data,
    *,
    sequence: int | None = None,
    publisher: int = 1,
    worker: WorkerWithDpRank = W,
    tier: str = "device",
) -> bytes:
    event = RouterEvent(worker, event_id, data, storage_tier=tier)
    at = event_id - 1 if sequence is None else sequence
    return encode_event_message([event], publisher, at, 0)


def local(*blocks: int) -> np.ndarray:
    return np.array([10 * b for b in blocks], dtype=np.uint64)


def source(index: EventIndex, worker: WorkerWithDpRank = W) -> SourceStatus:
    return {status.worker: status for status in index.sources()}[worker]


def test_posted_events_become_visible_without_a_call(index: EventIndex) -> None:
    assert index.post(message(1, stored(1, 2, 3)))
    wait_until(lambda: index.scores(local(1, 2, 3)) == {W: 3})
    assert source(index).state is SourceState.EXACT and source(index).blocks == 3


def test_messages_posted_together_are_applied_in_their_order(index: EventIndex) -> None:
    together = [message(1, stored(1, 2, 3)), message(2, Removed([3])), message(3, stored(1))]
    assert index.post_all(together) == 0 == index.post_all([])
    index.flush()
    assert index.scores(local(1, 2, 3)) == {W: 2}
    assert source(index).state is SourceState.EXACT and source(index).applied == 3
    index.close()
    assert index.post_all(together) == 3 == index.counters()["dropped"]


def test_applied_event_is_visible_at_once_and_after_all_posted_before(index: EventIndex) -> None:
    index.post(message(1, stored(1)))
    index.apply(message(2, stored(2, parent=1)))
    assert index.scores(local(1, 2)) == {W: 2}


def test_match_writes_bound_workers_only(index: EventIndex) -> None:
    other = WorkerWithDpRank(8, 3)
    index.apply(message(1, stored(1, 2)))
    index.apply(message(1, stored(1), worker=other))
    index.bind(other, 1)
    out = np.full(3, 9, dtype=np.uint32)
    assert index.match(local(1, 2), out) == 1 and out.tolist() == [0, 1, 0]
    index.bind(W, 0)
    assert index.match(local(1, 2), out) == 2 and out.tolist() == [2, 1, 0]
    index.unbind(W)
    assert index.match(local(1, 2), out) == 1 and index.scores(local(1, 2)) == {other: 1}
    assert index.match(local(), out) == 0 and out.tolist() == [0, 0, 0]
    assert index.match(local(1), np.zeros(0, dtype=np.uint32)) == 0


def test_the_same_message_twice_counts_once(index: EventIndex) -> None:
    for _ in range(2):
        index.apply(message(1, stored(1)))
    index.apply(message(2, Removed([1])))
    index.apply(message(1, stored(1)))
    assert index.scores(local(1)) == {} and source(index).duplicates == 2
    assert source(index).state is SourceState.EXACT


def test_a_gap_forgets_the_worker_and_a_clear_heals_it(index: EventIndex) -> None:
    index.apply(message(1, stored(1, 2)))
    index.apply(message(3, stored(5)))
    assert index.scores(local(1)) == {} and index.scores(local(5)) == {W: 1}
    assert source(index).state is SourceState.REBUILDING and source(index).gaps == 1
    index.mark_degraded(W)
    assert source(index).state is SourceState.DEGRADED
    index.apply(message(4, Cleared()))
    index.apply(message(5, stored(1)))
    assert source(index).state is SourceState.EXACT and index.scores(local(1)) == {W: 1}


def test_unknown_parent_is_counted_and_asks_for_a_rebuild(index: EventIndex) -> None:
    index.apply(message(1, stored(2, parent=1)))
    assert source(index).orphans == 1 and source(index).state is SourceState.REBUILDING


def test_a_restarted_engine_takes_its_ghosts_with_it(index: EventIndex) -> None:
    index.apply(message(1, stored(1, 2)))
    index.apply(message(2, stored(3)))
    index.apply(message(1, stored(9), publisher=2))
    assert index.scores(local(1)) == {} and index.scores(local(9)) == {W: 1}
    index.apply(message(2, stored(8), publisher=2))
    index.apply(message(1, stored(1), publisher=2, sequence=2))
    assert index.scores(local(8)) == {} and index.scores(local(1)) == {W: 1}
    assert source(index).restarts == 2 and source(index).state is SourceState.EXACT


def test_joining_late_is_not_exact(index: EventIndex) -> None:
    index.apply(message(40, stored(1)))
    assert source(index).state is SourceState.REBUILDING


def test_suspicion_ends_with_the_next_event_in_line(index: EventIndex) -> None:
    index.apply(message(1, stored(1)))
    index.mark_suspect()
    assert source(index).state is SourceState.RECOVERING and index.scores(local(1)) == {W: 1}
    assert source(index).missing == Missing(1, 2, None)
    index.apply(message(2, stored(2)))
    assert source(index).state is SourceState.EXACT and index.scores(local(1)) == {W: 1}


def test_tiers_share_the_numbering_and_are_indexed_apart(index: EventIndex) -> None:
    index.apply(message(1, stored(1)))
    index.apply(message(2, stored(2), tier="host_pinned"))
    index.apply(message(3, stored(3, parent=1)))
    assert index.scores(local(2)) == {} and index.scores(local(1, 3)) == {W: 2}
    assert index.tier_scores(local(2)) == {W: (0, 1, 0, 0)}
    assert source(index).blocks == 2 and source(index).lower_blocks == (1, 0, 0)
    assert source(index).state is SourceState.EXACT


@pytest.mark.parametrize("junk", [b"", b"\x00\x01", b"\xff" * 40, b"{not json", b"[1, 2]"])
def test_junk_is_counted_and_the_index_goes_on(index: EventIndex, junk: bytes) -> None:
    index.post(junk)
    index.post(message(1, stored(1)))
    index.flush()
    assert index.scores(local(1)) == {W: 1}
    totals = index.counters()
    assert totals["messages"] == 2 and totals["undecodable"] + totals["ignored"] == 1


def test_apply_says_what_it_cannot_read(index: EventIndex) -> None:
    with pytest.raises(EventError):
        index.apply(b"\xff\xff\xff")


def test_a_full_mailbox_refuses_and_the_loss_shows_as_a_gap() -> None:
    index = EventIndex(max_messages=2)
    index.close()  # nobody empties the mailbox now, so its bound is exact
    assert not index.post(message(1, stored(1)))
    assert index.counters()["dropped"] == 1
    index.close()


def test_too_many_workers_are_refused_and_counted() -> None:
    index = EventIndex(max_workers=2)
    for worker_id in range(4):
        index.apply(message(1, stored(1), worker=WorkerWithDpRank(worker_id)))
    assert len(index.scores(local(1))) == 2 and index.counters()["refused"] == 2
    index.close()


def test_what_was_dropped_for_room_is_no_sign_of_lost_events() -> None:
    index = EventIndex(max_blocks=8)
    index.apply(message(1, stored(*range(1, 9))))
    index.apply(message(2, stored(11, 12, 13, 14)))
    assert source(index).state is SourceState.TRIMMED
    assert source(index).blocks == 8 and source(index).unindexed == 4
    assert index.scores(local(*range(1, 9))) == {W: 4}
    index.apply(message(3, stored(9, parent=8)))  # a child of a dropped block
    index.apply(message(4, Removed([8, 9])))  # and the removal of both
    status = source(index)
    assert status.state is SourceState.TRIMMED and status.unindexed == 3
    assert status.orphans == 0 and index.tier_counters()["device"]["unknown"] == 0
    totals = index.counters()
    assert (totals["evicted_blocks"], totals["evicted_branches"]) == (4, 1)
    assert totals["indexed_blocks"] == 8 and totals["index_bytes"] > 0
    index.apply(message(5, Removed([5, 6, 7])))
    assert source(index).state is SourceState.EXACT and source(index).unindexed == 0
    index.apply(message(6, stored(9, parent=8)))
    assert source(index).orphans == 1 and source(index).state is SourceState.REBUILDING
    index.close()


def test_what_was_dropped_is_learnt_again_once_there_is_room() -> None:
    index = EventIndex(max_blocks=8)
    other = WorkerWithDpRank(8)
    index.apply(message(1, stored(*range(1, 9))))
    index.apply(message(1, stored(11, 12, 13, 14), worker=other))
    assert source(index).unindexed == 4 and source(index, other).state is SourceState.EXACT
    assert index.relearn() == 0  # it is full
    index.unbind(other)
    assert index.relearn() == 1 and index.relearn() == 0
    assert source(index).state is SourceState.REBUILDING
    assert index.scores(local(*range(1, 9))) == {W: 4}  # what it has is right meanwhile
    index.apply(message(2, Cleared()))
    index.apply(message(3, stored(*range(1, 9))))
    assert source(index).state is SourceState.EXACT and index.scores(local(*range(1, 9))) == {W: 8}
    index.close()


def test_one_event_larger_than_the_budget_keeps_its_beginning() -> None:
    index = EventIndex(max_blocks=5)
    index.apply(message(1, stored(*range(1, 100))))
    assert index.scores(local(*range(1, 100))) == {W: 5} and source(index).unindexed == 94
    index.close()


def test_readers_get_in_between_two_steps_of_one_message(index: EventIndex) -> None:
    """In the middle of a store and of a removal, each one long message."""
    n = 60_000
    chain = np.arange(n, dtype=np.uint64) * 10
    blocks = list(range(n))
    index.bind(W, 0)
    out = np.zeros(1, dtype=np.uint32)
    amid: dict[str, int] = {}
    event_id = 0

    def run(name: str, begin: int, end: int, act: Callable[[], object]) -> None:
        thread = threading.Thread(target=act)
        thread.start()
        while (seen := index.match(chain, out)) != end:
            amid[name] = amid.get(name, 0) + (seen != begin)
        thread.join()

    def told(data: Data) -> Callable[[], object]:
        nonlocal event_id
        event_id += 1
        payload = message(event_id, data)
        return lambda: index.apply(payload)

    def once() -> bool:
        run("stored", 0, n, told(stored(*blocks)))
        run("removed", n, 0, told(Removed(blocks[::-1])))
        return amid.keys() == {"stored", "removed"}

    wait_until(once)
    counted = index.tier_counters()["device"]
    assert source(index).blocks == 0 and counted["stored"] == counted["removed"]


def test_closing_leaves_no_thread(index: EventIndex) -> None:
    def threads() -> set[str]:
        return {task.name for task in Path("/proc/self/task").iterdir()}

    gc.collect()
    before = threads()  # libraries' too, which may end meanwhile
    others = [EventIndex() for _ in range(5)]
    theirs = threads() - before
    assert len(theirs) == 5
    for other in others[:2]:
        other.close()
        other.close()
    del others, other
    gc.collect()
    assert not theirs & threads()


def test_readers_never_see_more_than_was_stored_while_the_thread_writes(index: EventIndex) -> None:
    """Chains grow and are removed leaf first: at no time may a depth exceed the longest chain."""
    chain = list(range(1, 65))
    rounds = 200 if os.environ.get("CI") else 60
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        query = local(*chain)
        while not stop.is_set():
            seen.append(index.scores(query).get(W, 0))

    reader = threading.Thread(target=read)
    reader.start()
    event_id = 0
    for _ in range(rounds):
        event_id += 2
        index.post(message(event_id - 1, stored(*chain)))
        index.post(message(event_id, Removed(chain[::-1])))
    index.flush()
    stop.set()
    reader.join()
    assert set(seen) <= set(range(65)) and index.scores(local(*chain)) == {}
    assert source(index).state is SourceState.EXACT and source(index).applied == event_id


@pytest.mark.parametrize("bad", [0, -1, 1.5, "8", 2**70])
@pytest.mark.parametrize("name", ["max_messages", "max_bytes", "max_workers", "max_blocks"])
def test_a_bound_that_is_no_positive_whole_number_is_refused(name: str, bad: object) -> None:
    with pytest.raises(ValueError, match=name):
        EventIndex(**{name: bad})  # type: ignore[arg-type]


def test_a_match_of_nothing_at_all_is_refused(index: EventIndex) -> None:
    for arguments in ((None, np.zeros(1, np.uint32)), (local(1), None)):
        with pytest.raises(TypeError):
            index.match(*arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        index.scores(None)  # type: ignore[arg-type]


def test_a_tree_that_outlives_its_index_can_be_written(index: EventIndex) -> None:
    """What lets readers of the index in is gone with it."""
    dropped = EventIndex()
    (tree, *_) = dropped.native.tier_trees()
    del dropped
    gc.collect()
    chain = np.arange(1, 2000, dtype=np.uint64)
    tree.store(W, None, chain, chain)
    assert tree.match(chain).scores == {W: 1999}


def test_sources_are_the_same_in_steps(index: EventIndex) -> None:
    workers = [WorkerWithDpRank(n, n % 2) for n in range(1, 3 * SOURCES_IN_A_STEP)]
    for worker in workers:
        index.apply(message(1, stored(1, 2), worker=worker, publisher=worker.worker_id))
    index.unbind(workers[5])
    steps = list(index.sources_in_steps())
    assert [source for step in steps for source in step] == index.sources()
    assert {source.worker for step in steps for source in step} == {*workers} - {workers[5]}
    assert len(steps) == 3 and max(map(len, steps)) <= SOURCES_IN_A_STEP
