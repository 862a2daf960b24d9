"""WhatIf: a candidate fleet over the next minutes, simulated from what is observed.

The last seconds' requests are simulated first, as they came, on the engines that are there: that
fills queues and caches, and their latencies beside the measured ones are how far the engine model
is off. From now on the candidate's engines start, after their start-up time, and drain. Engines are
the mocker's, and decisions the router's own.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..bench.simulation import (
    FleetSpec,
    PolicyVariant,
    RequestLog,
    RoleConfig,
    SampledRequest,
    SampledTrace,
    Simulation,
    parse_policies,
)
from ..engines.mocker import EngineConfig
from ..router.disagg import DisaggConfig
from .fleet import ROLES, Fleet, Role
from .objectives import Objectives
from .observation import ObservedWorker

LOOK_EVERY_S = 5.0
"""Simulated seconds from one look of a watch to the next."""


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """What the engines, and the way to them, are taken to be like.

    `start_up_s`: from the decision until an engine serves. `speed`: how much faster steps are than
    the engine's timing has them.
    """

    engine: EngineConfig
    start_up_s: float
    speed: float = 1.0
    policy: str = "kv"
    roles: RoleConfig = RoleConfig()  # of which the network counts
    disagg: DisaggConfig = DisaggConfig(disagg="conditional")
    trace_block_size: int = 512

    def variant(self) -> PolicyVariant:
        """The router's policy. ConfigError for a name that is unknown."""
        return parse_policies(
            self.policy,
            block_size=self.engine.block_size,
            trace_block_size=self.trace_block_size,
        )[0]

    def simulation(self, trace: SampledTrace, most: Fleet, *, seed: int = 0) -> Simulation:
        """A run with places for the engines of `most`; none is there yet."""
        apart = bool(most.prefill and most.decode)
        roles = replace(
            self.roles,
            prefill_workers=most.prefill if apart else 0,
            decode_workers=most.decode if apart else 0,
        )
        spec = FleetSpec(
            workers=most.aggregated,
            engine=self.engine,
            speeds=(self.speed,),
            roles=roles,
            disagg=self.disagg if apart else DisaggConfig(),
            changing=True,
        )
        variant = self.variant()
        return Simulation(trace, spec, lambda clock: variant.new_router(clock, seed), seed=seed)


class Excerpt(NamedTuple):
    """Which parts of the time ahead are simulated: of each bin its first part, the others are left
    out. `shares` are those of the bins; times are in seconds from now."""

    bin_s: float
    shares: NDArray[np.float64]

    def at(self, true_s: float) -> float:
        """When the simulation comes to a true time; beyond the last bin all of it is simulated."""
        ends = self.bin_s * np.arange(len(self.shares) + 1)
        passed = np.concatenate([[0.0], np.cumsum(self.bin_s * self.shares)])
        return float(np.interp(true_s, ends, passed)) + max(0.0, true_s - float(ends[-1]))

    def shortened(
        self, times_s: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Of the times those that are simulated, by their places, and when that is."""
        bins = np.minimum(times_s // self.bin_s, len(self.shares) - 1).astype(np.int64)
        within = times_s - bins * self.bin_s
        kept = np.flatnonzero(within < self.shares[bins] * self.bin_s)
        begins = np.concatenate([[0.0], np.cumsum(self.bin_s * self.shares)])
        return kept, begins[bins[kept]] + within[kept]


@dataclass(frozen=True)
class Scenario:
    """What is simulated: requests and their times, in seconds from now, as the excerpt has them;
    past ones are below 0. `horizon_s` is the true one.

    `probability` is the forecast's quantile that the arrivals are of. `block_size` is an engine's,
    `trace_block_size` that of the requests' ids.
    """

    requests: Sequence[SampledRequest]
    arrivals_s: NDArray[np.float64]
    horizon_s: float
    excerpt: Excerpt
    probability: float
    seed: int
    block_size: int
    trace_block_size: int

    @cached_property
    def lead_s(self) -> float:
        """What is simulated before now."""
        return -float(min(0.0, self.arrivals_s.min(initial=0.0)))

    @cached_property
    def trace(self) -> SampledTrace:
        """Its requests for a simulation: made once, and their hashes too, for all candidates."""
        return SampledTrace(
            self.requests,
            self.arrivals_s + self.lead_s,
            block_size=self.block_size,
            trace_block_size=self.trace_block_size,
        )


class Outcome(NamedTuple):
    """What became of a candidate in a scenario. `past_*` are means of the requests before now."""

    attainment: float  # of those that arrive within the horizon; 1 if none does
    late: float  # of those that arrive once a new engine could serve
    slow_first: float  # share of first tokens that are late
    slow_next: float  # share of answers whose later tokens are
    engine_seconds: float  # of the true horizon
    past_ttft_ms: NDArray[np.float64]
    past_itl_ms: NDArray[np.float64]


def latencies(log: RequestLog, outputs: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """TTFT and mean ITL in ms of every request, nan where there is none."""
    served = log.served
    ttft = np.where(served, (log.first_s - log.arrival_s) * 1e3, np.nan)
    between = np.where(outputs > 1, outputs - 1, np.nan)
    itl = np.where(served, (log.last_s - log.first_s) * 1e3 / between, np.nan)
    return ttft, itl


@contextmanager
def _silent_policies() -> Iterator[None]:
    """Warnings of policies are of a fleet that there is not: an operator must not read them."""
    policies = logging.getLogger("dynamo_router.router.policy")
    before = policies.level
    policies.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        policies.setLevel(before)


class Watch(Protocol):
    """Who may end a simulation, by raising."""

    def on_request(self, routed: int) -> None:
        """Called with the number of requests routed."""

    def look(self) -> None:
        """Time goes on."""


class _Change:
    """The candidate, put into effect once: engines start and drain."""

    def __init__(
        self,
        simulation: Simulation,
        at: float,
        target: Fleet,
        start_up_s: float,
        watch: Watch | None,
    ) -> None:
        self.next_time = at
        self._simulation, self._target, self._start_up_s = simulation, target, start_up_s
        self._watch, self._done = watch, False

    def act(self, now: float) -> None:
        self.next_time = math.inf if self._watch is None else now + LOOK_EVERY_S
        if self._watch is not None:
            self._watch.look()
        if not self._done:
            self._done = True
            self._change(now)

    def _change(self, now: float) -> None:
        engines = self._simulation.engines
        assert engines is not None
        for role, count in self._target:
            there = [each for each in engines.engines.values() if each.role == role]
            # Those that still start are given up first: they serve nothing.
            there = [each for each in there if each.state != "draining"]
            there.sort(key=lambda each: (each.state == "serving", -each.worker))
            for each in there[: max(0, len(there) - count)]:
                engines.drain(each.worker, now)
            for _ in range(count - len(there)):
                engines.start(role, now, now + self._start_up_s)


def simulate_candidate(
    model: EngineModel,
    workers: Sequence[ObservedWorker],
    target: Fleet,
    scenario: Scenario,
    objectives: Objectives,
    watch: Watch | None = None,
) -> Outcome:
    """The candidate `target` from the workers that are there, over a scenario; one without requests
    is kept by any fleet."""
    if not len(scenario.requests):
        none, seconds = np.zeros(0), target.engines * scenario.horizon_s
        return Outcome(1.0, 1.0, 0.0, 0.0, seconds, none, none)
    start_up_s = scenario.excerpt.at(model.start_up_s)
    horizon_s = scenario.excerpt.at(scenario.horizon_s)
    lead_s = scenario.lead_s
    there = Fleet(*(sum(each.role == role for each in workers) for role in ROLES))
    most = there.highest(target)
    added = Fleet(*(max(0, target.count(role) - _staying(workers, role)) for role in ROLES))
    most = Fleet(*(there.count(role) + count for role, count in added)).highest(most)
    if bool(most.prefill) != bool(most.decode):  # roles need each other, places at least
        most = most.highest(Fleet(prefill=1, decode=1))
    simulation = model.simulation(scenario.trace, most, seed=scenario.seed)
    engines = simulation.engines
    assert engines is not None
    for each in workers:
        if each.state == "failed":
            continue
        ready = 0.0
        if each.state == "starting":
            left = each.expected_ready_s
            left = model.start_up_s - each.age_s if left is None else left
            ready = lead_s + scenario.excerpt.at(left)
        worker = engines.start(each.role, 0.0, max(0.0, ready))
        if each.state == "draining":
            engines.drain(worker, 0.0)
    before = engines.engine_seconds(lead_s)
    with _silent_policies():
        change = _Change(simulation, lead_s, target, start_up_s, watch)
        log = simulation.run(None if watch is None else watch.on_request, control=change)
    outputs = np.array([each.output_tokens for each in scenario.requests], np.int64)
    ttft, itl = latencies(log, outputs)
    good = objectives.good(ttft, itl)
    coming = (scenario.arrivals_s >= 0) & (scenario.arrivals_s < horizon_s)
    late = coming & (scenario.arrivals_s >= start_up_s)
    past = scenario.arrivals_s < 0
    seconds = engines.engine_seconds(lead_s + horizon_s) - before
    return Outcome(
        float(good[coming].mean()) if coming.any() else 1.0,
        float(good[late].mean()) if late.any() else 1.0,
        _share(~(ttft[coming] <= objectives.objective_ttft_ms)),
        _share(itl[coming] > objectives.objective_itl_ms),
        seconds * scenario.horizon_s / max(horizon_s, 1e-9),
        ttft[past],
        itl[past],
    )


def _share(of: NDArray[np.bool_]) -> float:
    return float(of.mean()) if of.size else 0.0


def _staying(workers: Sequence[ObservedWorker], role: Role) -> int:
    return sum(each.role == role and each.state in ("starting", "serving") for each in workers)
