"""The simulation against figures of an independent simulator of the same kind of engine."""

import numpy as np
import pytest
from support.places import CONVERSATION

from dynamo_router.bench.simulation.config import Load, SimulationConfig
from dynamo_router.bench.simulation.experiment import compare_policies
from dynamo_router.bench.simulation.policies import parse_policies
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.traces.trace import TraceRequest
from dynamo_router.engines.mocker.config import EngineConfig


def test_chunks_mixed_steps_and_a_hit_take_the_time_they_take_there() -> None:
    """Three prompts share a step's budget; the last one arrives while it is spent on them."""

    def ids(length: int, first: int) -> tuple[int, ...]:
        return tuple(range(first, first - (-length // 512)))

    rows = [
        TraceRequest(0, 1000, 4, ids(1000, 0)),
        TraceRequest(0, 3000, 4, ids(3000, 100)),
        TraceRequest(0, 20000, 4, ids(20000, 200)),
        TraceRequest(100, 1000, 5, ids(1000, 0)),
    ]
    variant = parse_policies("round-robin", block_size=64, trace_block_size=512)[0]
    log = Simulation(
        SimulatedTrace(rows, block_size=64),
        FleetSpec(workers=1, engine=EngineConfig(num_gpu_blocks=8192)),
        lambda clock: variant.new_router(clock, 0),
    ).run()
    # It rounds a step's mean prompt down to a token, hence the tenth of a millisecond.
    ttft = (log.first_s - log.arrival_s) * 1e3
    assert ttft == pytest.approx([169.0928, 169.0928, 507.9529, 407.9529], abs=0.1)
    e2e = (log.last_s - log.arrival_s) * 1e3
    assert e2e == pytest.approx([516.2106, 516.2106, 531.9357, 437.7790], abs=0.15)
    assert np.array_equal(log.cached_tokens, [0, 0, 0, 960])


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the trace is not part of the repository")
def test_a_whole_trace_comes_out_as_it_does_there() -> None:
    """8 engines, arrivals 2x. Ties are drawn at random there: its kv rows vary by a few percent."""
    runs = compare_policies(
        SimulationConfig(num_gpu_blocks=8192),
        Load(trace=str(CONVERSATION), arrival_speedup=2.0),
        workers=8,
        names="round-robin,dynamo:1,dynamo:16",
    )
    there = [  # reuse, TTFT mean and p99, ITL, end to end
        (0.064, 368, 2240, 15.8, 5768, 0.01),
        (0.120, 372, 1854, 13.9, 5130, 0.04),
        (0.163, 293, 1771, 13.6, 4947, 0.04),
    ]
    for run, (reuse, mean, p99, itl, e2e, tolerance) in zip(runs, there, strict=True):
        assert run.errors == run.rejected == 0
        assert run.cached_token_share == pytest.approx(reuse, rel=tolerance)
        assert run.ttft_ms.mean == pytest.approx(mean, rel=tolerance)
        assert run.ttft_ms.p99 == pytest.approx(p99, rel=tolerance)
        assert run.itl_ms.mean == pytest.approx(itl, rel=tolerance)
        assert run.e2e_ms.mean == pytest.approx(e2e, rel=tolerance)
        assert run.hit_rate_pooled_lru == pytest.approx(0.189, abs=0.001)
        assert run.hit_rate_infinite == pytest.approx(0.374, abs=0.001)
