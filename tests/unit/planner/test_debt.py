"""What the last hour missed beyond the target, and how long a removal is thought over."""

import pytest
from support.planner.small_fleet import (
    decide,
    fleets_of,
    judge_by,
    new_planner,
    observation,
    requests,
)

from dynamo_router.planner import Objectives, ObservedRequest, Planner
from dynamo_router.planner.rules import Debt

ENDED_S = 30.0
OBJECTIVES = Objectives(objective_ttft_ms=5000, objective_itl_ms=200)


def answers(at: float, late: int, of: int = 200) -> list[ObservedRequest]:
    """Of 80 s, whose answers have all ended; the first ones were late."""
    found = requests(at - ENDED_S, of / 80, 80.0)
    return [*requests(at - ENDED_S, of / 80, 80.0, ttft_ms=9000.0)[:late], *found[late:]]


def debt_after(*late: int) -> Debt:
    """Minutes of 200 requests each."""
    debt = Debt()
    for n, each in enumerate(late):
        at = 1000.0 + 100 * n
        debt.take(observation(at, 0.0, 1, requests=answers(at, each)), OBJECTIVES)
    return debt


def test_misses_near_what_the_target_allows_are_due_as_long_as_they_can_be_made_good() -> None:
    assert debt_after(8).due(0.95) == 0
    assert debt_after(11).due(0.95) == 1
    assert 0 < debt_after(19, 0).due(0.95) < 1
    assert debt_after(11, 0).due(0.95) == 0
    assert debt_after(40).due(0.95) == 0  # an hour of good answers brings that back no more
    assert debt_after(40, 0).due(0.95) == 1
    debt = debt_after(11)
    later = 1000.0 + 3700
    debt.take(observation(later, 0.0, 1, requests=answers(later, 0)), OBJECTIVES)
    assert debt.due(0.95) == 0


def test_a_clock_that_goes_back_leaves_no_debt() -> None:
    debt = debt_after(11)
    debt.take(observation(500.0, 0.0, 1, requests=answers(500.0, 0)), OBJECTIVES)
    assert debt.due(0.95) == 0


def test_answers_that_take_long_count_when_their_records_come() -> None:
    """A router records a request when its answer ends: slow ones are not there after 30 s yet."""
    debt, there = Debt(), answers(1000.0, 0)
    for at in (1000.0, 1100.0, 1200.0):
        there += answers(at, 0) if at > 1000 else []
        debt.take(observation(at, 0.0, 1, requests=there), OBJECTIVES)
    assert debt.due(0.95) == 0
    slow = [*there[:200], *answers(1100.0, 42), *there[200:]]
    slow.sort(key=lambda each: each.arrival_s)
    later = observation(1210.0, 0.0, 1, requests=slow, window_s=300.0)
    debt.take(later, OBJECTIVES)
    assert debt.due(0.95) == 1


def indebted(planner: Planner) -> Planner:
    """Of a window with as many late answers as make a debt, which is over."""
    planner.observe(observation(900.0, 0.0, 3, requests=answers(900.0, 130, 2000)))
    return planner


def test_while_there_is_a_debt_a_fleet_shrinks_to_what_keeps_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge_by(monkeypatch, [0.97])
    assert decide(new_planner(), 2.0, 3).after.aggregated == 2
    assert decide(indebted(new_planner()), 2.0, 3).after.aggregated == 3
    judge_by(monkeypatch, [0.99])
    assert decide(indebted(new_planner()), 2.0, 3).after.aggregated == 2


def test_what_a_window_kept_beyond_the_target_is_not_spent_while_there_is_a_debt() -> None:
    good = observation(1000.0, 2.0, 3)
    assert new_planner().level(good) == pytest.approx(0.5)
    assert indebted(new_planner()).level(good) == OBJECTIVES.confidence


def test_an_engine_that_takes_long_to_start_goes_once_plans_have_agreed_for_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge_by(monkeypatch, [0.99])
    rates = [0.4, 0.5, 0.6]
    soon = fleets_of(new_planner(), 3, 3, rates)
    assert soon[-1] == 2
    slow = fleets_of(new_planner(planning={"start_up_s": 300.0}), 3, 8, rates)
    assert slow[:5] == [3] * 5 and slow[-1] == 2
    slowest = fleets_of(new_planner(planning={"start_up_s": 1800.0}), 3, 25, rates)
    assert slowest[-1] == 2  # no start-up is so long that nothing ever goes
