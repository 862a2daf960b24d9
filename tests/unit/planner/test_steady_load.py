"""Loads that stay as they are: fleets that are left alone, and what moves them all the same."""

from dataclasses import replace
from typing import Any

import pytest
from support.planner.small_fleet import (
    ITL_MS,
    fleets_of,
    judge_by,
    new_planner,
    observation,
    requests,
)

from dynamo_router.planner import search
from dynamo_router.planner.what_if import Outcome


def test_constant_load_is_left_alone() -> None:
    """dynamo #9294, #14231: fleets that moved at every tick."""
    planner, there, changes = new_planner(), 2, 0
    for n in range(12):
        decision = planner.observe(observation(1000.0 + 60 * n, 1.0, there))
        there, changes = decision.after.aggregated, changes + decision.changes
    assert changes <= 1


@pytest.mark.parametrize(
    ("two_keep", "settled"),
    [
        ((*[1.0] * 9, 0.4), 3),  # eight plans that agree are no proof: the mean is 94 %
        ((1.0, 1.0, 1.0, 0.9), 2),  # one plan that misses neither: the mean is 97.5 %
    ],
)
def test_a_steady_load_changes_no_fleet_once_it_is_settled(
    monkeypatch: pytest.MonkeyPatch, two_keep: tuple[float, ...], settled: int
) -> None:
    """Two plans in turn that have calm arrivals remove no engine."""
    judge_by(monkeypatch, two_keep)
    for there in (2, 3):
        fleets = fleets_of(new_planner(), there, 60, [1.0])
        assert fleets[12:] == [settled] * 48, fleets


def test_bursts_of_a_load_that_was_constant_for_an_hour_change_no_fleet() -> None:
    """The rate of the hour is planned for, not each burst."""
    planner, there, changes = new_planner(season=[30.0] * 240), 2, 0
    for n in range(20):
        at, rate = 1000.0 + 60 * n, (2.0, 2.0, 3.4, 1.2, 2.0)[n % 5]
        asked = [
            replace(each, session=f"{n}.{place // 8}")
            for place, each in enumerate(requests(at, rate, 90.0))
        ]
        decision = planner.observe(observation(at, 0.0, there, requests=asked))
        there, changes = decision.after.aggregated, changes + decision.changes
    assert changes <= 1


def test_a_burst_of_a_settled_load_adds_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The burst is over before as many engines as it needs would serve."""
    planner = new_planner(season=[15.0] * 240)
    judge_by(monkeypatch, (1.0,))
    assert fleets_of(planner, 1, 1, [1.0]) == [2]
    judge_by(monkeypatch, (0.0,))
    keep = {1: 0.0, 2: 0.0, 3: 0.2, 4: 0.3}
    judged = search.simulate_candidate

    def burst(*arguments: Any) -> Outcome:
        outcome, kept = judged(*arguments), keep.get(arguments[2].aggregated, 1.0)
        return outcome._replace(attainment=kept, late=kept)

    monkeypatch.setattr(search, "simulate_candidate", burst)
    late = requests(1060.0, 1.0, 90.0, ttft_ms=9000.0)
    decision = planner.observe(observation(1060.0, 0.0, 2, requests=late))
    assert any("5 aggregated 100.0%" in each for each in decision.reasons), decision.reasons
    assert decision.after.aggregated == 3


def test_an_engine_that_late_answers_of_a_settled_load_called_for_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans from before its start that found one less enough do not count."""
    judge_by(monkeypatch, (1.0,))
    planner = new_planner(season=[15.0] * 240)
    assert fleets_of(planner, 2, 30, [1.0]) == [2] * 30
    late = requests(2800.0, 1.0, 90.0, ttft_ms=9000.0)
    assert planner.observe(observation(2800.0, 0.0, 2, requests=late)).after.aggregated == 3
    there = 3
    for n in range(24):
        there = planner.observe(observation(2860.0 + 60 * n, 1.0, there)).after.aggregated
        assert there == (3 if n < 19 else 2), f"{n} plans later"


@pytest.mark.parametrize(("two_keep", "there"), [(0.98, 3), (0.99, 2)])
def test_a_settled_fleet_shrinks_where_bursts_have_room(
    monkeypatch: pytest.MonkeyPatch, two_keep: float, there: int
) -> None:
    """With 2 % of misses at the rate of an hour, its bursts miss 8 %."""
    judge_by(monkeypatch, (two_keep,))
    assert fleets_of(new_planner(season=[15.0] * 240), 3, 30, [1.0])[-1] == there


def test_late_answers_of_a_constant_load_are_not_outvoted(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_by(monkeypatch, (1.0,))
    planner = new_planner(season=[15.0] * 240)
    assert fleets_of(planner, 2, 30, [1.0]) == [2] * 30
    judge_by(monkeypatch, (0.8,))
    for n, every in enumerate((100, 100, 8)):
        at = 2800.0 + 60 * n
        asked = [
            replace(each, itl_ms=500.0 if place % every == 0 else ITL_MS)
            for place, each in enumerate(requests(at, 1.0, 600.0))
        ]
        seen = observation(at, 0.0, 2, requests=asked, window_s=600.0)
        assert planner.observe(seen).after.aggregated == (2 if every == 100 else 3)


def test_a_load_that_changes_is_not_held_by_what_plans_found_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge_by(monkeypatch, (1.0,))
    planner = new_planner()
    assert fleets_of(planner, 2, 10, [1.0])[-1] == 2
    judge_by(monkeypatch, (0.5,))
    busier = planner.observe(observation(1600.0, 3.0, 2))
    assert busier.after.aggregated >= 3, busier.reasons
    assert not any("steady" in each for each in busier.reasons)


def test_late_answers_are_not_outvoted_by_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_by(monkeypatch, (1.0,))
    planner = new_planner()
    fleets_of(planner, 2, 10, [1.0])
    judge_by(monkeypatch, (0.9,))
    held = planner.observe(observation(1600.0, 1.0, 2))
    assert not held.changes
    assert any("arrivals have been steady for" in each for each in held.reasons), held.reasons
    late = [
        replace(each, itl_ms=500.0 if n % 10 == 0 else ITL_MS)
        for n, each in enumerate(requests(1660.0, 1.0, 90.0))
    ]
    assert planner.observe(observation(1660.0, 0.0, 2, requests=late)).after.aggregated == 3


def test_a_regret_is_forgotten_with_the_load_that_it_was_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rise after a removal doubles the plans that have to agree, until arrivals are others."""
    judge_by(monkeypatch, (1.0,))
    planner = new_planner()
    assert fleets_of(planner, 3, 4, [1.0])[-1] == 2
    late = requests(1225.0, 1.0, 90.0, ttft_ms=9000.0)
    assert planner.observe(observation(1225.0, 0.0, 2, requests=late)).after.aggregated == 3
    there = 3
    for n in range(16):  # from the sixth on five times as many come
        seen = observation(1285.0 + 60 * n, 1.0 if n < 6 else 5.0, there)
        there = planner.observe(seen).after.aggregated
        if n == 2:
            assert there == 3, "four plans have to agree"
    assert there == 2
    planner.observe(observation(1285.0 + 60 * 16, 5.0, 3))
    following = planner.observe(observation(1285.0 + 60 * 16 + 30, 5.0, 3))
    assert following.after.aggregated == 2, "two plans, half a minute apart"


def test_a_plan_of_a_load_that_ends_does_not_count_for_the_one_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rise of yesterday's that does not come holds engines for a few plans only."""
    judge_by(monkeypatch, (1.0,))
    yesterday = [15.0] * 45 + [90.0] * 40
    planner = new_planner(season=yesterday)
    fleets_of(planner, 2, 10, [1.0])
    assert planner.forecast.steady_s(1.0) == 0.0
    assert len(planner._trials) < 9, "the first knew too little"
