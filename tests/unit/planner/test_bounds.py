"""Bounds hold against every course that could be tried, and a day's figures against each other."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.bench.traffic import TRAFFIC_BLOCK_SIZE, shape_traffic
from dynamo_router.engines.mocker import EngineConfig
from dynamo_router.planner import Constraints, EngineModel, Fleet, Objectives, PlanningConfig
from dynamo_router.planner.bounds import MINUTE_S, cheapest_course, course_of
from dynamo_router.planner.comparison import (
    BOUNDS,
    GRIDS,
    PEERS,
    Comparison,
    Setting,
    best_value,
    pareto,
)
from dynamo_router.planner.day import DayRun, HopelessError, day_trace
from dynamo_router.planner.profile import Curves


def price(course: tuple[int, ...], start_up_s: float, drain_s: float) -> float:
    steps = zip(course, course[1:], strict=False)
    paid = sum(max(0, b - a) * start_up_s + max(0, a - b) * drain_s for a, b in steps)
    return MINUTE_S * sum(course) + paid


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.sampled_from((0.0, 30.0, 120.0, 300.0)),
    st.sampled_from((0.0, 10.0)),
)
def test_no_course_is_cheaper(needed: list[int], start_up_s: float, drain_s: float) -> None:
    found = tuple(cheapest_course(needed, start_up_s, drain_s))
    assert all(has >= need for has, need in zip(found, needed, strict=True))
    possible = product(*(range(need, max(needed) + 1) for need in needed))
    best = min(price(each, start_up_s, drain_s) for each in possible)
    assert price(found, start_up_s, drain_s) == pytest.approx(best)


def test_a_short_dip_is_not_worth_a_start() -> None:
    assert cheapest_course([3, 1, 3], 120.0, 0.0) == [3, 3, 3]
    assert cheapest_course([3, 1, 3], 10.0, 0.0) == [3, 1, 3]
    assert cheapest_course([], 10.0, 0.0) == []
    assert course_of([Fleet(prefill=1, decode=2)] * 2, 10.0) == [Fleet(prefill=1, decode=2)] * 2


def comparison(requests: int = 500, train: bool = True, error: float = 1.0) -> Comparison:
    """A quarter of an hour, of slow engines: one to three of them are needed."""
    engine = EngineConfig(max_model_len=0, num_gpu_blocks=4096, max_num_seqs=32)
    model = EngineModel(
        engine=engine, start_up_s=20.0, speed=0.12, trace_block_size=TRAFFIC_BLOCK_SIZE
    )
    setting = Setting(
        model=model,
        objectives=Objectives(objective_ttft_ms=5000, objective_itl_ms=80),
        constraints=Constraints(engines_max=5),
        planning=PlanningConfig(start_up_s=20.0, plan_budget_s=0.2),
        curves=Curves.of_engine(engine, 0.12),
        model_error=error,
    )
    days = [
        day_trace(shape_traffic("sinus", requests, rate=0.6, seed=seed), TRAFFIC_BLOCK_SIZE)
        for seed in (0, 1)
    ]
    return Comparison(setting, days[0], days[1] if train else None)


@pytest.fixture(scope="module")
def day() -> Comparison:
    return comparison()


def test_a_golden_small_day(day: Comparison) -> None:
    """Every policy serves every request, cuts no stream of ours, and keeps the budget."""
    runs = {name: day.run(name) for name in ("plan", *PEERS, *BOUNDS)}
    assert runs["plan"].attainment >= 0.95
    assert runs["static-peak"].attainment >= 0.95
    floor = runs["bound-clairvoyant"].engine_hours
    for name, run in runs.items():
        assert run.rejected == run.over_budget_s == 0, name
        assert run.policy == name
        if run.attainment >= 0.95:
            assert run.engine_hours >= 0.97 * floor, name
    assert runs["bound-clairvoyant"].engine_hours <= runs["bound-reachable"].engine_hours * 1.001
    assert runs["plan"].aborted_streams == 0
    assert runs["plan"].engine_hours < runs["static-peak"].engine_hours
    assert all(each.reasons for each in runs["plan"].decisions)
    assert runs["static-peak"].changes == 0
    # What only reacts keeps no more than what foresees.
    assert runs["bound-no-foresight"].worst_5_min <= runs["bound-reachable"].worst_5_min + 0.02
    assert day.run("bound-clairvoyant").engine_hours == floor


@pytest.mark.parametrize("name", ["hpa-queue", "wva"])
def test_tuning_that_gives_up_what_is_hopeless_finds_the_same(day: Comparison, name: str) -> None:
    assert day.train is not None
    tried = [(value, day._peer(name, value, day.train, day.start)) for value in GRIDS[name]]
    value = best_value(tried, 0.95)
    assert day.run(f"{name}-tuned").settings == day._rule(name, value)[2]
    missed = round((1 - tried[0][1].attainment) * len(day.train.requests))
    if missed > 2:
        with pytest.raises(HopelessError):
            day._peer(name, tried[0][0], day.train, day.start, missed // 2)


def test_a_peer_is_tuned_on_the_other_day(day: Comparison) -> None:
    tuned = day.run("hpa-queue-tuned")
    assert tuned.settings.startswith("queue ")
    assert day.run("static-peak-tuned").settings.endswith("aggregated")
    assert "hpa-queue-tuned" not in comparison(60, train=False).policies()


@pytest.mark.parametrize("error", [0.8, 1.25])
def test_an_engine_model_that_is_off_is_right_by_the_end_of_the_day(error: float) -> None:
    day = comparison(error=error)
    policy = day._planner()
    assert policy.planner.model.speed == pytest.approx(0.12 / error)
    run = day._day(policy)
    assert policy.planner.model.speed == pytest.approx(0.12, rel=0.12)
    assert run.aborted_streams == 0 and not policy.planner.mismatch


def test_what_is_best_keeps_the_target_or_comes_nearest() -> None:
    def ran(name: str, attainment: float, hours: float) -> DayRun:
        return DayRun(name, attainment=attainment, engine_hours=hours)

    good, cheap, bad = ran("a", 0.97, 3.0), ran("b", 0.96, 2.0), ran("c", 0.9, 1.0)
    assert best_value([(1, good), (2, cheap), (3, bad)], 0.95) == 2
    assert best_value([(3, bad), (4, ran("d", 0.8, 9.0))], 0.95) == 3
    worse, bound = ran("w", 0.96, 2.5), ran("bound-x", 1.0, 0.1)
    assert pareto([good, cheap, bad, worse, bound]) == ["a", "b", "c"]
