"""When a request had better wait in the router than in an engine, and who goes first."""

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.policy.taught_router import STEP_S, TOKEN_S, teach

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.request_log import SERVED, RequestLog
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import TraceRequest, read_trace
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.router.admission.limits import AdmissionConfig
from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.base import Candidates, Policy
from dynamo_router.router.policy.dynamo_cost import Counts, Mask
from dynamo_router.router.policy.forecast import (
    LONGEST,
    ORDER_PENALTY,
    ForecastParams,
    ForecastPolicy,
)
from dynamo_router.router.policy.guard import GuardedPolicy
from dynamo_router.workers.registry import WorkerState

BLOCK = 16


def router_with(clock: ManualClock, **admission: Any) -> KvRouter:
    """Two workers of 100 blocks, 512 tokens a step, and a router that knows how fast they are."""
    config = KvRouterConfig(block_size=BLOCK, admission=AdmissionConfig(**admission))
    strategy = ForecastPolicy(params=ForecastParams(lead_s=1e-9))
    router = KvRouter(config, clock=clock, seed=1, strategy=strategy)
    return teach(router, clock)


@pytest.fixture
def router(clock: ManualClock) -> Iterator[KvRouter]:
    with router_with(clock) as made:
        yield made


def prompt(tokens: int, first: int = 0) -> list[int]:
    return [first + 1] * tokens


def occupy(router: KvRouter, worker_id: int, tokens: int) -> None:
    name = f"on {worker_id}, {tokens}"
    router.decide(prompt(tokens, 10 * tokens + worker_id), name, pinned_worker=worker_id)


def test_a_worker_is_free_until_every_one_has_more_than_a_step_to_compute(
    router: KvRouter, clock: ManualClock
) -> None:
    assert router.seconds_until_free() == 0
    occupy(router, 1, 500)
    clock.advance(0.001)  # the step has begun
    assert router.seconds_until_free() == 0
    occupy(router, 2, 300)
    clock.advance(0.001)
    expected = STEP_S + 300 * TOKEN_S - 0.001 - STEP_S / 2
    assert router.seconds_until_free() == pytest.approx(expected, abs=0.005)


def test_the_wait_shrinks_with_time_and_ends_without_a_word_from_the_engines(
    router: KvRouter, clock: ManualClock
) -> None:
    for worker_id in (1, 2):
        occupy(router, worker_id, 512)
    clock.advance(0.001)
    before = router.seconds_until_free()
    clock.advance(0.02)
    assert router.seconds_until_free() == pytest.approx(before - 0.02)
    clock.advance(router.seconds_until_free() + 1e-9)
    assert router.seconds_until_free() == 0  # no first token was reported, ever
    clock.advance(100.0)
    assert router.seconds_until_free() == 0


def test_nobody_waits_for_what_callers_booked_alone(router: KvRouter, clock: ManualClock) -> None:
    """They need not say that a prompt is computed, nor that it is to be computed at all."""
    for turn in range(20):
        router.decide(prompt(1500, turn + 1), f"caller's {turn}", owner="a caller")
    clock.advance(0.001)
    assert router.seconds_until_free() == 0
    occupy(router, 1, 512)
    assert router.seconds_until_free() == 0
    occupy(router, 2, 512)
    clock.advance(0.001)
    assert router.seconds_until_free() > 0
    router.free("on 2, 512")
    assert router.seconds_until_free() == 0


def test_what_is_queued_in_an_engine_counts_as_well(router: KvRouter, clock: ManualClock) -> None:
    for worker_id in (1, 2):
        occupy(router, worker_id, 100)
        clock.advance(0.001)
    before = router.seconds_until_free()
    for worker_id in (1, 2):
        occupy(router, worker_id, 400)
    assert router.seconds_until_free() > before + 400 * TOKEN_S / 2


def test_a_worker_that_is_late_is_not_the_room_that_all_wait_for(
    router: KvRouter, clock: ManualClock
) -> None:
    occupy(router, 1, 300)
    clock.advance(10.0)  # its first token is due for long
    assert router.seconds_until_free() == 0  # on the other
    occupy(router, 2, 300)
    clock.advance(0.001)
    assert 0 < router.seconds_until_free() < 0.1
    clock.advance(10.0)
    assert router.seconds_until_free() == 0  # both are late: nobody waits for them


def test_where_the_caches_are_booked_out_room_comes_when_a_request_ends(
    router: KvRouter, clock: ManualClock
) -> None:
    for worker_id in (1, 2):
        occupy(router, worker_id, 55 * BLOCK)  # of 100
    clock.advance(10.0)
    for worker_id in (1, 2):
        router.mark_prefill_complete(f"on {worker_id}, {55 * BLOCK}")
    assert router.seconds_until_free() == 0  # a smaller one has room, whatever the others are like
    for worker_id in (1, 2):
        occupy(router, worker_id, 46 * BLOCK)
    clock.advance(10.0)
    for worker_id in (1, 2):
        router.mark_prefill_complete(f"on {worker_id}, {46 * BLOCK}")
    assert router.seconds_until_free() == math.inf
    router.free(f"on 1, {46 * BLOCK}")
    assert router.seconds_until_free() == 0


def test_what_nobody_ends_expires_and_makes_room(router: KvRouter, clock: ManualClock) -> None:
    for worker_id in (1, 2):
        occupy(router, worker_id, 120 * BLOCK)
    assert router.seconds_until_free() == math.inf
    clock.advance(2 * router.config.active_request_expiry_secs)
    assert router.seconds_until_free() == 0


def test_a_request_for_one_worker_has_nothing_to_choose_and_goes(
    router: KvRouter, clock: ManualClock
) -> None:
    for worker_id in (1, 2):
        occupy(router, worker_id, 512)
    clock.advance(0.001)
    assert router.seconds_until_free() > 0 and router.seconds_until_free(1) == 0


def test_a_prompt_larger_than_the_cache_does_not_close_an_idle_worker(router: KvRouter) -> None:
    occupy(router, 1, 300 * BLOCK)
    assert router.seconds_until_free() == 0


def test_where_all_are_busy_nobody_waits_to_be_told(clock: ManualClock) -> None:
    with router_with(clock, active_decode_blocks_threshold=0.5) as router:
        for worker_id in (1, 2):
            occupy(router, worker_id, 120 * BLOCK)
        assert router.seconds_until_free() == 0
        with pytest.raises(NoWorkersError, match="every worker is busy"):
            router.decide(prompt(100), "x")


def test_there_is_nothing_to_wait_for_where_nobody_serves(
    router: KvRouter, clock: ManualClock
) -> None:
    for worker_id in (1, 2):
        occupy(router, worker_id, 512)
    clock.advance(0.001)
    assert router.seconds_until_free() > 0
    for worker_id in (1, 2):
        router.registry.set_state(worker_id, WorkerState.UNHEALTHY)
    assert router.seconds_until_free() == 0


def test_a_router_that_has_learnt_nothing_holds_nobody() -> None:
    with KvRouter(KvRouterConfig(block_size=BLOCK), clock=ManualClock()) as router:
        router.add_worker(1)
        for i in range(20):
            router.decide(prompt(900, i), str(i))
        assert router.seconds_until_free() == 0


@pytest.mark.parametrize("admission", [{"hold": False}, {"queue_threshold": 100.0}])
def test_it_can_be_switched_off_and_a_threshold_takes_its_place(
    clock: ManualClock, admission: dict[str, Any]
) -> None:
    with router_with(clock, **admission) as router:
        for worker_id in (1, 2):
            occupy(router, worker_id, 512)
        clock.advance(0.001)
        assert router.seconds_until_free() == 0
        assert router.limits.any_wait == ("queue_threshold" in admission)
        assert router.queue_terms(prompt(300)) == (1, 0.0)  # first come, first served


def test_dynamos_cost_holds_nobody(clock: ManualClock) -> None:
    with KvRouter(KvRouterConfig(policy="dynamo:16"), clock=clock) as router:
        assert not router.limits.any_wait


def test_short_prompts_wait_less_for_others_and_the_longest_for_none(router: KvRouter) -> None:
    tokens, penalty_s = router.queue_terms(prompt(100, 5000))
    assert isinstance(router._policy, GuardedPolicy)
    policy = router._policy._inner
    assert isinstance(policy, ForecastPolicy)
    learnt = policy.learnt()
    stay_s = 100 / (100 * BLOCK) * learnt.answer_s  # in a cache of 100 blocks
    expected = ORDER_PENALTY * (100 * learnt.token_s + stay_s)
    assert tokens == 100 and penalty_s == pytest.approx(expected)
    assert learnt.token_s == pytest.approx(TOKEN_S, rel=0.3)
    assert router.queue_terms(prompt(200, 5000))[1] == pytest.approx(2 * penalty_s)
    longest = int(1.5 * LONGEST * learnt.ttft_s / TOKEN_S)
    assert router.queue_terms(prompt(longest, 5000))[1] == 0.0


def test_where_nobody_told_a_cache_size_the_order_is_by_computing_alone() -> None:
    kernel = Forecast(ForecastParams(step_s=0.02, output_tokens=100.0))
    kernel.add_worker(0, None, None)
    kernel.book("r", 0, 10, 10, 0.0, 0.0, BLOCK)
    assert kernel.stay_s(1600) == 0
    for number, blocks in ((1, 100), (2, 300)):
        kernel.add_worker(number, None, blocks)
    assert kernel.stay_s(1600) == pytest.approx(0.5 * 100 * 0.02)  # 100 blocks of 200
    kernel.remove_worker(2)
    assert kernel.stay_s(1600) == pytest.approx(100 * 0.02)
    assert Forecast(ForecastParams()).stay_s(1600) == 0


def test_an_order_that_was_asked_for_is_kept(clock: ManualClock) -> None:
    with router_with(clock, queue_policy="wspt") as router:
        assert router.limits.queue_policy == "wspt"
        assert router.queue_terms(prompt(100, 5000)) == (100, 0.0)


def test_the_kernel_refuses_what_cannot_be() -> None:
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, None, None)
    everyone, blocks = np.ones(1, np.bool_), np.zeros(1, np.int64)
    assert kernel.seconds_until_free(everyone[:0], blocks[:0], 0.0) == 0
    for now in (math.nan, math.inf):
        with pytest.raises(ValueError, match="now must be finite"):
            kernel.seconds_until_free(everyone, blocks, now)
    with pytest.raises(ValueError, match="an entry for each of 1 worker numbers"):
        kernel.seconds_until_free(everyone, blocks[:0], 0.0)


# Holds of other people


class Stubborn(Policy):
    """Sends to anybody; its hold raises, or says what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def hold(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        return self._say()

    def score(self, candidates: Candidates) -> Any:
        return np.where(candidates.eligible, 0.0, np.inf)

    def order_penalty_s(self, uncached_tokens: int) -> float:
        return self._say()

    def _say(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [RuntimeError("no idea"), math.nan, "soon"])
def test_a_hold_that_fails_holds_nobody_and_is_counted(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Stubborn(answer)
    with KvRouter(KvRouterConfig(), strategy=policy) as router, caplog.at_level(logging.ERROR):
        router.add_worker(1)
        router.decide(prompt(100), "a")
        assert router.seconds_until_free() == 0 and router.policy_failures == 1
        assert router.queue_terms(prompt(100)) == (100, 0.0) and router.policy_failures == 2
    assert "failed, 1 times so far" in caplog.text and "hold: " in caplog.text


def test_a_hold_of_ones_own_is_asked() -> None:
    with KvRouter(KvRouterConfig(), strategy=Stubborn(0.25)) as router:
        router.add_worker(1)
        assert router.seconds_until_free() == 0  # the fleet has nothing to do
        router.decide(prompt(100), "a")
        assert router.seconds_until_free() == 0.25 and router.queue_terms(prompt(100)) == (
            100,
            0.25,
        )


# In a simulation


def simulate(rows: list[TraceRequest], *, hold: bool, speedup: float, seed: int = 0) -> RequestLog:
    config = KvRouterConfig(admission=AdmissionConfig(hold=hold))
    trace = SimulatedTrace(rows, block_size=64, arrival_speedup=speedup, seed=seed)
    engine = EngineConfig(num_gpu_blocks=2000, max_num_batched_tokens=2048, max_model_len=0)
    simulation = Simulation(
        trace,
        FleetSpec(workers=2, engine=engine),
        lambda clock: KvRouter(config, clock=clock, seed=seed),
        seed=seed,
    )
    log = simulation.run()
    assert not simulation.fleet.is_busy
    assert all(view.active_requests == 0 for view in simulation.router.workers())
    return log


@given(speedup=st.sampled_from([0.5, 3.0, 1e6]), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_everybody_is_served(speedup: float, seed: int) -> None:
    rows = list(read_trace(SAMPLE_TRACE, limit=120))
    log = simulate(rows, hold=True, speedup=speedup, seed=seed)
    assert (log.status == SERVED).all()
    assert (log.queued_s >= 0).all()
    assert (log.first_s > log.arrival_s + log.queued_s).all()


def test_under_load_waiting_here_beats_waiting_there() -> None:
    rows = list(read_trace(SAMPLE_TRACE))
    ttft = {}
    for hold in (False, True):
        log = simulate(rows, hold=hold, speedup=2.0)
        assert (log.queued_s > 0).any() == hold
        ttft[hold] = float((log.first_s - log.arrival_s).mean())
    assert ttft[True] < 0.95 * ttft[False]


def test_after_an_overload_requests_pass_without_waiting() -> None:
    rows = list(read_trace(SAMPLE_TRACE))
    late = [TraceRequest(1e7 + 1e4 * i, 600, 2, (90_000 + 2 * i, 90_001 + 2 * i)) for i in range(3)]
    log = simulate([*rows, *late], hold=True, speedup=10.0)
    assert (log.queued_s[: len(rows)] > 0).sum() > len(rows) / 2
    assert (log.queued_s[len(rows) :] == 0).all()


def test_short_prompts_pass_by_the_answers_of_giants() -> None:
    rows = [
        TraceRequest(0.0, 70_000, 800, tuple(range(1000 * i, 1000 * i + 137))) for i in range(2)
    ]
    rows += [TraceRequest(8000.0 + 50 * i, 100, 2, (9000 + i,)) for i in range(100)]
    log = simulate(rows, hold=True, speedup=1.0)
    assert (log.last_s[:2] > 15.0).all()  # each holds more than half a cache all the time
    assert (log.queued_s[2:] < 0.1).all()
    assert (log.first_s - log.arrival_s)[2:].mean() < 0.2
