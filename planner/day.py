"""A day in virtual time under one policy: the whole trace, exactly simulated, engines changing."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..bench.simulation import ChangingFleet, RequestLog, SampledRequest, SampledTrace, Simulation
from ..bench.traces import TraceRequest
from .decision import Decision
from .fleet import ROLES, Fleet
from .objectives import Objectives
from .observation import Observation, ObservedRequest, ObservedWorker, choose_victims
from .what_if import EngineModel, latencies

LOOK_S = 5.0
"""How often a policy is asked."""
MINUTE_S = 60.0


class Autoscaler(Protocol):
    """A policy: what is observed in, a decision out. `window_s`: how far back it looks at requests.
    `drain_limit_s`: after which engines that drain are stopped, whatever they still run."""

    window_s: float
    drain_limit_s: float

    @property
    def observe(self) -> Callable[[Observation], Decision]:
        """Called with what is observed, every LOOK_S."""
        ...


@dataclass(frozen=True)
class DayTrace:
    """A day's requests, as SampledRequests at their times; made once for all policies."""

    requests: list[SampledRequest]
    arrivals_s: NDArray[np.float64]
    block_size: int  # of the ids
    ids: list[tuple[int, ...]]
    _traces: dict[int, SampledTrace] = field(default_factory=dict, repr=False, compare=False)

    def trace(self, block_size: int) -> SampledTrace:
        """For simulations with engines of such blocks: hashed once for all policies."""
        found = self._traces.get(block_size)
        if found is None:
            found = self._traces[block_size] = SampledTrace(
                self.requests,
                self.arrivals_s,
                block_size=block_size,
                trace_block_size=self.block_size,
            )
        return found

    @property
    def end_s(self) -> float:
        return float(self.arrivals_s[-1])

    def between(self, first_s: float, last_s: float) -> tuple[int, int]:
        """Places of the requests that arrive from `first_s` on and before `last_s`."""
        times = self.arrivals_s
        return int(np.searchsorted(times, first_s)), int(np.searchsorted(times, last_s))

    def counts(self, bin_s: float) -> list[float]:
        """Arrivals by bins of whole `bin_s` seconds."""
        bins = max(1, math.ceil((self.end_s + 1e-9) / bin_s))
        counted = np.histogram(self.arrivals_s, bins, (0, bins * bin_s))[0]
        return [float(each) for each in counted]


def day_trace(requests: Sequence[TraceRequest], block_size: int) -> DayTrace:
    """Of a trace's requests, in the order of arrival, the first one at 0."""
    times = np.array([each.timestamp_ms for each in requests], np.float64) / 1e3
    return DayTrace(
        [
            SampledRequest(
                each.input_length, max(1, each.output_length), np.array(each.hash_ids, np.uint64)
            )
            for each in requests
        ],
        times - times[0],
        block_size,
        [each.hash_ids for each in requests],
    )


@dataclass
class DayRun:
    """What a policy made of a day. `attainment` is the share of good answers to all requests,
    `good_minutes` that of minutes with 99 good ones in a hundred; `worst_5_min` the attainment of
    the worst five minutes. Engine hours are those of starting and draining engines too. A moment is
    the time in s, and the engines that serve, start and drain from then on.
    """

    policy: str
    attainment: float = 0.0
    engine_hours: float = 0.0
    changes: int = 0
    aborted_streams: int = 0
    good_minutes: float = 0.0
    worst_5_min: float = 0.0
    rejected: int = 0
    over_budget_s: float = 0.0
    peak_engines: int = 0
    settings: str = ""
    decisions: list[Decision] = field(default_factory=list)
    moments: list[tuple[float, Fleet, Fleet, Fleet]] = field(default_factory=list)
    good: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    cpu_s: float = 0.0


class HopelessError(Exception):
    """A policy has missed more answers than it may on its day."""


class _Control:
    """Asks the policy every LOOK_S, and makes its changes."""

    def __init__(
        self,
        day: DayTrace,
        simulation: Simulation,
        policy: Autoscaler,
        model: EngineModel,
        run: DayRun,
        budget: int,
        objectives: Objectives,
        most_missed: float,
    ) -> None:
        engines = simulation.engines
        assert engines is not None
        self.next_time = 0.0
        self._day, self._simulation, self._policy = day, simulation, policy
        self._model, self._run, self._budget = model, run, budget
        self._engines: ChangingFleet = engines
        self._done: dict[int, ObservedRequest] = {}
        self._outputs = np.array([each.output_tokens for each in day.requests], np.int64)
        self._times = day.arrivals_s.tolist()
        self._before: dict[int, tuple[float, int]] = {}
        self.seconds = 0.0
        self._last = 0.0
        self._objectives, self._most_missed = objectives, most_missed

    def act(self, now: float) -> None:
        run, engines = self._run, self._engines
        if len(engines.engines) > self._budget:
            run.over_budget_s += now - self._last
        self._last = now
        if now >= self._day.end_s:
            self.seconds, self.next_time = engines.engine_seconds(now), math.inf
            return
        if self._missed(now) > self._most_missed:
            raise HopelessError
        self.next_time = min(now + LOOK_S, self._day.end_s)
        seen = self._observe(now)
        decision = self._policy.observe(seen)
        if decision.changes:
            run.changes += 1
            self._execute(seen, decision, now)
        if decision.kind != "hold" or decision.changes or decision.reasons:
            run.decisions.append(decision)
        counts = [
            Fleet(*(engines.count(role, state) for role in ROLES))
            for state in ("serving", "starting", "draining")
        ]
        run.peak_engines = max(run.peak_engines, len(engines.engines))
        if not run.moments or run.moments[-1][1:] != tuple(counts):
            run.moments.append((now, counts[0], counts[1], counts[2]))

    def _missed(self, now: float) -> int:
        """Answers that have ended, and are not good; 0 where none is too many."""
        if self._most_missed == math.inf:
            return 0
        log = self._simulation.log()
        ended = log.served & (log.last_s <= now)
        ttft, itl = latencies(log, self._outputs)
        return int((ended & ~self._objectives.good(ttft, itl)).sum())

    def _execute(self, seen: Observation, decision: Decision, now: float) -> None:
        engines = self._engines
        for worker in decision.victims or choose_victims(seen, decision.after):
            engines.drain(worker, now, self._policy.drain_limit_s)
        for role, count in decision.after:
            for _ in range(count - decision.before.count(role)):
                engines.start(role, now, now + self._model.start_up_s)

    def _observe(self, now: float) -> Observation:
        log, fleet = self._simulation.log(), self._simulation.fleet
        finished = log.worker[log.last_s <= now]
        served = np.bincount(finished, minlength=1) if len(finished) else np.zeros(1, np.int64)
        workers = []
        for each in self._engines.engines.values():
            total = int(served[each.worker]) if each.worker < len(served) else 0
            started, before = self._before.get(each.worker, (math.nan, 0))
            if started != each.started_s:
                before = total
                self._before[each.worker] = each.started_s, total
            waiting, running = fleet.queues(each.worker)
            serving = each.state != "starting"
            workers.append(
                ObservedWorker(
                    worker_id=each.worker,
                    role=each.role,
                    state=each.state,
                    age_s=now - each.started_s,
                    expected_ready_s=max(0.0, each.ready_s - now),
                    served=total - before,
                    running=running if serving else 0,
                    waiting=waiting if serving else 0,
                    active_blocks=fleet.pools(each.worker)[0] if serving else 0,
                    total_blocks=self._model.engine.num_gpu_blocks,
                )
            )
        window = min(self._policy.window_s, now)
        return Observation(
            at=now,
            workers=workers,
            requests=self._requests(now, window, log),
            window_s=window,
            block_size=self._day.block_size,
            queued=0,
        )

    def _requests(self, now: float, window_s: float, log: RequestLog) -> list[ObservedRequest]:
        low = bisect_left(self._times, now - window_s)
        high = bisect_right(self._times, now) if window_s else low
        return [
            self._done.get(place) or self._request(place, now, log) for place in range(low, high)
        ]

    def _request(self, place: int, now: float, log: RequestLog) -> ObservedRequest:
        request, arrived = self._day.requests[place], self._times[place]
        first_s, last_s = log.first_s[place], log.last_s[place]
        begun, ended = first_s <= now, last_s <= now
        found = ObservedRequest(
            arrived,
            request.prompt_tokens,
            request.output_tokens if ended else None,
            self._day.ids[place],
            None,
            float(first_s - arrived) * 1e3 if begun else None,
            float(last_s - first_s) * 1e3 / (request.output_tokens - 1)
            if ended and request.output_tokens > 1
            else None,
            int(log.cached_tokens[place]) if begun else None,
            int(log.worker[place]),
        )
        if ended:
            self._done[place] = found
        return found


def run_day(
    name: str,
    day: DayTrace,
    policy: Autoscaler,
    start: Fleet,
    model: EngineModel,
    objectives: Objectives,
    *,
    budget: int,
    places: Fleet,
    most_missed: float = math.inf,
) -> DayRun:
    """The day under a policy, from a fleet that serves at once. `model` is what the engines are
    really like, `places` the most engines of each role at a time. HopelessError once more than
    `most_missed` answers were not good."""
    simulation = model.simulation(day.trace(model.engine.block_size), places)
    engines = simulation.engines
    assert engines is not None
    for role, count in start:
        for _ in range(count):
            engines.start(role, 0.0, 0.0)
    run = DayRun(name)
    control = _Control(day, simulation, policy, model, run, budget, objectives, most_missed)
    log = simulation.run(control=control)
    ttft, itl = latencies(log, np.array([each.output_tokens for each in day.requests], np.int64))
    run.good = objectives.good(ttft, itl)
    run.attainment = float(run.good.mean())
    run.engine_hours = control.seconds / 3600
    run.aborted_streams = engines.lost
    run.rejected = int((log.status != 0).sum()) - engines.lost
    _windows(run, day)
    return run


def _windows(run: DayRun, day: DayTrace) -> None:
    minutes = (day.arrivals_s // MINUTE_S).astype(np.int64)
    total = np.bincount(minutes).astype(np.float64)
    good = np.bincount(minutes, run.good)
    busy = total > 0
    run.good_minutes = float((good[busy] >= 0.99 * total[busy]).mean())
    five = np.ones(min(5, len(total)))
    sums, parts = np.convolve(total, five, "valid"), np.convolve(good, five, "valid")
    run.worst_5_min = float((parts[sums > 0] / sums[sums > 0]).min()) if (sums > 0).any() else 1.0
