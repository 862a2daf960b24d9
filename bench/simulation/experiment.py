"""Where policies meet: one load, one fleet, its bounds. Called by compare.py and sweep.py."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from ...workers.mocker.config import parse_speeds
from ..traces import read_turns
from .bounds import pooled_hit_rate
from .config import SimulationConfig
from .outcome import Bounds, SimulatedRun, summarise_run
from .policies import Contestant
from .prepared_trace import SimulatedTrace
from .simulation import Fleet, Simulation, Trail


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent, from which seed on."""

    trace: str
    requests: int | None = None
    arrival_speedup: float = 1.0
    max_output: int | None = None
    trace_block_size: int = 512
    seed: int = 0


class Result(NamedTuple):
    """One run, with all that happened in it, and how long that took us."""

    run: SimulatedRun
    trail: Trail
    trace: SimulatedTrace
    cpu_s: float


class Arena:
    """The same load and fleet for everybody. Raises ConfigError for a trace that cannot be used."""

    def __init__(self, config: SimulationConfig, load: Load, workers: int) -> None:
        self.config, self.load, self.workers = config, load, workers
        self._turns = read_turns(
            load.trace, trace_block_size=load.trace_block_size, limit=load.requests
        )
        pooled, infinite = (
            pooled_hit_rate(
                [turn.request for turn in self._turns],
                block_size=config.block_size,
                capacity_blocks=capacity,
                trace_block_size=load.trace_block_size,
            )
            for capacity in (workers * config.dp_size * config.num_gpu_blocks, None)
        )
        self._bounds = Bounds(pooled, infinite)
        self._trace: tuple[int, SimulatedTrace] | None = None

    def trace(self, seed: int) -> SimulatedTrace:
        """The trace with this seed's contents; the last one is kept."""
        if self._trace is None or self._trace[0] != seed:
            self._trace = None  # two would be too many for a long trace
            load = self.load
            trace = SimulatedTrace(
                self._turns,
                block_size=self.config.block_size,
                arrival_speedup=load.arrival_speedup,
                max_output=load.max_output,
                seed=seed,
                trace_block_size=load.trace_block_size,
            )
            self._trace = seed, trace
        return self._trace[1]

    def run(self, contestant: Contestant, seed: int) -> Result:
        """One policy with one seed. The same arguments give the same run."""
        config, load, trace = self.config, self.load, self.trace(seed)
        started = time.process_time()
        fleet = Fleet(
            workers=self.workers,
            engine=config.engine_config(),
            speeds=parse_speeds(config.worker_speeds),
            event_delay_s=config.event_delay_ms / 1e3,
            event_loss=config.event_loss,
        )
        trail = Simulation(
            trace, fleet, lambda clock: contestant.new_router(clock, seed), seed=seed
        ).run()
        run = summarise_run(
            trail,
            trace,
            self._bounds,
            config,
            mode=contestant.mode,
            policy=contestant.policy,
            workers=self.workers,
            seed=seed,
            details={
                "trace": load.trace,
                "target": None,
                "arrival_speedup": load.arrival_speedup,
                "engine": config.engine,
                "block_size": config.block_size,
                "num_gpu_blocks": config.num_gpu_blocks,
                "max_num_seqs": config.max_num_seqs,
                "max_num_batched_tokens": config.max_num_batched_tokens,
                "worker_speeds": config.worker_speeds,
                "preemption_mode": config.preemption_mode,
                "dp_size": config.dp_size,
                "startup_time_s": config.startup_time_s,
                "planner_profile_data": config.planner_profile_data,
                "event_delay_ms": config.event_delay_ms,
                "event_loss": config.event_loss,
                "slo_ttft_ms": config.slo_ttft_ms,
                "slo_itl_ms": config.slo_itl_ms,
            },
        )
        return Result(run, trail, trace, time.process_time() - started)
