"""Engines that start, serve, drain and are gone during a run."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from dynamo_router.bench.simulation import (
    FleetSpec,
    RequestLog,
    RoleConfig,
    SampledRequest,
    SampledTrace,
    Simulation,
    parse_policies,
)
from dynamo_router.engines.mocker import EngineConfig, VirtualFleet
from dynamo_router.router.disagg import DisaggConfig

BLOCK = 16
ENGINE = EngineConfig(block_size=BLOCK, num_gpu_blocks=512, max_num_seqs=8, max_model_len=0)
SPEC = FleetSpec(workers=3, engine=ENGINE, changing=True)


class Script:
    """Changes at times, in order."""

    def __init__(self, *steps: tuple[float, Callable[[float], object]]) -> None:
        self._steps = list(steps)

    @property
    def next_time(self) -> float:
        return self._steps[0][0] if self._steps else math.inf

    def act(self, now: float) -> None:
        assert now == self._steps[0][0]
        self._steps.pop(0)[1](now)


def trace(count: int, *, gap_s: float = 0.2, output: int = 20, sessions: int = 4) -> SampledTrace:
    """Prompts of eight blocks, of which sessions have the first seven in common."""
    requests = [
        SampledRequest(
            8 * BLOCK,
            output,
            np.array(
                [*range(100 * (n % sessions), 100 * (n % sessions) + 7), 10_000 + n], np.uint64
            ),
        )
        for n in range(count)
    ]
    times = gap_s * np.arange(count)
    return SampledTrace(requests, times, block_size=BLOCK, trace_block_size=BLOCK)


def simulation(of: SampledTrace, spec: FleetSpec = SPEC, policy: str = "kv") -> Simulation:
    variant = parse_policies(policy, block_size=BLOCK, trace_block_size=BLOCK)[0]
    return Simulation(of, spec, lambda clock: variant.new_router(clock, 0))


def run(
    of: SampledTrace,
    steps: Callable[[Simulation], list[tuple[float, Callable[[float], object]]]],
    policy: str = "kv",
) -> tuple[RequestLog, Simulation]:
    """From one engine on, which is there from the beginning."""
    made = simulation(of, policy=policy)
    assert made.engines is not None
    made.engines.start("aggregated", 0.0, 0.0)
    return made.run(control=Script(*steps(made))), made


def test_an_engine_that_starts_gets_requests_once_it_is_ready() -> None:
    log, made = run(
        trace(100),
        lambda s: [(5.0, lambda t: s.engines.start("aggregated", t, t + 4))],
        "round-robin",
    )
    second = log.worker == 1
    assert second.any()
    assert log.arrival_s[second].min() >= 9.0
    assert log.served.all()
    assert made.engines.engine_seconds(20.0) == pytest.approx(20.0 + 15.0)


def test_an_engine_that_drains_ends_what_it_has_and_gets_no_more() -> None:
    def steps(s: Simulation) -> list[tuple[float, Callable[[float], object]]]:
        s.engines.start("aggregated", 0.0, 0.0)
        return [(10.0, lambda t: s.engines.drain(0, t))]

    log, made = run(trace(100, output=200), steps)
    assert log.served.all()
    first = log.worker == 0
    assert log.arrival_s[first].max() <= 10.0 < log.last_s[first].max()
    assert list(made.engines.engines) == [1]
    gone = made.engines.engine_seconds(0.0) + made.engines.engines[1].started_s
    assert 10.0 < gone <= log.last_s[first].max() + 1.0


def test_what_outlasts_the_limit_of_a_drain_is_lost_and_counted() -> None:
    def steps(s: Simulation) -> list[tuple[float, Callable[[float], object]]]:
        s.engines.start("aggregated", 0.0, 0.0)
        return [(10.0, lambda t: s.engines.drain(0, t, 0.5))]

    log, made = run(trace(100, output=400), steps)
    lost = ~log.served
    assert made.engines.lost == lost.sum() > 0
    assert (log.worker[lost] == 0).all()
    assert np.isnan(log.last_s[lost]).all()
    assert log.first_failure.endswith("its engine was stopped")


def test_who_takes_a_place_again_has_an_empty_cache() -> None:
    """And the index knows: what it foretells is what the engine finds."""

    def steps(s: Simulation) -> list[tuple[float, Callable[[float], object]]]:
        return [
            (5.0, lambda t: s.engines.start("aggregated", t, t)),
            (6.0, lambda t: s.engines.drain(0, t)),
            (9.0, lambda t: s.engines.start("aggregated", t, t)),
            (9.5, lambda t: s.engines.start("aggregated", t, t)),  # the place of the first
            (10.0, lambda t: s.engines.drain(1, t)),
            (10.0, lambda t: s.engines.drain(2, t)),
        ]

    log, made = run(trace(100), steps)
    assert log.served.all()
    again = np.flatnonzero((log.worker == 0) & (log.arrival_s > 9.0))
    assert len(again) > 30
    # Of each session the first request finds nothing there, all others find its seven blocks.
    assert (log.cached_tokens[again] == 0).sum() == 4
    assert (log.cached_tokens[again] == 7 * BLOCK).sum() == len(again) - 4


def test_an_engine_given_up_before_it_is_ready_was_never_there() -> None:
    def steps(s: Simulation) -> list[tuple[float, Callable[[float], object]]]:
        return [
            (5.0, lambda t: s.engines.start("aggregated", t, t + 10)),
            (7.0, lambda t: s.engines.drain(1, t)),
            (8.0, lambda t: s.engines.start("aggregated", t, t)),
        ]

    log, made = run(trace(60), steps, "round-robin")
    assert set(log.worker.tolist()) == {0, 2}
    assert made.engines.engine_seconds(12.0) == pytest.approx(12.0 + 2.0 + 4.0)


def test_requests_are_turned_away_while_there_is_no_engine() -> None:
    made = simulation(trace(20))
    assert made.engines is not None
    log = made.run(control=Script((2.0, lambda t: made.engines.start("aggregated", t, t))))
    assert (log.served == (log.arrival_s >= 2.0)).all()


def test_places_are_not_taken_twice() -> None:
    made = simulation(trace(2))
    assert made.engines is not None
    for _ in range(3):
        made.engines.start("aggregated", 0.0, 0.0)
    with pytest.raises(RuntimeError, match="every place of aggregated engines is taken"):
        made.engines.start("aggregated", 0.0, 0.0)


def test_prefill_engines_come_and_go_under_hand_offs() -> None:
    spec = FleetSpec(
        workers=0,
        engine=ENGINE,
        changing=True,
        roles=RoleConfig(prefill_workers=3, decode_workers=3),
        disagg=DisaggConfig(disagg="always"),
    )
    made = simulation(trace(150, gap_s=0.1), spec)
    engines = made.engines
    assert engines is not None
    first = engines.start("prefill", 0.0, 0.0)
    engines.start("decode", 0.0, 0.0)
    script = Script(
        (4.0, lambda t: engines.start("prefill", t, t)),
        (4.0, lambda t: engines.start("decode", t, t)),
        (6.0, lambda t: engines.drain(first, t)),
        (8.0, lambda t: engines.drain(0, t)),
    )
    log = made.run(control=script)
    assert log.served.all()
    assert log.remote is not None and log.remote.mean() > 0.9
    assert sorted((each.role, each.state) for each in engines.engines.values()) == [
        ("decode", "serving"),
        ("prefill", "serving"),
    ]


def test_a_changing_fleet_and_its_control_belong_together() -> None:
    with pytest.raises(ValueError, match="needs a control"):
        simulation(trace(2)).run()
    still = FleetSpec(workers=1, engine=ENGINE)
    with pytest.raises(ValueError, match="no other has one"):
        simulation(trace(2), still).run(control=Script())


def test_a_worker_made_new_has_nothing_and_counts_on() -> None:
    fleet = VirtualFleet(ENGINE, 2)
    hashes = np.arange(1, 10, dtype=np.uint64)
    for worker in (0, 1):
        fleet.submit(
            worker, worker, prompt_tokens=128, output_tokens=8,
            local_hashes=hashes, sequence_hashes=hashes, now=0.0,
        )  # fmt: skip
    fleet.advance(0.01)
    assert fleet.queues(0) == (0, 1)
    fleet.restart(0, 1.0)
    assert fleet.queues(0) == (0, 0) and fleet.pools(0) == (0, 0)
    assert fleet.pools(1)[0] > 0
    fleet.advance(math.inf)
    assert set(fleet.take_emissions().requests.tolist()) <= {0, 1}
    assert fleet.stats()[0].steps >= 1  # of before, too
    with pytest.raises(IndexError, match="no engine 2"):
        fleet.restart(2, 1.0)
