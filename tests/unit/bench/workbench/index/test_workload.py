"""The index benchmark's workload: event streams that real engines could have sent."""

import numpy as np
import pytest

from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import read_trace
from dynamo_router.bench.workbench.index.workload import (
    Prompt,
    Removed,
    Stored,
    Workload,
    hash_prompts,
    plan_workload,
)

REQUESTS = list(read_trace(SAMPLE_TRACE, limit=120))


def workload(cache_blocks: int, block_size: int = 64, workers: int = 5) -> Workload:
    prompts = hash_prompts(REQUESTS, block_size)
    return plan_workload(prompts, block_size=block_size, workers=workers, cache_blocks=cache_blocks)


def test_prompts_share_hashes_where_the_trace_shares_ids() -> None:
    requests = REQUESTS
    prompts = hash_prompts(requests, 64)
    assert [len(prompt.local_hashes) for prompt in prompts] == [
        r.input_length // 64 for r in requests
    ]
    for one, two in zip(requests, requests[1:], strict=False):
        shared = 0
        for a, b in zip(one.hash_ids, two.hash_ids, strict=False):
            shared += a == b
        mine, theirs = (prompts[requests.index(r)].sequence_hashes for r in (one, two))
        # Only a repeat shares a block that is not full.
        full = 512 // 64 * shared if shared < len(one.hash_ids) else one.input_length // 64
        assert np.array_equal(mine[:full], theirs[:full])
        assert not np.isin(mine[full:], theirs).any()


@pytest.mark.parametrize("cache_blocks", [1, 37, 400, 10**6])
def test_the_mixed_phase_is_what_bounded_caches_would_report(cache_blocks: int) -> None:
    """No unknown parent, no unknown removal, no cache beyond its size, no orphan left behind."""
    held: dict[int, dict[int, int | None]] = {}
    for op in workload(cache_blocks).mixed:
        if isinstance(op, Prompt):
            continue
        cache = held.setdefault(op.worker, {})
        if isinstance(op, Stored):
            parent = op.parent
            for name in op.sequence_hashes.tolist():
                assert parent is None or parent in cache
                assert name not in cache
                cache[name] = parent
                parent = name
        else:
            for name in op.sequence_hashes.tolist():
                assert name not in cache.values(), "a block goes after what hangs below it"
                del cache[name]
        assert len(cache) <= cache_blocks


def test_without_eviction_both_phases_store_the_same() -> None:
    plan = workload(10**6)
    mixed = [op for op in plan.mixed if isinstance(op, Stored)]
    assert len(mixed) == len(plan.stores)
    assert not any(isinstance(op, Removed) for op in plan.mixed)
    for one, two in zip(mixed, plan.stores, strict=True):
        assert (one.worker, one.parent) == (two.worker, two.parent)
        assert np.array_equal(one.sequence_hashes, two.sequence_hashes)
        assert np.array_equal(one.local_hashes, two.local_hashes)


def test_removals_take_the_younger_half_away_leaves_first() -> None:
    plan = workload(100)
    younger = plan.stores[len(plan.stores) // 2 :]
    assert len(plan.removals) == len(younger)
    for removal, store in zip(plan.removals, reversed(younger), strict=True):
        assert removal.worker == store.worker
        assert removal.sequence_hashes.tolist() == store.sequence_hashes.tolist()[::-1]
        assert removal.sequence_hashes.flags.c_contiguous


def test_prefixes_live_on_several_workers() -> None:
    plan = workload(10**6)
    workers = {store.worker for store in plan.stores}
    assert workers == set(range(5))
    roots: dict[int, set[int]] = {}
    for store in plan.stores:
        if store.parent is None:
            roots.setdefault(int(store.local_hashes[0]), set()).add(store.worker)
    assert max(len(holders) for holders in roots.values()) > 2
