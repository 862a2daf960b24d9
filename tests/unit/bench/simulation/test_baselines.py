"""The baselines that look at a prompt's beginning: who gets what, and how bounded the load is."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.simulation.baselines import BoundedConsistentHash, PrefixHash
from dynamo_router.router.policy import Candidates, Policy
from dynamo_router.slots.table import SlotTable


def table(workers: int) -> SlotTable:
    slots = SlotTable(64)
    for number in range(workers):
        slots.add_worker(number)
    return slots


def choose(
    how: Policy, slots: SlotTable, hashes: list[int] | None, eligible: list[bool] | None = None
) -> int:
    mask = np.array(eligible if eligible is not None else [True] * slots.capacity)
    chosen = how.choose(
        Candidates(
            slots,
            isl=1000,
            eligible=mask,
            sequence_hashes=None if hashes is None else np.array(hashes, np.uint64),
        ),
        random.Random(0),
    )
    assert mask[chosen]
    return chosen


def book(slots: SlotTable, number: int, name: str) -> None:
    slots.add_request(name, number, None, isl=10, overlap_blocks=0, now=0.0)


@given(
    prefix=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2),
    ends=st.lists(st.integers(0, 2**64 - 1), max_size=5),
    workers=st.integers(1, 9),
)
@pytest.mark.parametrize("make", [lambda: PrefixHash(2), lambda: BoundedConsistentHash(8, 2)])
def test_prompts_that_begin_alike_go_to_one_worker(make, prefix, ends, workers) -> None:
    how, slots = make(), table(workers)
    chosen = {choose(how, slots, [*prefix, end]) for end in ends} | {choose(how, slots, prefix)}
    assert len(chosen) == 1
    assert chosen == {choose(make(), table(workers), prefix)}, "another process chooses another one"


@pytest.mark.parametrize("make", [lambda: PrefixHash(2), lambda: BoundedConsistentHash(1.25, 2)])
def test_prefixes_are_spread_over_the_workers(make) -> None:
    slots, rng = table(8), random.Random(1)
    counts = np.bincount([choose(make(), slots, [0, rng.getrandbits(64)]) for _ in range(400)])
    assert len(counts) == 8 and counts.min() > 15 and counts.max() < 110


@pytest.mark.parametrize("make", [lambda: PrefixHash(2), lambda: BoundedConsistentHash(1.25, 2)])
def test_a_prompt_without_a_full_block_goes_anywhere_that_is_allowed(make) -> None:
    for hashes in (None, []):
        assert choose(make(), table(4), hashes, [False, False, True, False]) == 2


@given(
    factor=st.sampled_from([1.0, 1.25, 2.0]),
    keys=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    workers=st.integers(1, 6),
    out=st.integers(0, 5),
)
def test_no_worker_gets_more_than_its_bounded_share(factor, keys, workers, out) -> None:
    how, slots = BoundedConsistentHash(factor, 1), table(workers)
    eligible = [number != out or workers == 1 for number in range(workers)]
    for place, key in enumerate(keys):
        chosen = choose(how, slots, [key * 2**60 + 17], eligible)
        book(slots, chosen, str(place))
        loads = slots.active_requests()
        assert loads[chosen] <= np.ceil(factor * loads.sum() / sum(eligible))


def test_a_worker_that_leaves_takes_only_its_own_prompts_with_it() -> None:
    how, slots, rng = BoundedConsistentHash(10, 1), table(5), random.Random(2)
    keys = [[rng.getrandbits(64)] for _ in range(100)]
    before = [choose(how, slots, key) for key in keys]
    after = [choose(how, slots, key, [n != 3 for n in range(5)]) for key in keys]
    assert all(one == other for one, other in zip(before, after, strict=True) if one != 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrefixHash(0),
        lambda: BoundedConsistentHash(0.9, 2),
        lambda: BoundedConsistentHash(float("nan"), 2),
        lambda: BoundedConsistentHash(float("inf"), 2),
        lambda: BoundedConsistentHash(1.25, 0),
    ],
)
def test_what_cannot_work_is_refused(make) -> None:
    with pytest.raises(ConfigError, match="policy"):
        make()
