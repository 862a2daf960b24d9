"""ITL objectives in the forecast's cost: how many more are missed, and by what that is foreseen."""

from dataclasses import replace

import numpy as np
import pytest

from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.forecast import ForecastParams


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
    ] == pytest.approx(7.0 * row["missed"])  # nobody else is there


def test_a_session_leaves_a_busy_worker_before_both_answers_are_late() -> None:
    """Where another one is idle, though it computes all of the prompt anew. Where all have as
    much to do as they can, it stays: there another answer would be late in its place."""
    params = ForecastParams(token_s=1.5e-5, context_s=1e-7, itl_objective_s=0.019)

    def costs(requests: int) -> list[float]:
        """Of the worker that has the prompt cached and answers another one, and of an idle one."""
        kernel = Forecast(params)
        for worker in range(4):
            kernel.add_worker(worker, 8192, None)
        kernel.book("long", 0, 60_000, 1, 0.0)  # steps of 16 ms; with the prompt of 22
        kernel.first_token("long", 0.0)
        for turn in range(requests):
            kernel.book(str(turn), 2 + turn % 2, 10, 1, 0.0)
            kernel.first_token(str(turn), 0.0)
        cached = np.array([59_200 // 16, 0, 0, 0], np.uint32)
        rows = kernel.explain(60_000, 16, cached, None, None, 4, 0.001)
        assert rows[0]["missed"] > 1.5 and rows[1]["missed"] < 0.15
        return [rows[worker]["cost"] for worker in (0, 1)]

    stays, leaves = costs(0)
    assert leaves < stays
    stays, leaves = costs(7)  # two requests a worker
    assert stays < leaves


@pytest.mark.parametrize("requests", [0, 1, 2, 4, 8, 12])
def test_a_missed_objective_weighs_by_how_much_time_engines_have_over(requests: int) -> None:
    """Seven times as much where none has a request as where there are two on each, on average."""
    found = []
    for weight in (0.2, 0.0):
        params = ForecastParams(itl_objective_s=0.01, miss_weight=weight)
        kernel = Forecast(params)
        for worker in range(4):
            kernel.add_worker(worker, 8192, None)
        for turn in range(requests):
            kernel.book(str(turn), turn % 4, 10, 1, 0.0)
            kernel.first_token(str(turn), 0.0)
        found.append(kernel.explain(1000, 16, None, None, None, 4, 0.001)[3])
    more = 6 * (1 - min(1.0, requests / 4 / 2)) ** 2
    assert found[0]["missed"] > 0.0
    weighed = found[0]["cost"] - found[1]["cost"]
    assert weighed == pytest.approx(0.2 * (1 + more) * found[0]["missed"])


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
