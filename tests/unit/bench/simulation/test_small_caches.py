"""Prefill and decode engines with hardly room for a prompt: every run ends, and nothing is kept."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynamo_router.bench.simulation.handoffs import Handoffs, RoleConfig
from dynamo_router.bench.simulation.policies import parse_policies
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.request_log import FAILED, REJECTED, SERVED
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.traces.trace import TraceRequest
from dynamo_router.bench.traces.turn_trace import Turn
from dynamo_router.engines.mocker import EngineConfig, VirtualFleet
from dynamo_router.router.disagg import DISAGG_MODES, DISAGG_POLICIES, DisaggConfig

POLICIES = (
    "kv,round-robin,random,least-loaded,power-of-two,dynamo:1,dynamo:1+queue,lmetric,llm-d,preble"
    ",forecast,prefix-hash:1,chwbl:1.25"
).split(",")


def turns(seed: int, gap_ms: float, longest: int) -> list[Turn]:
    """Some share the beginnings of their prompts, some are longer than a cache, some follow."""
    rng, found = random.Random(seed), []
    for number in range(40):
        length = rng.randint(1, longest)
        first = 100 * rng.randrange(12)
        ids = tuple(range(first, first + -(-length // 512)))
        request = TraceRequest(number * gap_ms, length, rng.choice([1, 2, 30, 200]), ids)
        follows = number > 3 and rng.random() < 0.2
        found.append(Turn(request, number - 3, 5.0) if follows else Turn(request))
    return found


@given(
    seed=st.integers(0, 999),
    blocks=st.integers(24, 128),
    prefill=st.integers(1, 3),
    decode=st.integers(1, 3),
    whole=st.integers(0, 1),
    mode=st.sampled_from(DISAGG_MODES),
    rule=st.sampled_from(DISAGG_POLICIES),
    policy=st.sampled_from(POLICIES),
    gap_ms=st.sampled_from([0.0, 20.0, 3000.0]),
    delay_s=st.sampled_from([0.0, 0.5]),
    facts=st.booleans(),
    engine=st.fixed_dictionaries(
        {},
        optional={
            "max_num_seqs": st.sampled_from([1, 3]),
            "max_num_batched_tokens": st.sampled_from([64, 512]),
            "preemption_mode": st.sampled_from(["lifo", "fifo"]),
            "watermark": st.sampled_from([0.0, 0.3]),
        },
    ),
)
@example(  # the last event is a request turned away, which calls for the next turn of its session
    seed=57,
    blocks=24,
    prefill=1,
    decode=1,
    whole=0,
    mode="always",
    rule="forecast",
    policy="kv",
    gap_ms=0.0,
    delay_s=0.0,
    facts=False,
    engine={},
)
@settings(max_examples=150, deadline=None)
def test_every_run_ends_every_request_once_and_no_block_is_held_then(
    seed: int,
    blocks: int,
    prefill: int,
    decode: int,
    whole: int,
    mode: str,
    rule: str,
    policy: str,
    gap_ms: float,
    delay_s: float,
    facts: bool,
    engine: dict[str, Any],
) -> None:
    trace = SimulatedTrace(turns(seed, gap_ms, blocks * 70), block_size=64, seed=seed)
    variant = parse_policies(policy, block_size=64, trace_block_size=512)[0]
    run = Simulation(
        trace,
        FleetSpec(
            workers=whole,
            engine=EngineConfig(num_gpu_blocks=blocks, **engine),
            roles=RoleConfig(prefill_workers=prefill, decode_workers=decode),
            disagg=DisaggConfig(
                disagg=mode, disagg_policy=rule, disagg_noncached_tokens=seed % 2 * 500
            ),
            event_delay_s=delay_s,
            told=facts,
        ),
        lambda clock: variant.new_router(clock, seed),
        seed=seed,
    )
    log = run.run()
    served = log.status == SERVED
    assert np.isfinite(log.last_s[served]).all() and np.isnan(log.last_s[~served]).all()
    assert (log.first_s[served] >= log.arrival_s[served]).all()
    assert not (log.status == REJECTED).any()
    assert (log.status == FAILED).tolist() == [
        request.input_length + trace.output_tokens(place) > blocks * 64
        for place, request in enumerate(trace.requests)
    ]
    later = sum(trace.output_tokens(place) - 1 for place in np.flatnonzero(served).tolist())
    assert log.gaps[1].sum() == later, "every token of an answer comes once"
    assert not run.fleet.is_busy
    engines = range(prefill + decode + whole)
    assert [run.fleet.pools(engine)[0] for engine in engines] == [0] * len(engines)
    for router in filter(None, [run.router, run._handoffs and run._handoffs.prefill]):
        for view in router.workers():
            assert (view.active_requests, view.active_prefill_tokens) == (0, 0)


@pytest.fixture
def stalled() -> Simulation:
    trace = SimulatedTrace(turns(1, 0.0, 900)[:4], block_size=64)
    variant = parse_policies("kv", block_size=64, trace_block_size=512)[0]
    return Simulation(
        trace,
        FleetSpec(
            workers=0,
            engine=EngineConfig(num_gpu_blocks=96),
            roles=RoleConfig(prefill_workers=1, decode_workers=1),
            disagg=DisaggConfig(disagg="always"),
        ),
        lambda clock: variant.new_router(clock, 0),
    )


def test_a_run_whose_time_does_not_move_on_ends_with_an_error_that_has_its_state(
    stalled: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handoffs, "next_time", 0.0)
    monkeypatch.setattr(VirtualFleet, "advance", lambda self, until, to_answer: until)
    with pytest.raises(RuntimeError, match=r"stands still at 0.0 s: .* <4 prefills, 0 dispatches"):
        stalled.run()


def test_so_does_one_in_which_nothing_more_will_happen(
    stalled: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VirtualFleet, "advance", lambda self, until, to_answer: until)
    with pytest.raises(RuntimeError, match=r"stands still at inf s: .* <4 prefills, 0 dispatches"):
        stalled.run()
