"""How each mode chooses among the eligible workers, and what it says where it cannot."""

import math
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import cost as oracle_cost

from dynamo_router.base.errors import InvalidRequestError, NoWorkersError, RouterError
from dynamo_router.router.policy.base import Candidates, Policy
from dynamo_router.router.policy.draw import pick, pick_of_two
from dynamo_router.router.policy.dynamo_cost import CostParams
from dynamo_router.router.policy.modes import DynamoCost, RandomWorker, mode_policy
from dynamo_router.router.policy.selection import choose
from dynamo_router.slots.table import SlotTable

MODES = ["kv", "round-robin", "random", "least-loaded", "power-of-two"]


class Sweep:
    """A generator that goes through [0, 1) evenly: frequencies come out exact."""

    def __init__(self, steps):
        self.steps = steps
        self.at = 0

    def random(self):
        self.at += 1
        return (self.at - 0.5) / self.steps


def costs(*values):
    return np.array(values, dtype=np.float64)


def mask(*values):
    return np.array(values, dtype=np.bool_)


def slots(*requests, block_size=16):
    """A table with a worker for each count of requests in flight."""
    table = SlotTable(block_size)
    for number, count in enumerate(requests):
        table.add_worker(number)
        for i in range(count):
            table.add_request(f"{number}.{i}", number, None, isl=16, overlap_blocks=0, now=0.0)
    return table


def candidates(table, *eligible, isl=160, **arrays):
    usable = mask(*eligible) if eligible else np.ones(table.capacity, dtype=np.bool_)
    return Candidates(table, isl=isl, eligible=usable, **arrays)


def test_the_lowest_cost_wins():
    assert pick(costs(18, 10, 11), 0.0, Random(1)) == 1


def test_ties_are_uniform():
    tied = costs(3, 1, 1, 7, 1, math.inf, 1)
    sweep = Sweep(400)
    drawn = Counter(pick(tied, 0.0, sweep) for _ in range(400))
    assert drawn == {1: 100, 2: 100, 4: 100, 6: 100}


def test_softmax_frequencies():
    drawn = Counter()
    sweep = Sweep(100_000)
    for _ in range(100_000):
        drawn[pick(costs(2, math.inf, 4, 6), 0.5, sweep)] += 1
    weights = [1.0, math.exp(-0.5 / 0.5), math.exp(-1 / 0.5)]
    for number, weight in zip((0, 2, 3), weights, strict=True):
        assert abs(drawn[number] - 100_000 * weight / sum(weights)) <= 1
    assert drawn[1] == 0


def test_softmax_over_equal_costs_is_uniform():
    sweep = Sweep(300)
    drawn = Counter(pick(costs(5, 5, math.inf, 5), 0.7, sweep) for _ in range(300))
    assert drawn == {0: 100, 1: 100, 3: 100}


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300, math.inf])
def test_extreme_temperatures_still_pick_a_finite_cost(temperature):
    sweep = Sweep(90)
    drawn = Counter(pick(costs(1, math.nan, 1.5, 1.5), temperature, sweep) for _ in range(90))
    assert drawn == ({0: 90} if temperature < 1 else {0: 30, 2: 30, 3: 30})


def test_nothing_finite_is_no_worker():
    for none in (costs(), costs(math.inf, math.nan, -math.inf)):
        with pytest.raises(NoWorkersError):
            pick(none, 0.0, Random(1))


@pytest.mark.parametrize("temperature", [-1.0, math.nan])
def test_temperatures_out_of_range_are_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        pick(costs(1, 2), temperature, Random(1))


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.one_of(st.integers(0, 4).map(float), st.floats(0, 100), st.just(math.inf)), max_size=8
    ),
    temperature=st.sampled_from([0.0, 0.1, 0.5, 1.0, 5.0]),
    seed=st.integers(0, 2**32),
)
@example(values=[0.0, 5e-324], temperature=0.1, seed=0)
def test_a_seed_draws_what_plain_python_draws(values, temperature, seed):
    expected = oracle_cost.pick(values, temperature, Random(seed).random())
    if expected < 0:
        with pytest.raises(NoWorkersError):
            pick(costs(*values), temperature, Random(seed))
    else:
        assert pick(costs(*values), temperature, Random(seed)) == expected


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_keeps_to_the_eligible_and_allowed_workers(mode):
    policy = mode_policy(mode)
    table = slots(3, 0, 2, 1, 0)
    rng = Random(7)
    chosen = set()
    for _ in range(200):
        request = candidates(table, True, False, True, True, True)
        chosen.add(choose(policy, request, rng, allowed=mask(True, True, True, True, False)))
    if mode in ("kv", "least-loaded"):
        assert chosen == {3}
    elif mode == "power-of-two":
        assert chosen == {2, 3}  # the busiest loses every comparison
    else:
        assert chosen == {0, 2, 3}


def test_round_robin_takes_turns_and_skips_who_is_out():
    policy = mode_policy("round-robin")
    table = slots(0, 0, 0, 0)
    rng = Random(1)

    def turn(*eligible):
        return choose(policy, candidates(table, *eligible), rng)

    assert [turn() for _ in range(5)] == [0, 1, 2, 3, 0]
    assert [turn(True, False, True, False) for _ in range(3)] == [2, 0, 2]
    assert turn() == 3


def test_round_robin_policies_do_not_share_their_turn():
    table = slots(0, 0)
    one, other = mode_policy("round-robin"), mode_policy("round-robin")
    assert [choose(policy, candidates(table), Random(1)) for policy in (one, other, one)] == [
        0,
        0,
        1,
    ]


def test_random_is_uniform_whatever_the_load():
    sweep = Sweep(300)
    policy = mode_policy("random")
    table = slots(9, 0, 4)
    drawn = Counter(choose(policy, candidates(table), sweep) for _ in range(300))
    assert drawn == {0: 100, 1: 100, 2: 100}


def test_least_loaded_takes_the_fewest_requests_and_breaks_ties_at_random():
    sweep = Sweep(100)
    policy = mode_policy("least-loaded")
    table = slots(2, 1, 5, 1)
    drawn = Counter(choose(policy, candidates(table), sweep) for _ in range(100))
    assert drawn == {1: 50, 3: 50}


def test_power_of_two_compares_two_different_workers():
    rng = Random(3)
    loads = costs(0, 1, 2, math.inf)
    drawn = Counter(pick_of_two(loads, rng) for _ in range(3000))
    assert set(drawn) == {0, 1}  # 2 is the busier of any pair
    assert drawn[0] == pytest.approx(2000, abs=150)  # of three pairs, two have 0
    assert pick_of_two(costs(math.inf, 4), rng) == 1
    equal = Counter(pick_of_two(costs(1, 1, 1), rng) for _ in range(3000))
    assert all(equal[number] == pytest.approx(1000, abs=150) for number in range(3))
    with pytest.raises(NoWorkersError):
        pick_of_two(costs(math.inf), rng)


def test_kv_weighs_cache_against_load():
    table = slots(0, 0, 0)
    blocks = np.arange(10, dtype=np.uint64)
    for i in range(6):
        busy = np.arange(100 * i + 100, 100 * i + 103, dtype=np.uint64)
        table.add_request(f"busy{i}", 0, busy, isl=48, overlap_blocks=3, now=0.0)
    request = candidates(
        table, sequence_hashes=blocks, overlaps=np.array([9, 5, 0], dtype=np.uint32), isl=160
    )
    # Costs: 10-9 + 18+10, 10-5 + 10, 10 + 10.
    assert choose(mode_policy("kv"), request, Random(1)) == 1
    assert choose(mode_policy("kv", CostParams(prefill_load_scale=5)), request, Random(1)) == 0


def test_kv_counts_requests_only_where_they_weigh():
    table = slots(4, 0)
    overlaps = np.array([3, 0], dtype=np.uint32)
    for number in range(4):
        table.mark_prefill_completed(f"0.{number}")
    assert choose(mode_policy("kv"), candidates(table, overlaps=overlaps), Random(1)) == 0
    weighing = DynamoCost(CostParams(decode_active_request_weight=1.0))
    assert choose(weighing, candidates(table, overlaps=overlaps), Random(1)) == 1


def test_only_kv_needs_overlaps():
    assert [mode for mode in [*MODES, "direct"] if mode_policy(mode).needs_overlaps] == ["kv"]


def test_a_mode_that_does_not_exist():
    with pytest.raises(KeyError):
        mode_policy("fastest")


def test_direct_mode_needs_a_pinned_worker():
    policy = mode_policy("direct")
    table = slots(0, 0)
    assert choose(policy, candidates(table), Random(1), pinned=1) == 1
    with pytest.raises(InvalidRequestError, match="must name its worker") as caught:
        choose(policy, candidates(table), Random(1))
    assert caught.value.field == "pinned_worker"


@pytest.mark.parametrize("mode", [*MODES, "direct"])
def test_a_pinned_worker_is_checked_but_not_compared(mode):
    policy = mode_policy(mode)
    table = slots(9, 0, 0)
    allowed = mask(True, True, False)
    assert choose(policy, candidates(table), Random(1), allowed=allowed, pinned=0) == 0
    with pytest.raises(InvalidRequestError, match="not among the allowed"):
        choose(policy, candidates(table), Random(1), allowed=allowed, pinned=2)
    with pytest.raises(NoWorkersError, match="pinned worker takes no requests"):
        choose(policy, candidates(table, False, True, True), Random(1), pinned=0)
    with pytest.raises(ValueError, match="no worker number 3"):
        choose(policy, candidates(table), Random(1), pinned=3)


@pytest.mark.parametrize("mode", [*MODES, "direct"])
def test_the_ways_to_have_no_worker_are_told_apart(mode):
    policy = mode_policy(mode)
    with pytest.raises(NoWorkersError, match="no worker is registered"):
        choose(policy, candidates(slots()), Random(1))
    table = slots(0, 0, 0)
    with pytest.raises(NoWorkersError, match="none of the 3 registered workers"):
        choose(policy, candidates(table, False, False, False), Random(1))
    with pytest.raises(NoWorkersError, match="none of the 1 allowed workers"):
        choose(
            policy,
            candidates(table, True, False, True),
            Random(1),
            allowed=mask(False, True, False),
        )


class Busiest(Policy):
    """Most requests first, of the workers that are not ruled out."""

    def __init__(self, *ruled_out):
        self.ruled_out = list(ruled_out)

    def score(self, candidates):
        costs = np.where(candidates.eligible, -candidates.active_requests, np.inf)
        costs[self.ruled_out] = np.inf
        return costs


class Stubborn(RandomWorker):
    """Picks one number, whatever it costs."""

    def __init__(self, number):
        self.number = number

    def pick(self, costs, rng):
        return self.number


def test_score_and_pick_can_be_replaced_one_by_one():
    table = slots(0, 5, 2)

    def run(policy, **how):
        return choose(policy, candidates(table), Random(1), **how)

    assert run(Busiest()) == 1
    assert run(Busiest(1)) == 2
    assert run(Stubborn(2)) == 2
    assert run(Stubborn(2), temperature=0.0) == run(RandomWorker())
    with pytest.raises(NoWorkersError, match="after filtering and scoring"):
        run(Busiest(0, 1, 2))


def test_what_a_policy_overrides_says_what_it_needs_to_be_asked_and_told():
    class Holding(Busiest):
        def hold(self, eligible, active_blocks, now):
            return 1.0

    class Listener(Holding):
        def on_end(self, request_id, now, output_tokens):
            pass

    told = [(each.holds, each.learns) for each in (Policy, Busiest, Holding, Listener)]
    assert told == [(False, False), (False, False), (True, False), (True, True)]
    (request,) = [candidates(slots(0))]
    plain = Busiest()
    assert plain.explain(request) == {} and plain.order_penalty_s(100) == 0
    assert Policy.hold(plain, request.eligible, request.active_requests, 0.0) == 0


@pytest.mark.parametrize("number", [-1, 1, 3])
def test_a_policy_that_chooses_who_is_not_eligible_is_found_out(number):
    with pytest.raises(RouterError, match="not eligible"):
        choose(Stubborn(number), candidates(slots(0, 0, 0), True, False, True), Random(1))


def test_one_seed_gives_one_run():
    table = slots(0, 0, 0, 0)

    def run(seed):
        rng = Random(seed)
        policy = mode_policy("kv", temperature=0.5)
        return [choose(policy, candidates(table), rng) for _ in range(50)]

    assert run(5) == run(5) != run(6)
