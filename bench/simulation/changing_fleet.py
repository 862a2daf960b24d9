"""Engines that come and go during a run: they start, serve, drain, and are gone.

Each role has places of its own among the engines of a VirtualFleet. A place is taken by one engine
at a time; the next one begins with an empty cache. An engine that starts gets no request
until it is ready, one that drains gets no more, and is gone when it has none: then its place is
free. One that may not drain for ever is killed, and its requests are lost.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from ...engines.mocker import EngineConfig, VirtualFleet
from ...router.kv_router import KvRouter
from ...workers.registry import WorkerState

EngineState = Literal["starting", "serving", "draining"]
EngineRole = Literal["aggregated", "prefill", "decode"]
DRAIN_STEP_S = 1.0
"""How often it is looked whether an engine that drains has ended."""


@dataclass
class SimulatedEngine:
    """One engine: its place, which is its worker id, and the time at which it was started."""

    worker: int
    role: EngineRole
    state: EngineState
    started_s: float
    ready_s: float
    kill_s: float = math.inf


class FleetControl(Protocol):
    """Who changes a fleet while it runs."""

    next_time: float

    def act(self, now: float) -> None:
        """Called when time has come to `next_time`, which it then moves on."""


class ChangingFleet:
    """The engines of a run. `engine_seconds` count from an engine's start until it is gone."""

    def __init__(
        self,
        engine: EngineConfig,
        fleet: VirtualFleet,
        places: Mapping[EngineRole, range],
        routers: Mapping[EngineRole, KvRouter],
        on_lost: Callable[[str, float], None],
        *,
        sizes_known: bool = True,
    ) -> None:
        self._facts = engine if sizes_known else None
        self._config, self._fleet, self._routers, self._lost = engine, fleet, routers, on_lost
        self._free = {role: list(of) for role, of in places.items()}
        self._used: set[int] = set()
        self.engines: dict[int, SimulatedEngine] = {}
        self.lost = 0
        self._seconds = self._looked_s = 0.0

    def start(self, role: EngineRole, now: float, ready_s: float) -> int:
        """A new engine of a role, which serves from `ready_s` on; its worker id."""
        if not self._free[role]:
            raise RuntimeError(f"every place of {role} engines is taken")
        worker = self._free[role].pop(0)
        self.engines[worker] = SimulatedEngine(worker, role, "starting", now, ready_s)
        if ready_s <= now:
            self._serve(self.engines[worker], now)
        return worker

    def drain(self, worker: int, now: float, limit_s: float = math.inf) -> None:
        """It gets no more requests, and is gone when it has none; what still runs after `limit_s`
        is lost. An engine that starts is gone at once."""
        engine = self.engines[worker]
        if engine.state == "draining":
            return
        if engine.state == "serving":
            self._routers[engine.role].registry.set_state(worker, WorkerState.DRAINING)
        engine.kill_s = now + limit_s
        starting, engine.state = engine.state == "starting", "draining"
        if starting:
            self._leave(engine, now)
        else:
            self.act(now)

    @property
    def next_time(self) -> float:
        """When `act` is next due."""
        times = [each.ready_s for each in self.engines.values() if each.state == "starting"]
        for each in self.engines.values():
            if each.state == "draining":
                times.append(min(each.kill_s, self._looked_s + DRAIN_STEP_S))
        return min(times, default=math.inf)

    def act(self, now: float) -> None:
        """Engines that are ready serve; those that have drained are gone."""
        self._looked_s = now
        for engine in list(self.engines.values()):
            if engine.state == "starting" and engine.ready_s <= now:
                self._serve(engine, now)
            elif engine.state == "draining":
                router = self._routers[engine.role]
                if not router.requests_of(engine.worker):
                    router.remove_worker(engine.worker)
                    self._leave(engine, now)
                elif engine.kill_s <= now:
                    for request_id in router.remove_worker(engine.worker):
                        self.lost += 1
                        self._lost(request_id, now)
                    self._leave(engine, now)

    def engine_seconds(self, now: float) -> float:
        """Of all engines until now."""
        return self._seconds + sum(now - each.started_s for each in self.engines.values())

    def count(self, role: EngineRole, *states: EngineState) -> int:
        return sum(
            each.role == role and each.state in (states or ("starting", "serving"))
            for each in self.engines.values()
        )

    def _serve(self, engine: SimulatedEngine, now: float) -> None:
        if engine.worker in self._used:
            self._fleet.restart(engine.worker, now)
        self._used.add(engine.worker)
        engine.state, facts = "serving", self._facts
        self._routers[engine.role].add_worker(
            engine.worker,
            dp_size=self._config.dp_size,
            total_kv_blocks=None if facts is None else facts.num_gpu_blocks,
            max_num_batched_tokens=None if facts is None else facts.max_num_batched_tokens,
            max_num_seqs=None if facts is None else facts.max_num_seqs,
        )

    def _leave(self, engine: SimulatedEngine, now: float) -> None:
        self._seconds += now - engine.started_s
        del self.engines[engine.worker]
        if engine.worker in self._used:
            self._fleet.restart(engine.worker, now)  # what it still had is gone, its events too
        self._free[engine.role].append(engine.worker)
