"""The approximate index: what it believes, for how long, and how much of it at most."""

import numpy as np
import pytest

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.approximate import ApproximateIndex
from dynamo_router.indexer.hashing import sequence_hashes
from dynamo_router.indexer.source import SOURCES_IN_A_STEP, SourceState

WORKER = WorkerWithDpRank(7, 1)


def chain(n, branch=0):
    local = np.arange(n, dtype=np.uint64) + np.uint64(1000 * branch)
    return local, sequence_hashes(local)


def test_a_route_is_believed_for_its_time_and_a_second_one_renews_it():
    index = ApproximateIndex(ttl_s=10)
    local, keys = chain(4)
    index.record(WORKER, local, keys, now=100.0)
    index.record(WORKER, local[:2], keys[:2], now=105.0)
    index.expire(109.9)
    assert index.scores(local) == {WORKER: 4}
    index.expire(110.0)
    assert index.scores(local) == {WORKER: 2}
    index.expire(115.0)
    assert index.scores(local) == {} and len(index) == 0
    assert index.expired == 4


def test_deadlines_are_rounded_up():
    index = ApproximateIndex(ttl_s=1)
    local, keys = chain(1)
    index.record(WORKER, local, keys, now=0.01)
    index.expire(1.05)
    assert len(index) == 1
    index.expire(1.1)
    assert len(index) == 0


def test_no_time_means_no_belief():
    index = ApproximateIndex(ttl_s=0)
    index.record(WORKER, *chain(3), now=5.0)
    assert len(index) == 0 and index.scores(chain(3)[0]) == {}


def test_too_many_are_pruned_oldest_first_and_from_the_end_of_a_chain():
    index = ApproximateIndex(max_blocks=10, prune_target_ratio=0.8)
    old, new = chain(6, branch=1), chain(6, branch=2)
    index.record(WORKER, *old, now=0.0)
    index.record(WORKER, *new, now=1.0)
    assert len(index) == 8 and index.pruned == 4
    assert index.scores(old[0]) == {WORKER: 2}
    assert index.scores(new[0]) == {WORKER: 6}


def test_a_clock_that_steps_back_does_no_harm():
    index = ApproximateIndex(ttl_s=1)
    index.record(WORKER, *chain(2, 1), now=100.0)
    index.record(WORKER, *chain(2, 2), now=50.0)
    index.expire(-1.0)
    assert len(index) == 4
    index.expire(101.0)
    assert len(index) == 0


def test_sources_are_approximate_and_unbound_ones_are_gone():
    index = ApproximateIndex()
    index.bind(WORKER, 0)
    index.record((8, 0), *chain(3), now=0.0)
    assert {(s.worker, s.state, s.blocks) for s in index.sources()} == {
        (WORKER, SourceState.APPROXIMATE, 0),
        ((8, 0), SourceState.APPROXIMATE, 3),
    }
    index.unbind(WorkerWithDpRank(8, 0))
    index.unbind(WorkerWithDpRank(9, 0))
    assert [s.worker for s in index.sources()] == [WORKER] and len(index) == 0
    index.close()


def test_many_sources_are_told_a_few_at_a_time():
    index = ApproximateIndex()
    for number in range(3 * SOURCES_IN_A_STEP + 1):
        index.bind(WorkerWithDpRank(number), number)
    first, *others = steps = list(index.sources_in_steps())
    assert [len(step) for step in steps] == [SOURCES_IN_A_STEP] * 3 + [1]
    assert [source for step in steps for source in step] == index.sources()
    telling = index.sources_in_steps()
    assert next(telling) == first
    for source in others[0]:  # they leave in between
        index.unbind(source.worker)
    assert [source.blocks for source in next(telling)] == [0] * SOURCES_IN_A_STEP
    index.close()


def test_expiry_of_a_large_index_gives_every_block_back():
    index = ApproximateIndex(ttl_s=1)
    for branch in range(1, 60):
        for worker in range(5):
            index.record((worker, 0), *chain(40, branch), now=branch / 100)
    assert len(index) == 59 * 5 * 40
    index.expire(1000.0)
    assert len(index) == 0 and len(index._predictions.tree) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"ttl_s": -1},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"max_blocks": 0},
        {"max_blocks": 2**31},
        {"prune_target_ratio": 1.1},
        {"prune_target_ratio": float("nan")},
    ],
)
def test_bounds_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ApproximateIndex(**options)


def test_bad_chains_are_refused_and_nothing_stays_for_ever():
    index = ApproximateIndex(ttl_s=1)
    local, keys = chain(3)
    with pytest.raises(ValueError, match="3 local hashes and 2 sequence hashes"):
        index.record(WORKER, local, keys[:2], now=0.0)
    with pytest.raises(ValueError, match="twice"):
        index.record(WORKER, local, keys[[0, 1, 0]], now=0.0)
    with pytest.raises(OverflowError):
        index.record(WORKER, [-1], [1], now=0.0)
    with pytest.raises(TypeError):
        index.record(WORKER, [1.5], [1], now=0.0)
    index.expire(10.0)
    assert len(index) == 0 and index.scores(local) == {}
