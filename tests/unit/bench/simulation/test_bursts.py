"""A hundred bursts of short prompts on idle engines, one after the other: each one spreads.

Of mixed prompts it is the tokens that spread: short ones gather where short ones are, as a step is
over sooner there, so that requests by worker may be uneven and first tokens are sooner for it.
"""

import math
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from dynamo_router.bench.simulation.policies import parse_policies
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.replicas import ReplicaConfig
from dynamo_router.bench.simulation.request_log import RequestLog
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.traces.trace import TraceRequest
from dynamo_router.engines.mocker.config import EngineConfig

BLOCK = 16
BURSTS = 100
APART_MS = 4000.0  # all answers of a burst have ended by then
LONGEST_ANSWER = 40


def bursts(workers: int, gap_ms: float, shortest: int, longest: int) -> list[TraceRequest]:
    rng = random.Random(workers)
    sizes = [rng.randint(2, 64) for _ in range(BURSTS)]
    made: list[TraceRequest] = []
    for place, size in enumerate(sizes):
        for number in range(size):
            length = rng.randint(shortest, longest)
            first = 1 + -(-longest // BLOCK) * len(made)
            ids = tuple(range(first, first + -(-length // BLOCK)))
            at_ms = place * APART_MS + number * gap_ms
            made.append(TraceRequest(at_ms, length, rng.randint(1, LONGEST_ANSWER), ids))
    return made


def simulated(
    made: list[TraceRequest],
    workers: int,
    policy: str = "forecast",
    *,
    speeds: tuple[float, ...] = (1.0,),
    replicas: ReplicaConfig | None = None,
    **engine: Any,
) -> RequestLog:
    trace = SimulatedTrace(made, block_size=BLOCK, trace_block_size=BLOCK)
    variant = parse_policies(policy, block_size=BLOCK, trace_block_size=BLOCK)[0]
    return Simulation(
        trace,
        FleetSpec(workers=workers, engine=EngineConfig(block_size=BLOCK, **engine), speeds=speeds),
        lambda clock: variant.new_router(clock, 1),
        seed=1,
        replicas=replicas,
    ).run()


def uneven(
    workers: int, gap_ms: float, *, allowed: float = 1.5, **more: Any
) -> list[tuple[int, int, list[int]]]:
    """The bursts in which a worker got more than its share: place, size, requests by worker."""
    made = bursts(workers, gap_ms, 30, 60)
    sent: dict[int, Counter[int]] = defaultdict(Counter)
    for request, worker in zip(made, simulated(made, workers, **more).worker.tolist(), strict=True):
        sent[int(request.timestamp_ms // APART_MS)][worker] += 1
    return [
        (place, each.total(), sorted(each.values()))
        for place, each in sent.items()
        if max(each.values()) > max(1, math.ceil(allowed * each.total() / workers))
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


MIXED = (1, 300)
"""tokens of the shortest prompt and of the longest"""


def mean_first_s(log: RequestLog) -> float:
    return float((log.first_s - log.arrival_s).mean())


@pytest.mark.parametrize("gap_ms", [0.0, 0.3])
@pytest.mark.parametrize("workers", [4, 8, 32])
def test_tokens_of_mixed_prompts_spread(workers: int, gap_ms: float) -> None:
    """At any time by the clock: when a running step began plays no part."""
    made = bursts(workers, gap_ms, *MIXED)
    log = simulated(made, workers)
    sent: dict[int, Counter[int]] = defaultdict(Counter)
    for request, worker in zip(made, log.worker.tolist(), strict=True):
        sent[int(request.timestamp_ms // APART_MS)][worker] += request.input_length
    for place, tokens in sent.items():
        share = tokens.total() / workers
        assert max(tokens.values()) <= 1.5 * share + MIXED[1], (place, sorted(tokens.values()))


@pytest.mark.parametrize("workers", [4, 8, 32])
def test_uneven_bursts_of_mixed_prompts_have_first_tokens_sooner(workers: int) -> None:
    """Than where every worker gets as many requests."""
    made = bursts(workers, 0.0, *MIXED)
    ours = mean_first_s(simulated(made, workers))
    for even in ("least-loaded", "round-robin"):
        log = simulated(made, workers, even)
        assert ours < mean_first_s(log), even
