"""ITL objectives in the forecast's cost: how many more are missed, and by what that is foreseen."""

from dataclasses import replace

import pytest

from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.policies import new_policy
from dynamo_router.router.policy import ForecastPolicy
from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.forecast import KEEP_WEIGHT, ForecastParams


def test_who_comes_goes_where_objectives_are_met_anyway_or_missed_anyway() -> None:
    """Not to the worker whose answers would just meet theirs without it."""
    params = ForecastParams(step_s=0.02, context_s=1e-6, itl_objective_s=0.025)
    kernel = Forecast(params)
    for worker, requests in enumerate((2, 14, 60)):  # steps of 12, 24 and 70 ms
        kernel.add_worker(worker, 8192, None)
        for turn in range(requests):
            kernel.book(f"{worker}, {turn}", worker, 1000, 1, 0.0)
            kernel.first_token(f"{worker}, {turn}", 0.0)
    rows = kernel.explain(1000, 16, None, None, None, 3, 0.001)
    met, on_the_edge, lost = (rows[worker]["missed"] for worker in range(3))
    assert met < 0.01
    assert lost == pytest.approx(1.0, abs=0.01)
    assert on_the_edge > 2.0
    heavier = Forecast(replace(params, miss_weight=params.miss_weight + 1.0))
    heavier.add_worker(0, 8192, None)
    row = heavier.explain(1000, 16, None, None, None, 1, 0.001)[0]
    alone = Forecast(params)
    alone.add_worker(0, 8192, None)
    assert row["cost"] - alone.explain(1000, 16, None, None, None, 1, 0.001)[0][
        "cost"
    ] == pytest.approx(row["missed"])


def test_a_worker_on_the_edge_is_not_avoided_at_any_price() -> None:
    """With 200 answers there that would all miss theirs, four count."""
    kernel = Forecast(ForecastParams(step_s=0.02, context_s=1e-6, itl_objective_s=0.21))
    kernel.add_worker(0, 8192, None)
    for turn in range(200):  # steps of 0.21 s
        kernel.book(str(turn), 0, 1000, 1, 0.0)
        kernel.first_token(str(turn), 0.0)
    rows = [kernel.explain(isl, 16, None, None, None, 1, 0.001)[0] for isl in (1000, 30_000)]
    assert 1.0 < rows[0]["missed"] < 4.0
    assert rows[1]["missed"] == 4.0


def test_answers_teach_how_much_longer_a_token_takes_beside_prompts() -> None:
    """Half of each answer's time prompts are computed beside it."""
    kernel, now = Forecast(ForecastParams(step_s=0.02)), 0.0
    kernel.add_worker(0, 400, None)
    for turn in range(200):
        kernel.book(f"answer {turn}", 0, 100, 100, now)
        kernel.first_token(f"answer {turn}", now := now + 0.022)
        for beside in range(2):
            kernel.book(f"beside {turn}, {beside}", 0, 400, 400, now)
            now += 0.05
            kernel.first_token(f"beside {turn}, {beside}", now)
            kernel.end(f"beside {turn}, {beside}", now, 0)
        now += 0.1
        kernel.end(f"answer {turn}", now, 11)
        now += 1.0
    assert kernel.learnt()[5] == pytest.approx(2.0, rel=0.1)


def half_slow(params: ForecastParams, *requests: int) -> Forecast:
    """Worker 1 takes twice as long as worker 0, which is known; both then have these answers."""
    kernel, now = Forecast(params), 0.0
    for worker, request_s in enumerate((0.1, 0.2)):
        kernel.add_worker(worker, 8192, None)
        for turn in range(60):
            kernel.book(f"{turn}", worker, 4000, 4000, now)
            kernel.first_token(f"{turn}", now + request_s)
            kernel.end(f"{turn}", now + request_s, 0)
            now += 1.0
    for turn in range(60):  # both in turn: the fleet's model is of both
        for worker, request_s in enumerate((0.1, 0.2)):
            kernel.book(f"{turn}", worker, 4000, 4000, now)
            kernel.first_token(f"{turn}", now + request_s)
            kernel.end(f"{turn}", now + request_s, 0)
            now += 1.0
    assert kernel.slowness(0) == 1.0 and kernel.slowness(1) > 1.3
    for worker, count in enumerate(requests):
        for turn in range(count):
            kernel.book(f"{worker}, {turn}", worker, 1000, 1, now)
            kernel.first_token(f"{worker}, {turn}", now)
    return kernel


@pytest.mark.parametrize(("requests", "kept"), [(12, False), (17, True), (40, False)])
def test_a_fast_worker_just_beyond_its_objective_is_kept_where_one_is_named(
    requests: int, kept: bool
) -> None:
    """Steps of 10 ms and 1 ms for each answer, an objective of 25: below it and far beyond, 18 and
    more, what it takes counts as without the weight; 28 ms count as if it were on the edge."""
    params = ForecastParams(step_s=0.02, context_s=1e-6, itl_objective_s=0.025)
    keeping = replace(params, keep_weight=KEEP_WEIGHT)
    rows = [
        half_slow(each, requests, 20).explain(1000, 16, None, None, None, 2, 1000.0)
        for each in (params, keeping)
    ]
    assert rows[0][1]["missed"] == rows[1][1]["missed"] == pytest.approx(1.0, abs=0.05)
    if kept:
        assert rows[0][0]["missed"] < 3.0 < rows[1][0]["missed"] <= 4.0
    else:
        assert rows[0][0]["missed"] == rows[1][0]["missed"]


def test_equal_workers_cost_the_same_whether_an_objective_is_named_or_not() -> None:
    params = ForecastParams(step_s=0.02, context_s=1e-6, itl_objective_s=0.025)
    found = []
    for each in (params, replace(params, keep_weight=KEEP_WEIGHT)):
        kernel = Forecast(each)
        kernel.add_worker(0, 8192, None)
        for turn in range(17):
            kernel.book(str(turn), 0, 1000, 1, 0.0)
            kernel.first_token(str(turn), 0.0)
        found.append(kernel.explain(1000, 16, None, None, None, 1, 0.001)[0]["missed"])
    assert found[0] == found[1] > 1.0


@pytest.mark.parametrize(("named_ms", "weight"), [(None, 0.0), (25.0, KEEP_WEIGHT)])
def test_fast_workers_are_kept_where_the_settings_name_an_objective(
    named_ms: float | None, weight: float
) -> None:
    config = KvRouterConfig(admission=AdmissionConfig(slo_itl_ms=named_ms))
    policy = new_policy(config)
    assert isinstance(policy, ForecastPolicy)
    assert policy.params.keep_weight == weight
