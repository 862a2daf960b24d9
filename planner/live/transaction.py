"""Transaction: one change of the fleet from its decision to its end. Pure: what is seen goes in,
what is wanted comes out; each step says all of it, so that a planner that starts again goes on.

Engines come before others go, unless the budget is too small for both. An engine goes only once the
ones that come take requests, every router has stopped sending it any, and its last one has ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...workers.records import PREFILL
from ..decision import Decision
from ..fleet import Fleet, Role


class EngineState(StrEnum):
    """How the routers see an engine."""

    STARTING = "starting"
    """registered, and not ready at every router"""
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class SeenEngine:
    """An engine that is registered."""

    engine_id: int
    role: Role
    state: EngineState = EngineState.READY
    age_s: float = 0.0
    """since it was first seen registered"""
    ready_s: float = 0.0
    """since every router had it ready"""
    served: int = 0
    """requests that were seen on it"""
    in_flight: int | None = None
    """requests, at all routers; None: some router gives no answer"""
    active_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one change. Seconds."""

    engines_max: int
    """accelerators of all engines"""
    costs: Mapping[Role, int] = field(default_factory=dict)
    """accelerators of an engine of each role; 1 where a role is not named"""
    start_limit_s: float = 300.0
    """for engines to come, before they are given up, and once more"""
    drain_limit_s: float = 900.0
    admit_s: float = 10.0
    """how long an engine is ready until it counts as serving without having had a request"""
    parcel_s: float = 30.0
    """how long a prefill engine without requests keeps what decode engines have still to read"""


@dataclass(frozen=True, slots=True)
class Step:
    """All that is wanted now."""

    wanted: Mapping[str, int]
    """engines by role"""
    drains: tuple[int, ...] = ()
    """engines that get no new requests"""
    leaving: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """engines by role that have no requests any more and are to be stopped"""
    text: str = ""
    end: str = ""
    """done or abandoned; empty while it goes on"""


class Transaction:
    """Follows one Decision. `names_victims`: its executor stops the engines that we name;
    one that chooses itself is only given the number, and drains by its own rules."""

    def __init__(
        self, decision: Decision, limits: Limits, now: float, *, names_victims: bool
    ) -> None:
        self.decision = decision
        self._limits = limits
        self._names_victims = names_victims
        self._read_at = self._began = now
        self._attempts = 1
        self._cancelling = False
        self._idle_since: float | None = None
        self._stage = ""
        before, after = dict(decision.before), dict(decision.after)
        roles: list[Role] = [role for role in before if before[role] or after[role]]
        self._before: dict[str, int] = {role: before[role] for role in roles}
        self._target: dict[str, int] = {role: after[role] for role in roles}
        grown = decision.before.highest(decision.after)
        self._down_first = grown.cost(limits.costs) > limits.engines_max

    def step(self, now: float, seen: tuple[SeenEngine, ...]) -> Step:
        """What is wanted, by what is seen now; times are of a monotonic clock."""
        ups = [role for role in self._target if self._target[role] > self._before[role]]
        downs = [role for role in self._target if self._target[role] < self._before[role]]
        wanted = {**self._before, **self._staying(seen, downs)}
        for stage in ("down", "up") if self._down_first else ("up", "down"):
            work = self._down if stage == "down" else self._up
            step = work(now, seen, downs if stage == "down" else ups, wanted)
            if step is not None:
                return step
            for role in downs if stage == "down" else ups:
                wanted[role] = self._target[role]
        return Step(self._target, text="every engine is in place", end="done")

    def _staying(self, seen: tuple[SeenEngine, ...], downs: list[str]) -> dict[str, int]:
        """Engines of roles that get fewer, before any is stopped now: a victim that is gone is not
        to be replaced, nor is one that was never seen to be waited for."""
        if not self._names_victims:
            return {role: self._before[role] for role in downs}
        victims = [each for each in seen if each.engine_id in self.decision.victims]
        return {
            role: self._target[role] + sum(each.role == role for each in victims) for role in downs
        }

    def _begin(self, stage: str, now: float) -> None:
        if self._stage != stage:
            self._stage, self._began = stage, now

    def _up(
        self,
        now: float,
        seen: tuple[SeenEngine, ...],
        roles: list[str],
        wanted: Mapping[str, int],
    ) -> Step | None:
        """None once every engine that comes takes requests."""
        serving = {role: sum(self._serves(each, role) for each in seen) for role in roles}
        missing = {role: self._target[role] - serving[role] for role in roles}
        missing = {role: count for role, count in missing.items() if count > 0}
        if not missing:
            return None
        self._begin("up", now)
        if self._expired(now):
            return Step(wanted, text="expired before it was done", end="abandoned")
        target = {**wanted, **{role: self._target[role] for role in roles}}
        back = {**target, **{role: max(serving[role], self._before[role]) for role in missing}}
        if self._cancelling:
            self._cancelling, self._began = False, now
            self._attempts += 1
        elif now - self._began > self._limits.start_limit_s:
            text = f"not ready within {self._limits.start_limit_s:g} s: {_counted(missing)}"
            if self._attempts > 1:
                return Step(back, text=f"{text}, twice", end="abandoned")
            self._cancelling = True
            return Step(back, text=f"{text}; stopped, to be started once more")
        return Step(target, text=f"waits for {_counted(missing)}")

    def _down(
        self,
        now: float,
        seen: tuple[SeenEngine, ...],
        roles: list[str],
        wanted: Mapping[str, int],
    ) -> Step | None:
        """None once every engine that is to go is gone."""
        target = {**wanted, **{role: self._target[role] for role in roles}}
        if not self._names_victims:
            left = {
                role: sum(each.role == role for each in seen) - self._target[role] for role in roles
            }
            left = {role: count for role, count in left.items() if count > 0}
            if not left:
                return None
            self._begin("down", now)
            if now - self._began > self._limits.drain_limit_s:
                return Step(target, text=f"still there: {_counted(left)}", end="abandoned")
            return Step(target, text=f"waits until the executor has stopped {_counted(left)}")
        there = [
            each for each in seen if each.engine_id in self.decision.victims and each.role in roles
        ]
        if not there:
            return None
        self._begin("down", now)
        drains = tuple(each.engine_id for each in there)
        busy = [
            each for each in there if each.in_flight != 0 or each.state is not EngineState.DRAINING
        ]
        self._idle_since = None if busy else now if self._idle_since is None else self._idle_since
        if busy:
            text = f"drains {_named(there)}"
            if now - self._began > self._limits.drain_limit_s:
                text = (
                    f"requests still run after {self._limits.drain_limit_s:g} s on {_named(busy)}"
                )
                return Step(wanted, drains, text=text, end="abandoned")
            return Step(wanted, drains, text=text)
        parcels = any(each.role == PREFILL for each in there)
        if parcels and self._idle_since is not None:
            if now - self._idle_since < self._limits.parcel_s:
                return Step(wanted, drains, text=f"leaves parcels to be read: {_named(there)}")
        leaving = {
            role: tuple(each.engine_id for each in there if each.role == role) for role in roles
        }
        if now - self._began > 2 * self._limits.drain_limit_s:
            return Step(target, drains, leaving, f"not stopped: {_named(there)}", "abandoned")
        return Step(target, drains, leaving, f"stops {_named(there)}")

    def _expired(self, now: float) -> bool:
        """By the time since the record was read: the wall clock may jump."""
        expires, at = self.decision.expires, self.decision.at
        return expires is not None and now - self._read_at > max(0.0, expires - at)

    def _serves(self, engine: SeenEngine, role: str) -> bool:
        if engine.role != role or engine.state is not EngineState.READY:
            return False
        return engine.served > 0 or engine.ready_s >= self._limits.admit_s


def choose_victims(seen: tuple[SeenEngine, ...], before: Fleet, after: Fleet) -> tuple[int, ...]:
    """The engines that are to go: of each role those that drain already, then those that are not
    ready, the youngest first, then those with the fewest blocks and requests."""
    found: list[int] = []
    for role, count in after:
        fewer = max(0, before.count(role) - count)
        ranked = sorted((each for each in seen if each.role == role), key=_rank)
        found += [each.engine_id for each in ranked[:fewer]]
    return tuple(found)


def _rank(engine: SeenEngine) -> tuple[int, float, int, int]:
    order = (EngineState.DRAINING, EngineState.STARTING, EngineState.READY)
    starting = engine.state is EngineState.STARTING
    return (
        order.index(engine.state),
        engine.age_s if starting else float(engine.active_blocks),
        engine.in_flight or 0,
        engine.engine_id,
    )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items()))


def _named(engines: list[SeenEngine]) -> str:
    return ", ".join(f"{each.role} engine {each.engine_id}" for each in engines)
