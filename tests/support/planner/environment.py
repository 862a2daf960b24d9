"""A place where engines run, as connector, registrations and router at once, for the live planner;
a store that can be away; a brain that wants what it was given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dynamo_router.base.clock import ManualClock
from dynamo_router.planner import Decision, Fleet, Observation
from dynamo_router.planner.connectors import ConnectorError
from dynamo_router.planner.live.change_log import ChangeLog
from dynamo_router.planner.live.leader import Leader
from dynamo_router.planner.live.live_planner import LivePlanner
from dynamo_router.planner.live.router_client import RecordedRequest, RouterLook, WorkerRow
from dynamo_router.planner.live.sight import Sight
from dynamo_router.planner.live.transaction import Limits
from dynamo_router.runtime.kv_stores import MemoryStore, StoreError
from dynamo_router.workers.records import ModelCard


class FlakyStore:
    """A MemoryStore that gives no answer while it is `away`; its leases go on to end."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.away = store, False

    def bucket(self, name: str) -> "_FlakyBucket":
        return _FlakyBucket(self, name)

    async def grant(self, *args: Any) -> int:
        self.check()
        return await self.store.grant(*args)

    async def renew(self, lease: int) -> float:
        self.check()
        return await self.store.renew(lease)

    async def revoke(self, lease: int) -> None:
        self.check()
        await self.store.revoke(lease)

    async def close(self) -> None:
        pass

    def check(self) -> None:
        if self.away:
            raise StoreError("no answer")


class _FlakyBucket:
    def __init__(self, flaky: FlakyStore, name: str) -> None:
        self._flaky, self._bucket, self.name = flaky, flaky.store.bucket(name), name

    def __getattr__(self, name: str) -> Any:
        self._flaky.check()
        return getattr(self._bucket, name)


@dataclass
class Engine:
    role: str
    ready: bool = True
    draining: bool = False
    requests: int = 0
    served: bool = True


@dataclass
class Environment:
    """Engines come at once, and are ready unless `stuck`; `cut` counts requests that ended with
    their engine."""

    engines: dict[int, Engine] = field(default_factory=dict)
    names_victims: bool = True
    stuck: bool = False
    away: bool = False
    """the connector gives no answer"""
    silent: bool = False
    """the router gives no answer"""
    queued: float | None = 0.0
    traffic: int = 1
    """requests that end between two looks"""
    cut: int = 0
    applied: list[dict[str, int]] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)
    shown: str = "environment"
    _next: int = 100
    _born: dict[int, float] = field(default_factory=dict)

    def have(self, role: str, count: int, **more: Any) -> None:
        for _ in range(count):
            self._next += 1
            self.engines[self._next] = Engine(role, **more)
            self._born[self._next] = self.clock.now()

    # As connector

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def asked(self) -> Mapping[str, int] | None:
        if self.away:
            raise ConnectorError("no answer")
        counts: dict[str, int] = {}
        for each in self.engines.values():
            counts[each.role] = counts.get(each.role, 0) + 1
        return counts

    async def apply(
        self, wanted: Mapping[str, int], leaving: Mapping[str, tuple[int, ...]]
    ) -> None:
        if self.away:
            raise ConnectorError("no answer")
        self.applied.append(dict(wanted))
        for ids in leaving.values():
            for engine_id in ids:
                if (engine := self.engines.pop(engine_id, None)) is not None:
                    self.cut += engine.requests
        for role, count in wanted.items():
            there = [(id, each) for id, each in self.engines.items() if each.role == role]
            for engine_id, each in there:
                surplus = sum(e.role == role for e in self.engines.values()) - count
                if surplus > 0 and (not each.ready or not self.names_victims):
                    del self.engines[engine_id]
            missing = count - sum(each.role == role for each in self.engines.values())
            self.have(role, max(0, missing), ready=not self.stuck)

    # As registrations: `registered` stands for FleetWatch

    @property
    def registered(self) -> dict[int, tuple[ModelCard, float]]:
        return {
            id: (ModelCard("tiny", 16, each.role, total_kv_blocks=100), self.age_of(id))
            for id, each in self.engines.items()
        }

    def age_of(self, engine_id: int) -> float:
        return self.clock.now() - self._born[engine_id]

    # As router

    async def look(self) -> RouterLook | None:
        if self.silent:
            return None
        rows = {
            id: WorkerRow(
                id,
                "draining" if each.draining else "ready" if each.ready else "connecting",
                each.requests,
                each.requests,
            )
            for id, each in self.engines.items()
        }
        ready = [id for id, each in self.engines.items() if each.ready and not each.draining]
        now_ms = self.clock.now() * 1e3
        requests = tuple(
            RecordedRequest(now_ms, 100, 10, worker=str(ready[number % len(ready)]))
            for number in range(self.traffic if ready else 0)
        )
        return RouterLook(rows, self.queued, requests, 0, 64, "salt")

    async def drain(self, engine_id: int) -> int | None:
        if self.silent:
            return None
        engine = self.engines.get(engine_id)
        if engine is None:
            return 0
        engine.draining = True
        return engine.requests


class _Registered:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    @property
    def engines(self) -> dict[int, tuple[ModelCard, float]]:
        return self._environment.registered


@dataclass
class FixedBrain:
    """Wants this fleet."""

    wanted: Fleet
    seen: list[Observation] = field(default_factory=list)
    fails: Exception | None = None

    async def observe(self, seen: Observation) -> Decision:
        self.seen.append(seen)
        if self.fails is not None:
            raise self.fails
        return Decision(
            id=0, at=0.0, before=seen.fleet(), after=self.wanted, reasons=("it was asked for",)
        )


def new_planner(
    environment: Environment,
    store: Any,
    brain: FixedBrain,
    *,
    name: str = "one",
    limits: Limits | None = None,
    store_clock: ManualClock | None = None,
    **more: Any,
) -> LivePlanner:
    """A planner over an environment; its leader is not started yet."""
    leader = Leader(store, "test", name, store_clock or ManualClock())
    fields: dict[str, Any] = {
        "limits": limits or Limits(8, start_limit_s=60.0, drain_limit_s=300.0),
        "least": Fleet(1),
        "window_s": 600.0,
        **more,
    }
    return LivePlanner(
        name=name,
        engines=_Registered(environment),
        registry="a store of tests",
        routers=[environment],  # type: ignore[list-item]
        sight=Sight(600.0),
        brain=brain,
        connector=environment,
        connector_name="test",
        leader=leader,
        changes=ChangeLog(store, "test", name),
        clock=environment.clock,
        **fields,
    )
