"""A trace in virtual time: repeatable, nothing lost, and an index that heals as a live one does."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.bench.simulation.policies import parse_policies
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.recovery import SimulatedRecovery
from dynamo_router.bench.simulation.request_log import FAILED, REJECTED, SERVED
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import TraceRequest, read_trace, token_ids
from dynamo_router.bench.traces.turn_trace import Turn
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.indexer.source import SourceState
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.policy import ForecastPolicy

POLICIES = "kv,round-robin,least-loaded,power-of-two,prefix-hash:2,chwbl:1.25"
SMALL = EngineConfig(num_gpu_blocks=400, max_num_seqs=16, max_num_batched_tokens=2048)


def sample(requests: int = 150, **more: Any) -> SimulatedTrace:
    return SimulatedTrace(list(read_trace(SAMPLE_TRACE, limit=requests)), block_size=64, **more)


def simulation(
    trace: SimulatedTrace, policy: str = "dynamo:1", seed: int = 0, **fleet: Any
) -> Simulation:
    variant = parse_policies(policy, block_size=64, trace_block_size=512)[0]
    return Simulation(
        trace,
        FleetSpec(**{"workers": 3, "engine": SMALL, **fleet}),
        lambda clock: variant.new_router(clock, seed),
        seed=seed,
    )


def test_prompts_and_hashes_are_those_of_the_trace() -> None:
    trace = sample(20, seed=5)
    for place, request in enumerate(trace.requests):
        tokens, prompt = token_ids(request, 32_000, seed=5), trace.prompt(place)
        local, sequence = trace.hashes(place)
        assert prompt.isl == len(tokens)
        assert len(local) == (len(tokens) + request.output_length) // 64
        assert np.array_equal(prompt.local_hashes, block_hashes(tokens, 64))
        assert np.array_equal(prompt.local_hashes, local[: len(tokens) // 64])
        assert np.array_equal(sequence, sequence_hashes(local))
        assert np.array_equal(prompt.sequence_hashes, sequence[: len(tokens) // 64])
    own = [set(trace.hashes(p)[0][trace.requests[p].input_length // 64 :].tolist()) for p in (0, 1)]
    assert not own[0] & own[1], "two outputs are alike"


@pytest.mark.parametrize("policy", POLICIES.split(","))
def test_every_request_is_served_once_and_everything_is_given_back(policy: str) -> None:
    trace = sample(arrival_speedup=4)
    run = simulation(trace, policy)
    log = run.run()
    assert (log.status == SERVED).all()
    assert (log.first_s >= trace.arrivals_s).all() and (log.last_s >= log.first_s).all()
    assert set(log.worker.tolist()) == {0, 1, 2}
    assert not run.fleet.is_busy
    assert [view.active_requests for view in run.router.workers()] == [0, 0, 0]
    assert [view.active_prefill_tokens for view in run.router.workers()] == [0, 0, 0]
    tokens = sum(trace.output_tokens(place) for place in range(len(trace)))
    _, counts = log.gaps
    assert counts.sum() == tokens - len(trace), "each token but the first follows another one"


@given(
    seed=st.integers(0, 99),
    speedup=st.sampled_from([0.5, 4.0, 1e6]),
    delay=st.sampled_from([0.0, 0.05, 3.0]),
    loss=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    blocks=st.sampled_from([220, 400, 2000]),
)
@settings(max_examples=15, deadline=None)
def test_no_disturbance_loses_a_request(
    seed: int, speedup: float, delay: float, loss: float, blocks: int
) -> None:
    trace = sample(40, arrival_speedup=speedup, seed=seed)
    engine = EngineConfig(num_gpu_blocks=blocks, max_num_seqs=4)
    fits = np.array([r.input_length + r.output_length <= blocks * 64 for r in trace.requests])
    runs = [
        simulation(trace, seed=seed, engine=engine, event_delay_s=delay, event_loss=loss).run()
        for _ in range(2)
    ]
    assert np.array_equal(runs[0].status == SERVED, fits)
    assert np.array_equal(runs[0].status == FAILED, ~fits)
    for name in ("worker", "first_s", "last_s", "cached_tokens", "preemptions"):
        one, two = (getattr(run, name) for run in runs)
        assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), f"{name} differs"


def far_apart(requests: int, wait_s: float) -> SimulatedTrace:
    """The sample, and one request more after a long silence."""
    rows = list(read_trace(SAMPLE_TRACE, limit=requests))
    rows.append(TraceRequest(rows[-1].timestamp_ms + wait_s * 1e3, 64, 1, (10**6,)))
    return SimulatedTrace(rows, block_size=64)


def at_the_last(run: Simulation, check: Callable[[], None]) -> None:
    total = len(run._trace)
    run.run(lambda routed: check() if routed == total else None)


@pytest.mark.parametrize("loss", [0.0, 0.02, 0.3])
def test_an_index_that_lost_events_heals_until_it_holds_what_the_engines_hold(loss: float) -> None:
    run = simulation(far_apart(150, 900.0), event_loss=loss, event_delay_s=0.01, seed=1)
    healed: list[int] = []

    def check() -> None:
        index = run.router.index
        assert isinstance(index, EventIndex)
        sources = {status.worker.worker_id: status for status in index.sources()}
        for worker, source in sources.items():
            assert source.state is SourceState.EXACT
            assert source.last_event_id == run.fleet.collected_events(worker)
            assert source.blocks == len(run.fleet.cached_blocks(worker)) > 50
            healed.append(source.gaps)

    at_the_last(run, check)
    assert len(healed) == 3 and (sum(healed) > 0) == (loss > 0)


def test_what_was_lost_is_sent_again_instead_of_everything() -> None:
    run = simulation(sample(150), event_loss=0.1, event_delay_s=0.001, seed=1)
    log = run.run()
    # One each at the start, when nobody knows yet that the engines are empty.
    assert log.announcements <= 4 and log.replays > 20


def test_without_healing_the_index_would_have_stayed_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulation(far_apart(150, 120.0), event_loss=0.3, seed=1)
    monkeypatch.setattr(SimulatedRecovery, "next_time", math.inf)
    states = []
    at_the_last(run, lambda: states.extend(s.state for s in run.router.index.sources()))
    assert SourceState.RECOVERING in states


def sessions(count: int, delay_ms: float, *, turns: int = 4) -> list[Turn]:
    """Sessions that begin a little apart; each turn's prompt is that before it, and more."""
    made: list[Turn] = []
    for turn in range(turns):
        for session in range(count):
            ids = tuple(100 * session + k for k in range(2 + turn))
            request = TraceRequest(100.0 * session, 512 * len(ids) - 9, 20, ids)
            made.append(
                Turn(request, len(made) - count, delay_ms * session) if turn else Turn(request)
            )
    return made


@pytest.mark.parametrize("policy", ["dynamo:1", "round-robin"])
@pytest.mark.parametrize("delay_ms", [0.0, 0.7, 500.0])
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_turn_follows_the_answer_before_it(policy: str, delay_ms: float, loss: float) -> None:
    turns = sessions(9, delay_ms)
    log = simulation(SimulatedTrace(turns, block_size=64), policy, event_loss=loss).run()
    assert (log.status == SERVED).all()
    for place, turn in enumerate(turns):
        if turn.previous is not None:
            answered = log.last_s[turn.previous] + turn.delay_ms / 1e3
            assert log.arrival_s[place] == answered
    # The same requests, at the same times, but known in advance: nothing else may differ.
    order = np.argsort(log.arrival_s, kind="stable")
    flat = SimulatedTrace([turns[place].request for place in order], block_size=64)
    flat.arrivals_s = log.arrival_s[order]
    again = simulation(flat, policy, event_loss=loss).run()
    assert np.array_equal(again.worker, log.worker[order])
    assert np.array_equal(again.first_s, log.first_s[order])
    assert np.array_equal(again.last_s, log.last_s[order])
    assert np.array_equal(again.cached_tokens, log.cached_tokens[order])


def test_a_turn_comes_even_if_the_one_before_it_was_refused() -> None:
    turns = [
        Turn(TraceRequest(0, 640, 5, (0, 1))),
        Turn(TraceRequest(0, 64 * 500, 5, tuple(range(63))), 0, 100.0),
        Turn(TraceRequest(0, 640, 5, (0, 1)), 1, 200.0),
    ]
    log = simulation(SimulatedTrace(turns, block_size=64)).run()
    assert log.status.tolist() == [SERVED, FAILED, SERVED]
    assert log.arrival_s.tolist() == [0, log.last_s[0] + 0.1, log.last_s[0] + 0.1 + 0.2]


def test_late_events_are_not_known_yet() -> None:
    """The same prompt twice, the second one a moment later: only news that is out can help."""
    rows = [
        TraceRequest(at, 6400, 3, tuple(range(13))) for at in (0.0, 1000.0, 2000.0, 3000.0, 4000.0)
    ]
    trace = SimulatedTrace(rows, block_size=64)
    for delay, hits in ((0.0, 4), (1.5, 3), (100.0, 0)):
        run = simulation(trace, "dynamo:16", event_delay_s=delay)
        known = []

        def look(routed: int, run: Simulation = run, known: list[bool] = known) -> None:
            known.append(max(run.router.overlaps(trace.prompt(0)).values(), default=0) > 0)

        run.run(look)
        assert sum(known) == hits


def test_an_engine_whose_queue_is_full_rejects() -> None:
    rows = [TraceRequest(0, 640, 5, (2 * n, 2 * n + 1)) for n in range(20)]
    engine = EngineConfig(num_gpu_blocks=100, max_num_seqs=1, max_waiting=2)
    log = simulation(
        SimulatedTrace(rows, block_size=64), "round-robin", workers=2, engine=engine
    ).run()
    # All arrive at once: each engine keeps two waiting.
    assert (log.status == SERVED).sum() == 4
    assert (log.status == REJECTED).sum() == 16
    assert "waiting" in log.first_failure


def test_a_thousand_engines_take_part_in_one_run() -> None:
    log = simulation(sample(200, arrival_speedup=100), "round-robin", workers=1024).run()
    assert len(set(log.worker.tolist())) == 200
    assert (log.status == SERVED).all()


@pytest.mark.parametrize("attention_us", [0.0, 500.0])
def test_a_forecast_learns_what_attention_costs(attention_us: float) -> None:
    lengths = [500 + 7919 * n % 30_000 for n in range(150)]
    requests = [
        TraceRequest(700 * n, tokens, 20, tuple(range(100 * n, 100 * n - (-tokens // 512))))
        for n, tokens in enumerate(lengths)
    ]
    trace = SimulatedTrace(requests, block_size=64)
    policy = ForecastPolicy()
    fleet = FleetSpec(workers=2, engine=EngineConfig(attention_us_per_ktoken2=attention_us))
    Simulation(trace, fleet, lambda clock: KvRouter(clock=clock, seed=0, strategy=policy)).run()
    assert policy.learnt().attended_s == pytest.approx(attention_us * 1e-12, rel=0.1, abs=3e-11)
