"""Constraints come last: whatever is wanted, what is allowed keeps budget, bounds, dwell, rate."""

from itertools import count
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError
from dynamo_router.planner import (
    ROLES,
    Change,
    Constraints,
    Fleet,
    Observation,
    ObservedWorker,
    Role,
    WorkerState,
    constrain,
)

STATES = get_args(WorkerState)


def worker(worker_id: int, state: WorkerState = "serving", **more: Any) -> ObservedWorker:
    facts = {"role": "aggregated", "age_s": 1000.0, "served": 100, **more}
    return ObservedWorker(worker_id=worker_id, state=state, **facts)


def seen(*states: WorkerState, at: float = 1000.0, role: Role = "aggregated") -> Observation:
    return Observation(at=at, workers=[worker(n, s, role=role) for n, s in enumerate(states)])


def engines(number: int) -> Fleet:
    return Fleet(aggregated=number)


fleets = st.builds(Fleet, *(st.integers(0, 9) for _ in ROLES))
workers = st.lists(
    st.builds(
        worker,
        st.integers(0, 99),
        st.sampled_from(STATES),
        role=st.sampled_from(ROLES),
        served=st.integers(0, 3),
        active_blocks=st.none() | st.integers(0, 100),
        total_blocks=st.just(100),
    ),
    max_size=12,
)
changes = st.lists(
    st.builds(Change, st.floats(0, 1000), st.sampled_from(ROLES), st.sampled_from((-2, -1, 1, 2)))
)
limits = st.builds(
    Constraints,
    engines_max=st.integers(4, 10),
    engines_min=st.integers(0, 2),
    dwell_s=st.sampled_from((0.0, 60.0, 500.0)),
    removals_per_hour=st.integers(0, 4),
    removals_at_once=st.integers(1, 3),
    prefill_accelerators=st.integers(1, 2),
)


@given(fleets, workers, limits, changes, st.booleans())
def test_no_step_breaks_a_constraint(
    wanted: Fleet,
    there: list[ObservedWorker],
    constraints: Constraints,
    past: list[Change],
    may_remove: bool,
) -> None:
    observed = Observation(at=1000.0, workers=there)
    present, costs = observed.fleet(), constraints.costs
    allowed = constrain(wanted, observed, constraints, past, may_remove=may_remove).fleet
    added = Fleet(*(max(0, n - present.count(role)) for role, n in allowed))
    if added.engines:
        # Also while others drain or have failed, and also while some are removed in this step.
        assert observed.held.cost(costs) + added.cost(costs) <= constraints.engines_max
    over = present.cost(costs) > constraints.engines_max
    for role, number in allowed:
        removed = present.count(role) - number
        if removed <= 0 or over:
            continue
        assert may_remove
        own = [each for each in past if each.role == role]
        assert all(1000.0 - each.at >= constraints.dwell_s for each in own)
        assert removed <= constraints.removals_per_hour + sum(each.by for each in own)
        draining = observed.fleet("draining").count(role)
        assert draining + removed <= constraints.removals_at_once
        assert not added.engines or added.count(role) == 0
    if over:
        assert allowed.cost(costs) <= constraints.engines_max


@given(fleets, workers, limits)
def test_steps_taken_one_after_the_other_come_to_rest(
    wanted: Fleet, there: list[ObservedWorker], constraints: Constraints
) -> None:
    """Down before up, and no step back: the same wish changes nothing once it is reached."""
    numbers, now, past = count(1000), 10_000.0, list[Change]()
    for _ in range(60):
        observed = Observation(at=now, workers=there)
        present = observed.fleet()
        after = constrain(wanted, observed, constraints, past).fleet
        there = [each for each in there if each.state not in ("draining", "failed")]
        for role, number in after:
            own = [each for each in there if each.role == role]
            there = [each for each in there if each.role != role] + own[:number]
            there += [worker(next(numbers), role=role) for _ in range(number - len(own))]
            if number != present.count(role):
                past.append(Change(now, role, number - present.count(role)))
        now += 4000
    final = Observation(at=now, workers=there)
    assert constrain(wanted, final, constraints, past).fleet == final.fleet() or (
        constraints.removals_per_hour == 0
    )
    assert final.held.cost(constraints.costs) <= constraints.engines_max


def test_at_the_budget_engines_go_before_others_come() -> None:
    """dynamo #12428: up and down as two changes left a fleet over its budget."""
    constraints = Constraints(engines_max=4, dwell_s=0)
    observed = Observation(
        at=0.0, workers=[worker(n, role="prefill" if n < 3 else "decode") for n in range(4)]
    )
    first = constrain(Fleet(prefill=2, decode=2), observed, constraints)
    assert first.fleet == Fleet(prefill=2, decode=1)
    assert "budget: 1 more decode wait for free accelerators" in first.reasons
    draining = [
        worker(0, "draining", role="prefill"),
        *(worker(n, role="prefill" if n < 3 else "decode") for n in range(1, 4)),
    ]
    held = Observation(at=1.0, workers=draining)
    assert constrain(Fleet(prefill=2, decode=2), held, constraints).fleet == first.fleet
    freed = Observation(at=2.0, workers=draining[1:])
    assert constrain(Fleet(prefill=2, decode=2), freed, constraints).fleet == Fleet(
        prefill=2, decode=2
    )


def test_with_budget_to_spare_newcomers_come_first() -> None:
    constraints = Constraints(engines_max=8, dwell_s=0)
    observed = seen("serving", "serving", role="aggregated")
    step = constrain(Fleet(aggregated=1, prefill=1, decode=1), observed, constraints)
    assert step.fleet == Fleet(aggregated=2, prefill=1, decode=1)
    assert step.reasons == ("newcomers have to serve before others are removed",)


def test_the_last_old_worker_stays_until_a_new_one_has_served() -> None:
    """dynamo #13769."""
    constraints = Constraints(dwell_s=0, removals_at_once=9)
    fresh = Observation(at=0.0, workers=[worker(0), worker(1, served=0)])
    assert constrain(engines(1), fresh, constraints).fleet == engines(1)  # the fresh one may go
    both = Observation(at=0.0, workers=[worker(0), worker(1, "starting", served=0)])
    assert constrain(engines(1), both, constraints).fleet == engines(1)
    assert constrain(Fleet(aggregated=1), both, constraints).reasons == ()
    three = Observation(at=0.0, workers=[worker(0), worker(1), worker(2, served=0)])
    assert constrain(engines(1), three, constraints).fleet == engines(1)


def test_an_absurd_number_of_engines_is_the_budget() -> None:
    """As a profile of hardly any throughput asks for; in no more time than any other."""
    allowed = constrain(Fleet(1, 10**300, 10**200), Observation(at=0.0), Constraints(engines_max=9))
    assert allowed.fleet.engines == 9
    assert allowed.fleet.prefill and allowed.fleet.decode


def test_the_minimum_is_kept_whatever_is_wanted() -> None:
    """dynamo #6637."""
    constraints = Constraints(engines_min=3, dwell_s=0, removals_at_once=9)
    step = constrain(Fleet(), seen(*["serving"] * 5), constraints)
    assert step.fleet == engines(3)
    assert "at least 3 aggregated" in step.reasons


def test_a_worker_that_starts_stops_no_removal() -> None:
    """dynamo #14251: a pending worker blocked scale-down for more than an hour."""
    constraints = Constraints(dwell_s=0)
    step = constrain(engines(2), seen("serving", "serving", "starting"), constraints)
    assert step.fleet == engines(2)


def test_a_failed_worker_holds_its_accelerator_until_it_is_gone() -> None:
    constraints = Constraints(engines_max=3)
    full = seen("serving", "serving", "failed")
    assert constrain(engines(3), full, constraints).fleet == engines(2)
    assert constrain(engines(3), seen("serving", "serving"), constraints).fleet == engines(3)


def test_what_the_cache_needs_is_not_removed() -> None:
    constraints = Constraints(dwell_s=0, removals_at_once=9)
    there = [worker(n, active_blocks=60, total_blocks=100) for n in range(4)]
    step = constrain(engines(1), Observation(at=0.0, workers=there), constraints)
    assert step.fleet == engines(3)  # 240 blocks, and a tenth more, need three
    assert "KV cache in use: 1 of 3 aggregated removed" in step.reasons


@pytest.mark.parametrize(
    ("past", "reason"),
    [
        ([Change(990.0, "aggregated", 1)], "dwell: aggregated grew 10 s ago"),
        (
            [Change(100.0, "aggregated", -1), Change(200.0, "aggregated", -1)],
            "rate limit: 0 of 1 aggregated removed",
        ),
    ],
)
def test_changes_keep_their_distance(past: list[Change], reason: str) -> None:
    """dynamo #9294: fleets that went up and down by turns."""
    constraints = Constraints(removals_per_hour=2)
    step = constrain(engines(1), seen("serving", "serving"), constraints, past)
    assert step.fleet == engines(2)
    assert step.reasons == (reason,)
    more = constrain(engines(3), seen("serving", "serving"), constraints, past)
    assert more.fleet == engines(3)  # engines are added at any time


def test_engines_of_a_burst_may_all_go_again() -> None:
    """They left a fleet of five with fifteen engines for the rest of the hour."""
    constraints = Constraints(engines_max=24, removals_per_hour=2, removals_at_once=9)
    past = [Change(100.0, "aggregated", 9), Change(300.0, "aggregated", -4)]
    step = constrain(engines(1), seen(*["serving"] * 10), constraints, past)
    assert step.fleet == engines(3)
    assert step.reasons == ("rate limit: 7 of 9 aggregated removed",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engines_max", 0),
        ("engines_min", -1),
        ("engines_min", 9),
        ("dwell_s", float("nan")),
        ("dwell_s", -1.0),
        ("removals_at_once", 0),
        ("removals_per_hour", -1),
        ("decode_accelerators", 0),
    ],
)
def test_a_bad_constraint_is_named(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        Constraints(**{key: value})
