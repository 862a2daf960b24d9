"""The planner's decisions on fleets whose right size is known, and on observations gone wrong."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.planner.small_fleet import (
    ITL_MS,
    SPEED,
    decide,
    fleets_of,
    new_planner,
    observation,
    requests,
    workers,
)

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.simulation import Simulation
from dynamo_router.planner import (
    Fleet,
    Objectives,
    Observation,
    ObservedWorker,
    PlanningConfig,
    choose_victims,
    search,
)
from dynamo_router.planner.fleet import Role
from dynamo_router.planner.planning import CpuBudget
from dynamo_router.planner.rules import alarms
from dynamo_router.planner.what_if import Outcome, Scenario


def test_too_few_engines_become_as_many_as_are_needed() -> None:
    decision = decide(new_planner(), 2.4, 1, plans=1)
    assert decision.kind == "plan"
    needed = decision.after.aggregated
    assert 2 <= needed <= 4
    assert decision.scores and decision.scenarios >= 1
    assert any("wanted are" in each for each in decision.reasons)
    again = decide(new_planner(), 2.4, needed, plans=1)
    assert not again.changes


def test_an_engine_too_many_is_removed_when_plans_agree() -> None:
    planner = new_planner()
    first = planner.observe(observation(1000.0, 0.8, 3))
    assert not first.changes
    assert any("2 plans have to find that" in each for each in first.reasons)
    for n in (1, 2):
        last = planner.observe(observation(1000.0 + 60 * n, 0.8, 3))
    assert last.after == Fleet(aggregated=2)
    assert len(last.victims) == 1


def test_a_burst_is_answered_between_plans_and_nothing_is_removed_there() -> None:
    planner = new_planner()
    assert not decide(planner, 1.0, 1, plans=1).changes
    calm = planner.observe(observation(1005.0, 1.0, 1))
    assert calm.kind == "hold" and not calm.changes
    at = 1015.0
    burst = [*requests(at - 10, 1.0, 80.0), *requests(at, 10.0, 10.0, ttft_ms=None, itl_ms=None)]
    decision = planner.observe(observation(at, 0.0, 1, requests=burst))
    assert decision.after.aggregated > 1
    assert not planner.observe(observation(at + 5, 0.1, 3)).changes


def test_late_answers_raise_an_alarm_though_the_plan_saw_none() -> None:
    planner = new_planner()
    decide(planner, 0.8, 1, plans=1)
    late = requests(1025.0, 0.8, 90.0, ttft_ms=9000.0)
    decision = planner.observe(observation(1025.0, 0.0, 1, requests=late))
    assert decision.after == Fleet(aggregated=2)
    starting = [*workers(1), *workers(1, state="starting", age_s=5.0)]
    waiting = planner.observe(observation(1030.0, 0.0, 0, requests=late, workers=starting))
    assert not waiting.changes  # what was started is waited for


def test_no_data_removes_nothing_and_says_so() -> None:
    """dynamo #6985, the own docs' insufficient data: no data is no silence."""
    decision = decide(new_planner(), 4.0, 5, requests=None)
    assert not decision.changes
    assert "no data on requests" in decision.reasons


def test_confirmed_silence_leaves_the_smallest_fleet() -> None:
    planner = new_planner()
    there, seen = 4, []
    for n in range(8):
        decision = planner.observe(
            observation(1000.0 + 60 * n, 0.0, there, requests=(), window_s=600.0)
        )
        there = decision.after.aggregated
        seen.append(there)
    assert seen == [3, 2, 1, 1, 1, 1, 1, 1]  # one drains at a time
    short = new_planner().observe(observation(10.0, 0.0, 4, requests=(), window_s=10.0))
    assert not short.changes
    assert short.reasons == ("no request in 10 s: too short a silence",)


def test_an_engine_model_that_is_off_is_corrected() -> None:
    planner = new_planner(speed=1.25 * SPEED)
    decide(planner, 0.8, 1, plans=1)
    first = planner.model.speed
    for n in range(1, 6):
        planner.observe(observation(1000.0 + 60 * n, 0.8, 1))
    assert not planner.mismatch
    assert planner.model.speed == pytest.approx(first, rel=0.15)
    slower = new_planner(speed=1.6 * SPEED)
    decide(slower, 0.8, 1)
    assert slower.model.speed == pytest.approx(planner.model.speed, rel=0.15)


def test_a_model_beyond_its_limits_removes_nothing() -> None:
    planner = new_planner()
    slow = requests(1000.0, 1.2, 90.0, itl_ms=190.0)
    decision = planner.observe(observation(1000.0, 0.0, 6, requests=slow))
    for n in range(1, 5):
        at = 1000.0 + 60 * n
        slow = requests(at, 1.2, 90.0, itl_ms=190.0)
        decision = planner.observe(observation(at, 0.0, 6, requests=slow))
    assert not decision.changes
    assert any(each.startswith("model mismatch: engines take") for each in decision.reasons)


def test_answers_of_new_workers_say_nothing_of_the_model() -> None:
    """dynamo #12430: samples of a cold start poisoned the capacity model."""
    planner = new_planner()
    cold = requests(1000.0, 1.0, 90.0, itl_ms=190.0, worker_id=0)
    planner.observe(observation(1000.0, 0.0, 1, requests=cold, workers=workers(1, served=2)))
    assert planner.model.speed == SPEED and not planner.mismatch


def test_what_a_quiet_fleet_served_is_not_what_its_engines_can_do() -> None:
    planner = new_planner()
    decide(planner, 0.2, 1, plans=3)
    assert not planner.capacity
    busier = planner.observe(observation(1130.0, 1.2, 1))  # one engine does 1.6
    assert not any(each.startswith("rule:") for each in busier.reasons), busier.reasons
    for n in range(3):
        planner.observe(observation(1240.0 + 60 * n, 3.0, 2))  # less than two was tried, and failed
    assert planner.capacity["aggregated"] > 1.0


def test_what_is_there_counts_not_what_was_asked_for() -> None:
    """dynamo #4420: manual edits were invisible."""
    planner = new_planner()
    wanted = decide(planner, 2.4, 1, plans=1).after
    later = planner.observe(observation(1060.0, 2.4, 1))  # none of them came
    assert later.before == Fleet(aggregated=1)
    assert later.after.aggregated >= wanted.aggregated


def test_workers_that_never_get_ready_are_given_up() -> None:
    """dynamo #14251."""
    there = [*workers(2), replace(workers(1, state="failed")[0], worker_id=9)]
    decision = decide(new_planner(), 0.8, 0, plans=1, workers=there)
    assert "given up, as they do not get ready: 1 aggregated" in decision.reasons
    assert 9 in decision.victims


def test_reports_of_unknown_workers_are_named_and_planning_goes_on() -> None:
    """dynamo #12591."""
    decision = decide(new_planner(), 2.4, 1, plans=1, unmatched=2)
    assert "2 reports of unknown workers were left out" in decision.reasons
    assert decision.changes


def test_a_clock_that_goes_back_stops_no_planner() -> None:
    planner = new_planner()
    decide(planner, 0.8, 2, plans=2)
    back = planner.observe(observation(100.0, 0.8, 2))
    assert any(each.startswith("the clock went back by") for each in back.reasons)
    assert not back.changes
    assert planner.observe(observation(165.0, 2.4, 1)).changes


def test_prefill_and_decode_engines_are_planned_together() -> None:
    there = [
        ObservedWorker(worker_id=n, role=role, state="serving", age_s=999.0, served=99)  # type: ignore[arg-type]  # a Role
        for n, role in enumerate(("prefill", "decode"))
    ]
    planner = new_planner(roles="disaggregated", engines_max=6)
    decision = decide(planner, 2.4, 0, plans=1, workers=there)
    assert decision.after.prefill >= 1 and decision.after.decode >= 2
    assert not decision.after.aggregated


def test_a_plan_ends_when_its_cpu_is_spent() -> None:
    short = decide(new_planner(planning={"plan_budget_s": 0.2}), 4.0, 1, plans=1)
    longer = decide(new_planner(planning={"plan_budget_s": 2.0}), 4.0, 1, plans=1)
    assert 1 <= len(short.scores) < len(longer.scores) < 40


class SimulationClock:
    """A clock of CPU, which a simulated request takes `each_s` of; read at each look at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each_s: float) -> None:
        self.now, self.simulated = 0.0, list[int]()
        route = Simulation._route

        def counted(simulation: Simulation, place: int, now: float) -> None:
            self.now += each_s
            self.simulated[-1] += 1
            route(simulation, place, now)

        begin = Simulation.run

        def run(simulation: Simulation, *given: Any, **named: Any) -> Any:
            self.simulated.append(0)
            return begin(simulation, *given, **named)

        monkeypatch.setattr(Simulation, "_route", counted)
        monkeypatch.setattr(Simulation, "run", run)


@pytest.mark.parametrize("rate", [2.0, 20.0, 60.0])
@pytest.mark.parametrize("each_s", [1e-4, 1e-3, 5e-3])
def test_cpu_holds_at_any_load_and_cost_of_a_request(
    monkeypatch: pytest.MonkeyPatch, rate: float, each_s: float
) -> None:
    """Simulations end soon after half a second of it, whatever a request costs."""
    clock = SimulationClock(monkeypatch, each_s)
    budget = CpuBudget(0.5, lambda: clock.now)
    planner = new_planner(engines_max=64, planning={"start_up_s": 300.0}, budget=budget)
    for n in range(3):
        before = clock.now
        decision = planner.observe(observation(1000.0 + 60 * n, rate, 48))
        # A look is 64 requests after the last at most, or what is routed in 5 s.
        assert clock.now - before <= 0.5 + (64 + 5 * rate) * each_s
    assert decision.scores
    told = [each for each in decision.reasons if "s ahead were simulated" in each]
    assert bool(told) == (rate * 375 * each_s > 0.25)


def test_where_no_fleet_can_be_simulated_none_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulationClock(monkeypatch, 1.0)
    planner = new_planner(engines_max=64, budget=CpuBudget(0.5, lambda: clock.now))
    decision = planner.observe(observation(1000.0, 20.0, 8))
    assert not decision.changes and not decision.scores
    assert "no fleet could be simulated in 0.5 s of CPU" in decision.reasons


def test_fleets_are_judged_alike_where_little_of_the_time_is_simulated() -> None:
    """Load and engines are whole, only time is left out: as many engines are found to be enough."""
    needed = []
    for budget_s in (0.4, 8.0):
        planner = new_planner(
            engines_max=16, planning={"plan_budget_s": budget_s, "start_up_s": 300.0}
        )
        needed.append(decide(planner, 8.0, 3, plans=1).after.aggregated)
    assert abs(needed[0] - needed[1]) <= 1


def test_a_request_dated_after_what_is_seen_stops_no_plan() -> None:
    """By the clock of a router that is ahead."""
    ahead = [*requests(1000.0, 0.8, 90.0), *requests(1001.0, 2.0, 1.0)]
    decision = new_planner().observe(observation(1000.0, 0.0, 1, requests=ahead))
    assert decision.kind == "plan" and decision.scores


def test_the_budget_is_the_end() -> None:
    decision = decide(new_planner(engines_max=2), 5.0, 2, plans=1)
    assert decision.after == Fleet(aggregated=2)
    assert any(each.startswith("no fleet seen keeps 9") for each in decision.reasons)


def test_many_engines_too_many_are_found_in_a_few_steps() -> None:
    """After a spike; before, candidates went down by one, and a plan's CPU was enough for two."""
    decision = decide(new_planner(engines_max=32), 2.4, 24, plans=1)
    assert decision.reasons[-1].startswith(("2 aggregated", "3 aggregated")), decision.reasons
    assert len(decision.scores) <= 10


def test_the_first_requests_after_a_silence_are_planned_for_soon() -> None:
    """Sooner than `plan_every_s` after an empty fleet's first look."""
    planner = new_planner()
    planner.observe(observation(1000.0, 0.0, 1, requests=(), window_s=60.0))
    begun = requests(1015.0, 3.0, 15.0)
    decision = planner.observe(observation(1015.0, 0.0, 1, requests=begun, window_s=75.0))
    assert decision.kind == "plan" and decision.scores


def test_a_few_seconds_of_arrivals_start_no_engines() -> None:
    """So few arrivals say little of their rate. Late answers are planned for at once."""
    planner, late = new_planner(), new_planner()
    for n in range(1, 4):
        begun = requests(1000.0 + 15 * n, 3.0, 15.0 * n)
        seen = observation(1000.0 + 15 * n, 0.0, 1, requests=begun, window_s=15.0 * n)
        decision = planner.observe(seen)
        assert not decision.changes and not decision.scores
    begun = requests(1060.0, 3.0, 60.0)
    minute = planner.observe(observation(1060.0, 0.0, 1, requests=begun, window_s=60.0))
    assert minute.after.aggregated > 1
    begun = requests(1015.0, 3.0, 15.0, ttft_ms=9000.0)
    first = late.observe(observation(1015.0, 0.0, 1, requests=begun, window_s=15.0))
    assert first.scores and first.changes


def test_engines_are_there_when_the_season_ends_a_silence() -> None:
    """They are started a start-up before the first requests are foreseen."""
    yesterday = [0.0] * 40 + [45.0] * 40
    planner = new_planner(season=yesterday)
    planner.capacity["aggregated"] = 1.5
    there = [1]
    for n in range(20):  # from bin 20 on, every bin; requests come at 300 s
        seen = observation(1000.0 + 15 * n, 0.0, there[-1], requests=(), window_s=300.0)
        there.append(planner.observe(seen).after.aggregated)
    assert there[10] == 1 and max(there) >= 2, there
    assert there[-2] >= 2, "a start-up of 30 s before they come"


def test_no_engine_goes_while_the_horizon_holds_a_peak() -> None:
    """dynamo #9294: an engine went, and was missed before the next one served."""
    night, peak = [15.0] * 10, [90.0] * 40
    fleets = [
        fleets_of(new_planner(season=season), 4, 3, [1.0])
        for season in ([*night, *peak, *night], [*night, *night, *night])
    ]
    assert min(fleets[0]) >= 4
    assert fleets[1][-1] < 4


def test_victims_are_those_that_serve_least() -> None:
    there = [
        replace(workers(1)[0], worker_id=1, running=5),
        replace(workers(1)[0], worker_id=2, running=1),
        replace(workers(1, state="starting")[0], worker_id=3),
    ]
    seen = Observation(at=0.0, workers=there)
    assert choose_victims(seen, Fleet(aggregated=1)) == (3, 2)
    assert choose_victims(seen, Fleet(aggregated=3)) == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("start_up_s", -1.0),
        ("start_up_s", math.nan),
        ("plan_every_s", 0.0),
        ("plan_budget_s", math.inf),
        ("window_s", 5.0),
        ("roles", "none"),
    ],
)
def test_a_bad_setting_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        PlanningConfig(**{key: value})


def test_late_first_tokens_need_engines_though_throughput_does_not() -> None:
    """dynamo #11638: a floor of prefill by throughput keeps no TTFT."""
    long = [replace(each, prompt_tokens=12_000) for each in requests(1000.0, 0.4, 120.0)]
    fleets = []
    for ttft_ms in (20_000, 1_500):
        planner = new_planner()
        planner.objectives = Objectives(objective_ttft_ms=ttft_ms, objective_itl_ms=200)
        seen = observation(1000.0, 0.0, 1, requests=long, window_s=120.0)
        fleets.append(planner.observe(seen).after)
    slow, fast = fleets
    assert slow.aggregated < fast.aggregated


def test_a_plan_adds_as_many_engines_as_are_needed_at_once() -> None:
    """llm-d's WVA moves by one engine at a time."""
    decision = decide(new_planner(engines_max=16), 12.0, 4, plans=1)
    assert decision.after.aggregated >= 7
    assert len(decision.scores) < 8


def test_what_a_plan_found_too_many_goes_on_to_drain_until_something_is_late() -> None:
    planner = new_planner()
    for n in range(3):
        decision = planner.observe(observation(1000.0 + 60 * n, 0.8, 4))
    assert decision.after == Fleet(aggregated=3) and decision.desired == Fleet(aggregated=1)
    at = 1125.0
    assert not planner.observe(
        observation(at, 0.8, 0, workers=[*workers(3), *_draining()])
    ).changes  # one at a time
    going = planner.observe(observation(at + 5, 0.8, 3))
    assert going.after == Fleet(aggregated=2)
    assert going.reasons == (
        "the last plan found 1 aggregated enough",
        "draining: 1 of 2 aggregated removed",
    )
    late = requests(at + 10, 0.8, 90.0, ttft_ms=9000.0)
    planner.observe(observation(at + 10, 0.0, 3, requests=late))
    after = planner.observe(observation(at + 15, 0.8, 3))
    assert after.after.aggregated >= 3


def _draining() -> list[ObservedWorker]:
    return [replace(workers(1, state="draining")[0], worker_id=9)]


def test_a_backlog_older_than_the_lead_says_nothing_of_the_model() -> None:
    planner = new_planner()
    slow = requests(1000.0, 1.2, 90.0, itl_ms=150.0, ttft_ms=9000.0)
    fresh = [*workers(2), replace(workers(1, age_s=40.0)[0], worker_id=9)]
    planner.observe(observation(1000.0, 0.0, 0, requests=slow, workers=fresh))
    assert planner.model.speed == SPEED
    planner.observe(observation(1060.0, 0.0, 3, requests=requests(1060.0, 1.2, 90.0, itl_ms=150.0)))
    assert planner.model.speed < SPEED


def test_engines_faster_than_their_model_are_not_added_to_before_that_is_known() -> None:
    """Answers are compared with the model before a plan adds engines by it."""
    there = workers(1, age_s=60.0)
    asked = requests(1000.0, 0.9, 60.0, itl_ms=28.0)
    for known_s in (60.0, 120.0):
        planner = new_planner(speed=SPEED / 2)
        seen = observation(1000.0, 0.0, 0, requests=asked, workers=there, window_s=known_s)
        first = planner.observe(seen)
        assert first.scores[-1].fleet.aggregated > 1, "the model finds one too few"
        assert not first.changes, first.reasons
        assert first.reasons[-1] == "how fast engines are was not known: more are not started yet"
        assert planner.model.speed > 1.3 * SPEED / 2
    late = requests(1000.0, 0.9, 60.0, ttft_ms=9000.0)
    seen = observation(1000.0, 0.0, 0, requests=late, workers=there, window_s=60.0)
    assert new_planner(speed=SPEED / 2).observe(seen).changes, "late answers wait for nothing"


def test_a_clock_that_jumps_by_a_year_costs_no_more_than_a_gap() -> None:
    """The bins of the year are not gone through one by one."""
    planner = new_planner()
    decide(planner, 0.8, 2, plans=1)
    skipped = []
    planner.forecast.skip = lambda bins=1: skipped.append(bins)  # type: ignore[method-assign]
    decision = planner.observe(observation(1000.0 + 365 * 86400, 0.8, 2))
    assert any(each.startswith("nothing is known of") for each in decision.reasons)
    assert not decision.changes
    assert 0 < len(skipped) <= 5000


@pytest.mark.parametrize("facts", [{"output_tokens": 10**12}, {"prompt_tokens": 10**12}])
def test_a_record_of_absurd_lengths_is_not_believed(facts: dict[str, int]) -> None:
    """A simulation of such an answer would have no end."""
    absurd = [*requests(1000.0, 0.8, 90.0)]
    absurd[5] = replace(absurd[5], **facts)
    decision = new_planner().observe(observation(1000.0, 0.0, 2, requests=absurd))
    assert decision.kind == "plan" and not decision.after.engines < 2


def test_an_engine_missed_after_its_removal_makes_the_next_removal_slower() -> None:
    """dynamo #9294: between two sizes that are both nearly right, fleets went up and down."""
    planner, there, at, removals = new_planner(), 3, 1000.0, []
    for n in range(60):
        decision = planner.observe(observation(at + 60 * n, 0.8, there))
        if decision.after.aggregated < there:
            removals.append(n)
            there = decision.after.aggregated
        elif removals and n == removals[-1] + 3:  # they are missed
            late = requests(at + 60 * n + 20, 0.8, 90.0, ttft_ms=9000.0)
            seen = observation(at + 60 * n + 20, 0.0, there, requests=late)
            there = planner.observe(seen).after.aggregated
    gaps = np.diff(removals)
    assert list(gaps) == sorted(gaps) and gaps[-1] >= 20, removals


def test_a_window_whose_requests_are_over_is_planned_for() -> None:
    """With a forecast of none after them: a scenario may be without requests."""
    planner = new_planner()
    old = requests(1000.0, 0.8, 100.0)
    for n in range(8):
        at = 1000.0 + 60 * n
        decision = planner.observe(observation(at, 0.0, 2, requests=old, window_s=100.0 + 60 * n))
    assert decision.kind == "plan" and decision.after.aggregated <= 2


def test_where_no_fleet_keeps_the_target_no_more_are_asked_for_than_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backlog that no fleet can mend does not ask for the whole budget."""

    def judged(_model: Any, _workers: Any, fleet: Fleet, scenario: Scenario, *_: Any) -> Outcome:
        kept = 0.9 if fleet.aggregated >= 5 else 0.2
        past = np.full(int((np.asarray(scenario.arrivals_s) < 0).sum()), ITL_MS)
        return Outcome(kept, kept, 1 - kept, 0.0, 100.0 * fleet.aggregated, past, past)

    monkeypatch.setattr(search, "simulate_candidate", judged)
    planner = new_planner(engines_max=32)
    assert planner.observe(observation(1000.0, 3.0, 2)).after.aggregated == 5


def test_what_chance_explains_of_arrivals_of_sessions_is_no_alarm() -> None:
    busy = observation(1000.0, 3.0, 1)
    objectives = Objectives(objective_ttft_ms=5000, objective_itl_ms=200)
    capacity: dict[Role, float] = {"aggregated": 1.2}
    assert alarms(busy, objectives, capacity, Fleet(1))
    assert not alarms(busy, objectives, capacity, Fleet(1), dispersion=4.0)


def test_a_jump_of_arrivals_is_planned_for_at_once() -> None:
    """In the look that sees it."""
    planner = new_planner()
    decide(planner, 0.6, 2, plans=4)
    begun = [*requests(1180.0, 0.6, 90.0), *requests(1195.0, 5.0, 15.0)]
    decision = planner.observe(observation(1195.0, 0.0, 2, requests=begun, window_s=105.0))
    assert "arrivals have jumped to 5.0 a second" in decision.reasons
    assert decision.kind == "plan" and decision.after.aggregated >= 4
