"""Where engines do not do what is foreseen, a score without a model decides, and it is said."""

import logging
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.policy.routers import router_among

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.router.policy import Explanation
from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.forecast import ForecastParams
from dynamo_router.server.metrics.collectors import forecast_metrics

BLOCK = 16
FACTS = {"total_kv_blocks": 1000, "max_num_batched_tokens": 512}
LOG = "dynamo_router.router.policy.forecast"


@pytest.fixture
def router(clock: ManualClock) -> Iterator[KvRouter]:
    with router_among(0, 1, clock=clock, seed=3, facts=FACTS, block_size=BLOCK) as made:
        yield made


def prompt(number: int, tokens: int) -> Any:
    return np.full(tokens, number + 1, np.uint32) * 7


def serve(router: KvRouter, clock: ManualClock, count: int, *, erratic: bool) -> None:
    """Prompts one after the other, by engines that take what tokens take, or anything."""
    rng = random.Random(count)
    for turn in range(count):
        tokens = rng.randint(100, 4000)
        router.decide(prompt(turn, tokens), "request")
        clock.advance(rng.lognormvariate(-1.0, 1.2) if erratic else 0.01 + tokens * 1e-4)
        router.mark_prefill_complete("request")
        clock.advance(0.2)
        router.free("request", output_tokens=20)
        clock.advance(1.0)


def explained(router: KvRouter) -> Explanation:
    return router.explain(prompt(1, 300))


def trusted(router: KvRouter) -> bool:
    state = explained(router).residuals
    assert state is not None and state == router.residuals
    return state.trusted


def test_it_falls_back_and_returns_by_itself_and_says_so_once(
    router: KvRouter, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    serve(router, clock, 200, erratic=False)
    assert trusted(router) and not caplog.records
    with caplog.at_level(logging.WARNING, logger=LOG):
        serve(router, clock, 600, erratic=True)
        assert not trusted(router)
        assert [line.message.partition(":")[0] for line in caplog.records] == ["forecast fails"]
        serve(router, clock, 900, erratic=False)
    assert trusted(router)
    assert [line.message.partition(":")[0] for line in caplog.records] == [
        "forecast fails",
        "forecast recovered",
    ]
    assert router.residuals is not None and router.residuals.fallbacks == 1


def test_it_says_which_prediction_failed_with_what_was_foreseen_and_seen(
    router: KvRouter, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    serve(router, clock, 200, erratic=False)
    assert explained(router).to_dict()["residuals"]["failed"] is None
    with caplog.at_level(logging.WARNING, logger=LOG):
        serve(router, clock, 600, erratic=True)
    failed = explained(router).to_dict()["residuals"]["failed"]
    assert failed["kind"] == "ttft" and failed["worker"] is None
    assert abs(failed["took_s"] - failed["foreseen_s"]) > 0.05
    said = f"took {failed['took_s']:.4g} s, predicted {failed['foreseen_s']:.4g} s"
    assert "TTFTs" in caplog.text and said in caplog.text
    samples = {
        (sample.labels["kind"], sample.labels["value"]): sample.value
        for metric in forecast_metrics(router)()
        for sample in metric.samples
        if sample.name == "dynamo_router_forecast_failed_seconds"
    }
    assert samples == {
        ("ttft", "foreseen"): failed["foreseen_s"],
        ("ttft", "seen"): failed["took_s"],
    }


def test_then_costs_are_tokens_times_requests_and_nobody_is_held_for_prompts(
    router: KvRouter, clock: ManualClock
) -> None:
    serve(router, clock, 600, erratic=True)
    router.decide(prompt(50, 400), "busy", pinned_worker=0)
    router.decide(prompt(51, 900), "busier", pinned_worker=1)
    clock.advance(1e-4)
    assert router.seconds_until_free() == 0.0
    assert router.queue_terms(prompt(2, 5000))[1] == 0.0
    told = explained(router)
    assert [each.cost for each in told.candidates] == [2 * 700, 2 * 1200]
    assert router.best_worker(prompt(1, 300))[0] == 0
    assert told.to_dict()["residuals"]["trusted"] is False
    assert all(each.policy_terms for each in told.candidates)  # of the forecast, to be compared


def test_a_worker_that_starts_brings_no_trust_back(router: KvRouter, clock: ManualClock) -> None:
    """Its cache's size is known after it is: nothing was predicted of it meanwhile."""
    serve(router, clock, 600, erratic=True)
    router.add_worker(2)
    assert not trusted(router)
    router.add_worker(2, **FACTS)
    assert not trusted(router)


def test_a_policy_that_foresees_nothing_has_no_residuals() -> None:
    with KvRouter(KvRouterConfig(block_size=BLOCK, policy="dynamo")) as router:
        router.add_worker(1)
        assert router.residuals is None and explained(router).to_dict()["residuals"] is None


def test_what_a_full_cache_makes_of_a_first_token_does_not_count() -> None:
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, 512, 100)
    kernel.add_worker(1, 512, None)
    for number, blocks, crowded in ((0, 80.0, False), (0, 81.0, True), (1, 81.0, False)):
        kernel.book("r", number, 10, 10, 0.0, blocks)
        assert (kernel.first_token("r", 1.0) or ())[3] is crowded
        kernel.end("r", 2.0, 0)


def test_answers_fill_a_cache_as_well_as_prompts() -> None:
    kernel = Forecast(ForecastParams(output_tokens=64.0))
    kernel.add_worker(0, 512, 100)
    for turn in range(4):
        kernel.book(f"r{turn}", 0, 10, 10, 0.0, 40.0, 1)  # half of an answer of each: 32 blocks
    crowded = [(kernel.first_token(f"r{turn}", 1.0) or ())[3] for turn in range(4)]
    assert crowded == [False, False, True, True]


def test_what_was_predicted_before_a_size_was_known_does_not_count() -> None:
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, 512, None)
    for request in ("r", "s"):
        kernel.book(request, 0, 10, 10, 0.0, 5.0)
    assert (kernel.first_token("r", 1.0) or ())[3] is False
    assert kernel.describe_worker(0, 512, 1000) and not kernel.describe_worker(0, 512, 1001)
    assert (kernel.first_token("s", 2.0) or ())[3] is True


def test_it_starts_over_where_the_size_of_a_cache_becomes_known(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with router_among(0, 1, clock=clock, seed=3, facts={}, block_size=BLOCK) as router:
        serve(router, clock, 600, erratic=True)
        assert not trusted(router)
        caplog.clear()
        router.registry.learn_kv_blocks(0, 1000)
        router.decide(prompt(1, 100), "next")
        assert trusted(router)
    assert [line.message.partition(":")[0] for line in caplog.records] == ["forecast recovered"]


def test_while_it_fails_requests_wait_for_room(router: KvRouter, clock: ManualClock) -> None:
    serve(router, clock, 600, erratic=True)
    assert not trusted(router)
    for number in (0, 1):
        assert router.seconds_until_free() == 0.0
        router.decide(prompt(50 + number, 960 * BLOCK), f"long {number}", pinned_worker=number)
    assert router.seconds_until_free() == math.inf
    router.free("long 0", output_tokens=20)
    assert router.seconds_until_free() == 0.0


@pytest.mark.parametrize(("blocks", "taught"), [(5.0, True), (90.0, False)])
def test_what_waited_for_memory_teaches_nothing_of_steps(blocks: float, taught: bool) -> None:
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, 512, 100)

    def serve_one(at: float, blocks: float, seconds: float) -> None:
        kernel.book("r", 0, 100, 100, at, blocks)
        kernel.first_token("r", at + seconds)
        kernel.end("r", at + seconds, 0)

    for turn in range(40):
        serve_one(float(turn), 5.0, 0.02)
    before = kernel.learnt()[0], kernel.slowness(0)
    for turn in range(40, 60):
        serve_one(10.0 * turn, blocks, 5.0)
    assert ((kernel.learnt()[0], kernel.slowness(0)) != before) == taught
    known = kernel.learnt()[0]
    serve_one(1000.0, 90.0, 0.021)  # as foreseen, or nearly: it did not wait
    assert kernel.learnt()[0] != known
