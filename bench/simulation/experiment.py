"""An experiment: policies on one load and one fleet, with the same seeds."""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import NamedTuple

from ...engines.mocker import parse_speeds
from ...router.config import KvRouterConfig
from ..traces import block_size_of, read_turns
from .bounds import hit_rate_bounds
from .capacity import highest_rate
from .config import DEFAULT_COMPARE, DEFAULT_WORKERS, Load, SimulationConfig
from .policies import PolicyVariant, parse_policies
from .prepared_trace import SimulatedTrace
from .request_log import RequestLog
from .simulated_run import SimulatedRun, summarise_run
from .simulation import FleetSpec, Simulation

EVEN_RATE = 1.0
"""Requests a second, at speed-up 1, of a trace that has no rate of its own when one is needed."""


class Result(NamedTuple):
    """One run: its figures, its requests, and the CPU time that simulating it took."""

    run: SimulatedRun
    log: RequestLog
    trace: SimulatedTrace
    cpu_s: float


class Experiment:
    """The same load and fleet for every policy. ConfigError for a trace that cannot be used."""

    def __init__(self, config: SimulationConfig, load: Load, workers: int) -> None:
        self.config, self.load, self.workers = config, load, workers
        self.engines = workers + config.roles.engines
        self._block_size = block_size_of(load.trace, load.trace_block_size)
        self._turns = read_turns(load.trace, trace_block_size=self._block_size, limit=load.requests)
        self._bounds = hit_rate_bounds(
            [turn.request for turn in self._turns],
            block_size=config.block_size,
            fleet_blocks=self.engines * config.dp_size * config.num_gpu_blocks,
            trace_block_size=self._block_size,
        )
        self._trace: tuple[int, SimulatedTrace] | None = None

    def variants(self, names: str, base: KvRouterConfig | None = None) -> list[PolicyVariant]:
        """As `parse_policies`, of this fleet; on top of its own settings where none are given."""
        return parse_policies(
            names,
            block_size=self.config.block_size,
            trace_block_size=self._block_size,
            base=base or self.config.router(),
        )

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
                trace_block_size=self._block_size,
            )
            self._trace = seed, trace
        return self._trace[1]

    def run(self, variant: PolicyVariant, seed: int) -> Result:
        """One policy with one seed, and its capacity if the settings ask for that.

        The same arguments give the same run.
        """
        started = time.process_time()
        search, load = self.config.search, self.load
        found = self._run(variant, seed, load.arrival_speedup)
        run = found.run
        if search.capacity:
            tried = {}
            if self._span_s() > 0:
                tried[load.arrival_speedup] = run.goodput.relative or 0.0

            def share_at(speedup: float) -> float:
                if speedup not in tried:
                    evenly = not self._span_s() > 0
                    goodput = self._run(variant, seed, speedup, evenly=evenly).run.goodput
                    tried[speedup] = goodput.relative or 0.0
                return tried[speedup]

            speedup = highest_rate(
                share_at,
                start=load.arrival_speedup,
                share=search.capacity_share,
                precision=search.capacity_precision,
            )
            run = replace(
                run,
                capacity=speedup * self._usual_rate(),
                details={**run.details, "capacity_speedup": speedup},
            )
        return found._replace(run=run, cpu_s=time.process_time() - started)

    def _usual_rate(self) -> float:
        """Requests a second of the trace at its own speed.

        Where all come at one time they have no rate: a search then sends them evenly apart.
        """
        span_s = self._span_s()
        return len(self._turns) / span_s if span_s > 0 else EVEN_RATE

    def _span_s(self) -> float:
        """From the first arrival that the trace has a time for to the last."""
        times = [turn.request.timestamp_ms for turn in self._turns]
        return (max(times) - min(times)) / 1e3

    def _run(
        self, variant: PolicyVariant, seed: int, arrival_speedup: float, *, evenly: bool = False
    ) -> Result:
        config, load, trace = self.config, self.load, self.trace(seed)
        started = time.process_time()
        if arrival_speedup != load.arrival_speedup:
            trace = trace.sped_up(arrival_speedup)
        if evenly:
            trace = trace.evenly_apart(1 / (EVEN_RATE * arrival_speedup))
        fleet = FleetSpec(
            workers=self.workers,
            engine=config.engine_config(),
            speeds=parse_speeds(config.worker_speeds),
            event_delay_s=config.event_delay_ms / 1e3,
            event_loss=config.event_loss,
            told=config.engine_facts,
            session_hints=config.session_hints,
            roles=config.roles,
            disagg=config.disagg,
        )
        log = Simulation(
            trace,
            fleet,
            lambda clock: variant.new_router(clock, seed),
            seed=seed,
            replicas=config.replicas,
        ).run()
        run = summarise_run(
            log,
            trace,
            self._bounds,
            config,
            mode=variant.mode,
            policy=variant.policy,
            workers=self.engines,
            seed=seed,
            details={
                "trace": load.trace,
                "target": None,
                "arrival_speedup": arrival_speedup,
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
                "decode_scale_tokens": config.decode_scale_tokens,
                "attention_us_per_ktoken2": config.attention_us_per_ktoken2,
                **asdict(config.tiers),
                "kv_events": config.kv_events,
                "engine_facts": config.engine_facts,
                "session_hints": config.session_hints,
                "event_delay_ms": config.event_delay_ms,
                "event_loss": config.event_loss,
                **asdict(config.objectives),
                **(
                    {**asdict(config.roles), **asdict(config.disagg)}
                    if config.roles.engines
                    else {}
                ),
            },
        )
        return Result(run, log, trace, time.process_time() - started)


def compare_policies(
    config: SimulationConfig,
    load: Load,
    *,
    workers: int = DEFAULT_WORKERS,
    names: str = DEFAULT_COMPARE,
    base: KvRouterConfig | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[SimulatedRun]:
    """Run every policy in `names`, as `parse_policies` reads them on top of `base`, with each seed.

    The runs by policy, then by seed; `on_result` gets each as soon as it is there. Raises
    ConfigError for a trace or a name that cannot be used, before anything is run.
    """
    experiment = Experiment(config, load, workers)
    variants = experiment.variants(names, base or KvRouterConfig())
    runs: dict[tuple[str, int], SimulatedRun] = {}
    for seed in range(load.seed, load.seed + config.seeds):
        for variant in variants:
            result = experiment.run(variant, seed)
            runs[variant.policy, seed] = result.run
            if on_result is not None:
                on_result(result)
    return [runs[each.policy, load.seed + i] for each in variants for i in range(config.seeds)]
