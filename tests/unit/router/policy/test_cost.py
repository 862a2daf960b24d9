"""The cost function: worked examples, and agreement with plain Python on anything."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import cost as oracle_cost

from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.policy.dynamo_cost import (
    CostInputs,
    CostParams,
    params_from_legacy_weight,
    score,
    terms,
)


def u32(*values):
    return np.array(values, dtype=np.uint32)


def i64(*values):
    return np.array(values, dtype=np.int64)


def f64(*values):
    return np.array(values, dtype=np.float64)


def mask(*values):
    return np.array(values, dtype=np.bool_)


def costs_of(params=None, *, n=3, isl=160, block_size=16, **arrays):
    given_arrays = {
        "overlaps": None,
        "prefill_tokens": None,
        "potential_blocks": None,
        "active_requests": None,
        "eligible": np.ones(n, dtype=np.bool_),
    } | arrays
    return score(params or CostParams(), CostInputs(isl, block_size, **given_arrays))


def test_the_worked_example():
    costs = costs_of(overlaps=u32(2, 5, 8), potential_blocks=f64(10, 5, 9))
    assert costs.tolist() == [18, 10, 11]


def test_prefill_queued_on_a_worker_costs_like_the_request_s_own():
    costs = costs_of(prefill_tokens=i64(0, 8, 1600), potential_blocks=f64(1, 1, 1))
    assert costs.tolist() == [11, 11.5, 111]


def test_weights_scale_their_terms():
    arrays = {
        "overlaps": u32(4, 4, 4),
        "potential_blocks": f64(7, 7, 7),
        "active_requests": i64(0, 1, 10),
    }
    assert costs_of(**arrays).tolist() == [13, 13, 13]
    doubled = CostParams(prefill_load_scale=2, decode_active_request_weight=0.5)
    assert costs_of(doubled, **arrays).tolist() == [19, 19.5, 24]
    assert costs_of(CostParams(overlap_score_credit=0), **arrays).tolist() == [17, 17, 17]
    assert costs_of(CostParams(prefill_load_scale=0), **arrays).tolist() == [7, 7, 7]


def test_lower_tiers_are_worth_less():
    costs = costs_of(
        overlaps=u32(1, 1, 1),
        host_overlaps=u32(4, 0, 2),
        disk_overlaps=u32(0, 4, 2),
    )
    assert costs.tolist() == [10 - 1 - 3, 10 - 1 - 1, 10 - 1 - 2]


def test_more_overlap_than_prefill_is_worth_no_more_than_the_prefill():
    costs = costs_of(
        CostParams(overlap_score_credit=5), overlaps=u32(0, 2, 9), potential_blocks=f64(1, 1, 1)
    )
    assert costs.tolist() == [11, 1, 1]


def test_the_credit_decays_with_prefill_beyond_the_least_busy_eligible_worker_s():
    arrays = {"overlaps": u32(8, 8, 8), "prefill_tokens": i64(0, 160, 320)}
    params = CostParams(credit_decay=1.0)
    # Excess, in prompts: 0, 1, 2; credit: 1, 1/2, 1/3.
    assert costs_of(params, **arrays) == pytest.approx([10 - 8, 20 - 4, 30 - 8 / 3])
    costs = costs_of(params, eligible=mask(False, True, True), **arrays)
    assert costs == pytest.approx([math.inf, 20 - 8, 30 - 4])


def test_a_worker_that_is_not_eligible_costs_infinity():
    costs = costs_of(eligible=mask(True, False, True), potential_blocks=f64(3, 0, 4))
    assert costs.tolist() == [13, math.inf, 14]


def test_without_prefill_tracking_only_decode_counts():
    arrays = {
        "overlaps": u32(2, 5, 8),
        "prefill_tokens": i64(0, 99, 0),
        "potential_blocks": f64(10, 5, 7),
    }
    untracked = CostParams(track_prefill_tokens=False)
    assert costs_of(untracked, **arrays).tolist() == [10, 5, 7]


def test_the_old_weight_gives_the_old_formula():
    """The seed's: weight * (prefill tokens still to do, with this request's) / block + blocks."""
    for weight in (0.0, 0.5, 1.0, 3.0):
        scale, credit = params_from_legacy_weight(weight)
        params = CostParams(prefill_load_scale=scale, overlap_score_credit=credit)
        costs = costs_of(
            params,
            n=2,
            isl=100,
            overlaps=u32(3, 0),
            prefill_tokens=i64(40, 70),
            potential_blocks=f64(5, 6),
        )
        old = [weight * (40 + 100 - 48) / 16 + 5, weight * (70 + 100) / 16 + 6]
        assert costs == pytest.approx(old)
    assert params_from_legacy_weight(0) == (0.0, 0.0)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
@pytest.mark.parametrize(
    "key", ["overlap_score_credit", "credit_decay", "prefill_load_scale", "disk_cache_hit_weight"]
)
def test_weights_out_of_range_are_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=key) as caught:
        CostParams(**{key: value})
    assert caught.value.key == key


@pytest.mark.parametrize("key", ["host_cache_hit_weight", "disk_cache_hit_weight"])
def test_a_block_in_a_lower_tier_is_worth_a_block_at_most(key):
    assert getattr(CostParams(**{key: 1}), key) == 1
    with pytest.raises(ConfigError, match=f"{key} must be in 0..1, not 1.01"):
        CostParams(**{key: 1.01})


def test_arrays_must_be_aligned_and_the_prompt_not_empty():
    with pytest.raises(ValueError, match="each of 3 worker numbers"):
        costs_of(overlaps=u32(1, 2))
    with pytest.raises(ValueError, match="isl"):
        costs_of(isl=0)
    with pytest.raises(ValueError, match="block_size"):
        costs_of(block_size=0)
    with pytest.raises(ValueError, match="dtype"):
        costs_of(overlaps=i64(1, 2, 3))


def test_no_workers_have_no_costs():
    assert costs_of(n=0).tolist() == []


WEIGHTS = st.floats(0, 8, allow_nan=False)
PARAMS = st.builds(
    CostParams,
    overlap_score_credit=WEIGHTS,
    credit_decay=WEIGHTS,
    prefill_load_scale=WEIGHTS,
    decode_active_request_weight=WEIGHTS,
    host_cache_hit_weight=st.floats(0, 1),
    disk_cache_hit_weight=st.floats(0, 1),
    track_prefill_tokens=st.booleans(),
)
# (overlap, active prefill, blocks, requests, host, disk, eligible)
BLOCKS = st.integers(0, 200)
WORKERS = st.lists(
    st.tuples(BLOCKS, st.integers(0, 10**6), BLOCKS, BLOCKS, BLOCKS, BLOCKS, st.booleans()),
    max_size=9,
)


@settings(max_examples=150, deadline=None)
@given(params=PARAMS, workers=WORKERS, isl=st.integers(1, 5000), block_size=st.integers(1, 64))
def test_the_kernel_agrees_with_plain_python(params, workers, isl, block_size):
    columns = [list(column) for column in zip(*workers, strict=True)] or [[]] * 7
    overlaps, prefill, blocks, requests, host, disk, eligible = columns
    least = min((p for p, usable in zip(prefill, eligible, strict=True) if usable), default=0)
    arrays = {
        "isl": isl,
        "block_size": block_size,
        "overlaps": u32(*overlaps),
        "prefill_tokens": i64(*prefill),
        "potential_blocks": f64(*blocks),
        "active_requests": i64(*requests),
        "eligible": mask(*eligible),
        "host_overlaps": u32(*host),
        "disk_overlaps": u32(*disk),
    }
    expected = [
        oracle_cost.cost(params, isl, block_size, *worker[:4], least, *worker[4:6])
        for worker in workers
    ]
    inputs = CostInputs(**arrays)
    costs = score(params, inputs)
    names = [(number, WorkerWithDpRank(number)) for number in range(len(workers))]
    explained = terms(params, names, inputs)
    for number, usable in enumerate(eligible):
        if usable:
            assert costs[number] == pytest.approx(expected[number])
            assert costs[number] == explained[number].cost  # bit for bit
        else:
            assert costs[number] == math.inf
            # Its own prefill may be below the least of the eligible: no excess, as for them.
            assert explained[number].cost == pytest.approx(expected[number])


def test_terms_say_what_a_cost_is_made_of():
    params = CostParams(prefill_load_scale=2.0, decode_active_request_weight=0.5)
    first, last = terms(
        params,
        [(0, WorkerWithDpRank(70, 0)), (2, WorkerWithDpRank(70, 1))],
        CostInputs(
            isl=160,
            block_size=16,
            overlaps=u32(4, 0, 1),
            prefill_tokens=i64(32, 0, 0),
            potential_blocks=f64(20, 0, 10),
            active_requests=i64(2, 0, 3),
            eligible=mask(True, False, False),
        ),
        reasons={2: "draining"},
        index_states={0: "exact"},
    )
    assert first.worker == (70, 0)
    assert (first.raw_prefill_blocks, first.credit, first.effective_overlap_blocks) == (12, 1, 4)
    assert first.cost == 2 * (12 - 4) + 20 + 0.5 * 2
    assert (first.eligible, first.reason, first.index_state) == (True, "", "exact")
    assert (last.worker, last.number, last.eligible) == ((70, 1), 2, False)
    assert (last.reason, last.overlap_blocks, last.active_requests) == ("draining", 1, 3)
