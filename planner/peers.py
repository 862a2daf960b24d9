"""What others scale by: static fleets, HPA, KEDA, llm-d's WVA, Dynamo's formulas of 0.8 and 1.5.

Each is a function of what is observed, from their public documentation; `Scaler` makes decisions of
them, within budget and bounds. Numbers that an operator would set are fields: they are what is
tuned.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .constraints import Constraints
from .decision import Decision
from .fleet import Fleet, Role
from .objectives import Objectives
from .observation import Observation, ObservedWorker, choose_victims
from .profile import Curves

GRACE_S = 30.0
"""Kubernetes' terminationGracePeriodSeconds: what runs longer is cut off."""
HPA_EVERY_S = 15.0
HPA_TOLERANCE = 0.1
HPA_DOWN_S = 300.0
DYNAMO_EVERY_S = 180.0
DYNAMO_LOAD_S = 5.0


class Rule(Protocol):
    """How many engines a peer wants; None: it does not know, and leaves all as it is."""

    every_s: float

    def wanted(self, seen: Observation) -> tuple[Fleet | None, str]: ...


class Scaler:
    """A rule as a policy for a day. Engines that drain are stopped after GRACE_S."""

    drain_limit_s = GRACE_S

    def __init__(self, rule: Rule, constraints: Constraints, *, window_s: float = 0.0) -> None:
        self._rule, self._constraints, self.window_s = rule, constraints, window_s
        self._next = 0.0
        self._number = 0

    def observe(self, seen: Observation) -> Decision:
        present = seen.fleet()
        after, reason = present, ""
        if seen.at >= self._next:
            self._next = seen.at + self._rule.every_s
            wanted, reason = self._rule.wanted(seen)
            if wanted is not None:
                after = self._bounded(wanted, present)
        # Pods that are drained hold their accelerators: newcomers wait.
        left = self._constraints.engines_max - seen.held.cost(self._constraints.costs)
        for role, count in after:
            more = count - present.count(role)
            if more > left:
                after = after.replaced(role, present.count(role) + max(0, left))
            left -= max(0, min(more, left))
        self._number += after != present
        return Decision(
            id=self._number,
            at=seen.at,
            before=present,
            after=after,
            kind="rule" if after != present else "hold",
            reasons=(reason,) if after != present else (),
            victims=choose_victims(seen, after),
        )

    def _bounded(self, wanted: Fleet, present: Fleet) -> Fleet:
        least = max(1, self._constraints.engines_min)
        bounded = wanted
        for role, count in wanted:
            if present.count(role) and count < least:
                bounded = bounded.replaced(role, least)
        while bounded.cost(self._constraints.costs) > self._constraints.engines_max:
            largest = max(bounded, key=lambda pair: pair[1])[0]
            bounded = bounded.changed(largest, -1)
        return bounded


@dataclass
class Static:
    """The same fleet all day."""

    fleet: Fleet
    every_s: float = 3600.0

    def wanted(self, seen: Observation) -> tuple[Fleet | None, str]:
        return self.fleet, "static"


def _of(seen: Observation, role: Role, state: str = "serving") -> list[ObservedWorker]:
    return [each for each in seen.workers if each.role == role and each.state == state]


@dataclass
class Hpa:
    """Kubernetes' horizontal pod autoscaler on a mean per engine.

    ceil(replicas * mean / target), if that is more than 10 % off; up by at most 4 engines or twice
    in 15 s, down to the highest of the last 300 s. Engines that start count as idle when it grows.
    `metric`: queue, the requests that an engine has; kv, the share of its cache in use.
    """

    metric: str
    target: float
    every_s: float = HPA_EVERY_S
    _past: dict[Role, deque[tuple[float, int]]] = field(default_factory=dict)

    def wanted(self, seen: Observation) -> tuple[Fleet | None, str]:
        present, wanted = seen.fleet(), seen.fleet()
        for role, replicas in present:
            serving = _of(seen, role)
            if not replicas or not serving:
                continue
            total = sum(map(self._value, serving))
            mean = total / len(serving)
            if mean > self.target:
                mean = max(self.target, total / replicas)
            desired = replicas
            if abs(mean / self.target - 1) > HPA_TOLERANCE:
                desired = math.ceil(replicas * mean / self.target - 1e-9)
            desired = min(desired, max(2 * replicas, replicas + 4))
            past = self._past.setdefault(role, deque())
            past.append((seen.at, desired))
            while past[0][0] < seen.at - HPA_DOWN_S:
                past.popleft()
            wanted = wanted.replaced(role, max(1, max(each for _, each in past)))
        return wanted, f"{self.metric} per engine beside {self.target:g}"

    def _value(self, worker: ObservedWorker) -> float:
        if self.metric == "kv":
            return (worker.active_blocks or 0) / (worker.total_blocks or 1)
        return (worker.running or 0) + (worker.waiting or 0)


@dataclass
class Keda:
    """A ScaledObject on the number of requests that wait in engines, AverageValue `threshold`,
    polled every 30 s; what it wants goes through an HPA's 300 s of stabilisation."""

    threshold: float
    every_s: float = 30.0
    _past: dict[Role, deque[tuple[float, int]]] = field(default_factory=dict)

    def wanted(self, seen: Observation) -> tuple[Fleet | None, str]:
        wanted = seen.fleet()
        for role, replicas in seen.fleet():
            if not replicas:
                continue
            waiting = sum(each.waiting or 0 for each in _of(seen, role))
            desired = max(1, math.ceil(waiting / self.threshold - 1e-9))
            desired = min(desired, max(2 * replicas, replicas + 4))
            past = self._past.setdefault(role, deque())
            past.append((seen.at, desired))
            while past[0][0] < seen.at - HPA_DOWN_S:
                past.popleft()
            wanted = wanted.replaced(role, max(each for _, each in past))
        return wanted, f"requests waiting beside {self.threshold:g} an engine"


@dataclass
class Wva:
    """llm-d's saturation rule: an engine is saturated at `kv_limit` of its cache or `queue_limit`
    waiting. Up by one if the mean spare of the others is below 0.1 of cache or 3 of queue, down by
    one if N - 1 would keep both spares. Not while an engine starts."""

    kv_limit: float = 0.8
    queue_limit: float = 5.0
    spare_kv: float = 0.1
    spare_queue: float = 3.0
    every_s: float = 30.0

    def wanted(self, seen: Observation) -> tuple[Fleet | None, str]:
        wanted, reasons = seen.fleet(), []
        for role, replicas in seen.fleet():
            serving = _of(seen, role)
            if not replicas or not serving or _of(seen, role, "starting"):
                continue
            uses = [(each.active_blocks or 0) / (each.total_blocks or 1) for each in serving]
            queues = [float(each.waiting or 0) for each in serving]
            free = [
                (use, queue)
                for use, queue in zip(uses, queues, strict=True)
                if use < self.kv_limit and queue < self.queue_limit
            ]
            if not free:
                wanted = wanted.changed(role, 1)
                reasons.append(f"every {role} engine is saturated")
                continue
            kv = self.kv_limit - float(np.mean([use for use, _ in free]))
            queue = self.queue_limit - float(np.mean([each for _, each in free]))
            if kv < self.spare_kv or queue < self.spare_queue:
                wanted = wanted.changed(role, 1)
                reasons.append(f"spare {kv:.2f} of cache, {queue:.1f} of queue")
            elif replicas >= 2:
                more = len(serving) / (len(serving) - 1) if len(serving) > 1 else math.inf
                kv = self.kv_limit - float(np.mean(uses)) * more
                queue = self.queue_limit - float(np.mean(queues)) * more
                if kv >= self.spare_kv and queue >= self.spare_queue:
                    wanted = wanted.changed(role, -1)
                    reasons.append("one fewer keeps the spares")
        return wanted, "; ".join(reasons)


class Demand:
    """Means of the requests of the last seconds: a second, prompt, output, share of hits."""

    def __init__(self, seen: Observation, last_s: float) -> None:
        requests = [each for each in seen.requests or () if each.arrival_s >= seen.at - last_s]
        known = [each.output_tokens for each in requests if each.output_tokens is not None]
        ttft = [each.ttft_ms for each in requests if each.ttft_ms is not None]
        itl = [each.itl_ms for each in requests if each.itl_ms is not None]
        span = max(1.0, min(last_s, seen.window_s))
        self.rate = len(requests) / span
        self.isl = float(np.mean([each.prompt_tokens for each in requests])) if requests else 0.0
        self.osl = float(np.mean(known)) if known else 1.0
        self.ttft_ms = float(np.mean(ttft)) if ttft else math.nan
        self.itl_ms = float(np.mean(itl)) if itl else math.nan
        self.known = bool(requests)


@dataclass
class Dynamo08:
    """Dynamo 0.8's formulas, with means of the last interval and correction factors.

    num_p = ceil(rate * isl * min(1, p_corr) / prefill rate), num_d = ceil(rate * osl / decode rate
    at ITL / d_corr). Aggregated engines do both: the two demands are added. `scale` multiplies the
    demand. No data leaves all as it is, as means of nothing are nan.
    """

    curves: Curves
    objectives: Objectives
    scale: float = 1.0
    every_s: float = DYNAMO_EVERY_S

    def wanted(self, seen: Observation) -> tuple[Fleet | None, str]:
        demand = Demand(seen, self.every_s)
        if not demand.known:
            return None, "no data"
        curves, serving = self.curves, seen.fleet("serving")
        p_corr = d_corr = 1.0
        if math.isfinite(demand.ttft_ms):
            p_corr = demand.ttft_ms / max(1e-9, curves.ttft(demand.isl))
        if math.isfinite(demand.itl_ms):
            engines = max(1, serving.decode or serving.engines)
            alike = demand.rate * demand.osl * demand.itl_ms / 1e3 / engines
            expected = curves.itl(alike, demand.isl + demand.osl / 2)
            d_corr = demand.itl_ms / max(1e-9, expected)
        prefill = demand.rate * demand.isl * min(1.0, p_corr)
        prefill /= curves.prefill_tokens_per_s(demand.isl)
        decode = demand.rate * demand.osl
        limit = self.objectives.objective_itl_ms / max(1e-9, d_corr)
        decode /= curves.decode_tokens_per_s(limit, demand.isl + demand.osl / 2)
        return _sized(seen, self.scale * prefill, self.scale * decode), "throughput of the interval"


@dataclass
class Dynamo15:
    """Dynamo 1.5: a floor by throughput every 180 s, ceil(demand / an engine's rate within the
    objectives), and the load rule every 5 s: up by one if all engines are over the objective, down
    if all would be under `sensitivity` of it with one fewer. `scale` multiplies the demand."""

    curves: Curves
    objectives: Objectives
    scale: float = 1.0
    sensitivity: float = 0.8
    every_s: float = DYNAMO_LOAD_S
    _floor: Fleet = Fleet()
    _floor_at: float = -math.inf

    def wanted(self, seen: Observation) -> tuple[Fleet | None, str]:
        demand = Demand(seen, DYNAMO_EVERY_S)
        if not demand.known:
            return None, "no data"
        if seen.at - self._floor_at >= DYNAMO_EVERY_S:
            self._floor_at = seen.at
            prefill = demand.rate * demand.isl / self.curves.prefill_tokens_per_s(demand.isl)
            decode = demand.rate * demand.osl
            decode /= self.curves.decode_tokens_per_s(
                self.objectives.objective_itl_ms, demand.isl + demand.osl / 2
            )
            self._floor = _sized(seen, self.scale * prefill, self.scale * decode)
        present, wanted = seen.fleet(), seen.fleet()
        for role, count in present:
            if not count or _of(seen, role, "starting"):
                continue
            loads = self._loads(seen, role)
            if not loads:
                continue
            if min(loads) > 1:
                wanted = wanted.changed(role, 1)
            elif count > 1 and max(loads) * count / (count - 1) < self.sensitivity:
                wanted = wanted.changed(role, -1)
        return wanted.highest(self._floor), "floor by throughput, load of every engine"

    def _loads(self, seen: Observation, role: Role) -> list[float]:
        """Per serving engine: latency beside the objective, the worse of the two that it makes."""
        ttft: dict[int, list[float]] = {}
        itl: dict[int, list[float]] = {}
        for each in reversed(seen.requests or ()):
            if each.arrival_s < seen.at - 30:
                break
            if each.worker_id is not None and each.ttft_ms is not None:
                ttft.setdefault(each.worker_id, []).append(each.ttft_ms)
            if each.worker_id is not None and each.itl_ms is not None:
                itl.setdefault(each.worker_id, []).append(each.itl_ms)
        loads = []
        for worker in _of(seen, role):
            found = []
            if role != "decode" and worker.worker_id in ttft:
                mean = float(np.mean(ttft[worker.worker_id]))
                found.append(mean / self.objectives.objective_ttft_ms)
            if role != "prefill" and worker.worker_id in itl:
                found.append(
                    float(np.mean(itl[worker.worker_id])) / self.objectives.objective_itl_ms
                )
            loads.append(max(found, default=0.0))
        return loads


def _sized(seen: Observation, prefill: float, decode: float) -> Fleet:
    """Engines for what prefill and decode need of one, in the roles that there are."""
    if seen.fleet().prefill or seen.fleet().decode:
        return Fleet(prefill=max(1, math.ceil(prefill)), decode=max(1, math.ceil(decode)))
    return Fleet(aggregated=max(1, math.ceil(prefill + decode)))
