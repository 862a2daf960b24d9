"""A hundred bursts of short prompts on idle engines, one after the other: each one spreads."""

import math
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from dynamo_router.bench.simulation.policies import parse_policies
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.replicas import ReplicaConfig
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.traces.trace import TraceRequest
from dynamo_router.engines.mocker.config import EngineConfig

BLOCK = 16
BURSTS = 100
APART_MS = 4000.0  # all answers of a burst have ended by then
LONGEST_ANSWER = 40


def uneven(
    workers: int,
    gap_ms: float,
    *,
    allowed: float = 1.5,
    speeds: tuple[float, ...] = (1.0,),
    replicas: ReplicaConfig | None = None,
    **engine: Any,
) -> list[tuple[int, int, list[int]]]:
    """The bursts in which a worker got more than its share: place, size, requests by worker."""
    rng = random.Random(workers)
    sizes = [rng.randint(2, 64) for _ in range(BURSTS)]
    made = []
    for place, size in enumerate(sizes):
        for number in range(size):
            length = rng.randint(30, 60)
            first = 1 + 4 * len(made)
            ids = tuple(range(first, first + -(-length // BLOCK)))
            at_ms = place * APART_MS + number * gap_ms
            made.append(TraceRequest(at_ms, length, rng.randint(1, LONGEST_ANSWER), ids))
    trace = SimulatedTrace(made, block_size=BLOCK, trace_block_size=BLOCK)
    variant = parse_policies("forecast", block_size=BLOCK, trace_block_size=BLOCK)[0]
    log = Simulation(
        trace,
        FleetSpec(workers=workers, engine=EngineConfig(block_size=BLOCK, **engine), speeds=speeds),
        lambda clock: variant.new_router(clock, 1),
        seed=1,
        replicas=replicas,
    ).run()
    sent: dict[int, Counter[int]] = defaultdict(Counter)
    for request, worker in zip(made, log.worker.tolist(), strict=True):
        sent[int(request.timestamp_ms // APART_MS)][worker] += 1
    return [
        (place, size, sorted(sent[place].values()))
        for place, size in enumerate(sizes)
        if max(sent[place].values()) > max(1, math.ceil(allowed * size / workers))
    ]


@pytest.mark.parametrize("gap_ms", [0.0, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("workers", [4, 8, 32])
def test_every_burst_spreads(workers: int, gap_ms: float) -> None:
    assert not uneven(workers, gap_ms)


def test_every_burst_spreads_where_steps_are_small_or_decoding_is_fast() -> None:
    assert not uneven(4, 0.05, max_num_batched_tokens=64)
    assert not uneven(8, 0.05, decode_speedup_ratio=4.0)


def test_every_burst_spreads_over_workers_of_different_speeds() -> None:
    assert not uneven(4, 0.0, speeds=(1.0, 0.85, 1.1, 1.0))
    assert not uneven(8, 0.05, speeds=(1.0, 0.5, 1.0, 1.0))
