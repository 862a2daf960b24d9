"""LivePlanner: looks, decides, and brings one change at a time about, turn by turn."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import NamedTuple, Protocol

import structlog

from ...base.clock import Clock
from ...runtime.kv_stores import StoreError
from ...workers.records import ChangeState, FleetPoint, ModelCard, PlannedChange, PlannerStatus
from ..connectors import Connector, ConnectorError
from .change_log import ChangeLog
from .leader import Leader
from .router_client import RouterClient
from .sight import Seen, Sight
from .transaction import (
    EngineState,
    Limits,
    SeenEngine,
    Step,
    Transaction,
    choose_victims,
)

POINT_EVERY_S = 5.0

log = structlog.get_logger(__name__)


class Proposal(NamedTuple):
    """What a brain wants: engines by role, and why."""

    target: Mapping[str, int]
    reasons: tuple[str, ...]


class Brain(Protocol):
    """Decides how many engines there should be. Never called twice at a time."""

    async def propose(self, seen: Seen, counts: Mapping[str, int]) -> Proposal:
        """`counts`: engines that are asked for. RouterError where no plan can be made; its words
        are shown."""
        ...

    def alarm(self, seen: Seen) -> str:
        """Why a plan cannot wait for its turn; empty if it can."""
        ...


class Engines(Protocol):
    """The engines that are registered."""

    @property
    def engines(self) -> Mapping[int, tuple[ModelCard, float]]:
        """Card and age in seconds, by id."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When what is done. Seconds."""

    plan_every_s: float
    idle_s: float
    """confirmed silence after which a plan is made without requests"""


class LivePlanner:
    """Call `turn` every second or so. With `dry_run` nothing is written, locked or changed: `show`
    gets what would be done."""

    def __init__(
        self,
        *,
        name: str,
        engines: Engines,
        routers: Sequence[RouterClient],
        sight: Sight,
        brain: Brain,
        connector: Connector,
        connector_name: str,
        leader: Leader,
        changes: ChangeLog,
        limits: Limits,
        minimum: Mapping[str, int],
        pace: Pace,
        clock: Clock,
        dry_run: bool = False,
        show: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`minimum`: engines of each role that there are always to be."""
        self._name, self._engines, self._routers = name, engines, routers
        self._sight, self._brain, self._connector = sight, brain, connector
        self._connector_name, self._leader, self._changes = connector_name, leader, changes
        self._limits, self._minimum, self._pace = limits, minimum, pace
        self._clock, self._dry_run, self._show = clock, dry_run, show
        self._transaction: Transaction | None = None
        self._resumed = False
        self._planning: asyncio.Task[Proposal] | None = None
        self._planned_for: Mapping[str, int] = {}
        self._next_plan = clock.now()
        self._next_point = clock.now()
        self._shown = ""
        self.seen: Seen | None = None
        self.wanted: Mapping[str, int] = {}
        """engines by role, as they were asked for last"""
        self.text = "starts"
        """what it does, or why it does nothing"""
        self.outcomes: Counter[str] = Counter()
        """changes by what became of them"""
        self.errors: Counter[str] = Counter()
        """turns that could not be completed, by store, connector or plan"""

    @property
    def leads(self) -> bool:
        return self._dry_run or self._leader.leads

    @property
    def open_change(self) -> PlannedChange | None:
        return None if self._transaction is None else self._transaction.change

    async def turn(self) -> None:
        """One look, and what follows from it. Errors of the store and of the connector end it; the
        next one goes on from what is there then."""
        looks = await asyncio.gather(*(router.look() for router in self._routers))
        seen = self.seen = self._sight.look(self._clock.now(), self._engines.engines, looks)
        try:
            await self._act(seen)
        except StoreError as error:
            self._note(f"the store is away: {error}", "store")
        except ConnectorError as error:
            self._note(f"{self._connector_name}: {error}", "connector")
        await self._write_point(seen)

    async def close(self) -> None:
        """Leave what is open to the next planner. Idempotent."""
        planning, self._planning = self._planning, None
        if planning is not None:
            planning.cancel()
            await asyncio.wait([planning])

    async def _act(self, seen: Seen) -> None:
        if not self._dry_run:
            if not await self._leader.look():
                self._transaction, self._resumed = None, False
                self._note("another planner leads")
                return
            if not self._resumed:
                await self._resume()
        if self._transaction is not None:
            await self._go_on(self._transaction, seen)
        else:
            await self._decide(seen)

    async def _resume(self) -> None:
        change = await self._changes.open_change()
        if change is not None:
            log.info("an open decision is resumed", number=change.number)
            self._transaction = self._follow(change)
        self._resumed = True

    def _follow(self, change: PlannedChange) -> Transaction:
        return Transaction(
            change, self._limits, self._clock.now(), names_victims=self._connector.names_victims
        )

    # One change

    async def _go_on(self, transaction: Transaction, seen: Seen) -> None:
        step = transaction.step(self._clock.now(), seen.engines)
        if step.drains and not step.end:
            drained = await self._drain(seen.engines, step.drains)
            step = transaction.step(self._clock.now(), drained)
        if not self._leader.leads:  # asking took its time
            self._note("another planner may lead: nothing is begun")
            return
        await self._connector.apply(step.wanted, step.leaving)
        self.wanted = step.wanted
        self._note(step.text)
        if step.end:
            await self._end(transaction.change, step)

    async def _drain(
        self, engines: tuple[SeenEngine, ...], wanted: tuple[int, ...]
    ) -> tuple[SeenEngine, ...]:
        """Have every router drain these; the engines as the routers say that they are now."""
        if not self._leader.leads:
            return engines
        left: dict[int, int | None] = {}
        for engine_id in wanted:
            answers = await asyncio.gather(*(each.drain(engine_id) for each in self._routers))
            known = [answer for answer in answers if answer is not None]
            left[engine_id] = sum(known) if len(known) == len(answers) else None
        return tuple(
            replace(each, state=EngineState.DRAINING, in_flight=left[each.engine_id])
            if left.get(each.engine_id) is not None
            else each
            for each in engines
        )

    async def _end(self, change: PlannedChange, step: Step) -> None:
        state: ChangeState = "done" if step.end == "done" else "abandoned"
        await self._changes.end(change, state, step.text)
        log.info("decision ended", number=change.number, state=state, outcome=step.text)
        self.outcomes[state] += 1
        self._transaction = None
        self._next_plan = self._clock.now() + self._pace.plan_every_s

    # The next change

    async def _decide(self, seen: Seen) -> None:
        asked = await self._connector.asked()
        counts = {**seen.roles, **(asked or {})}
        self.wanted = self.wanted or counts
        short = {role: least for role, least in self._minimum.items() if counts.get(role, 0) < least}
        if short:
            counted = ", ".join(f"{counts.get(role, 0)} {role}" for role in short)
            reason = f"fewer than the least that there are to be: {counted}"
            await self._begin(seen, counts, {**counts, **short}, (reason,))
            return
        if self._planning is not None:
            await self._take_plan(seen, counts)
            return
        silent = seen.idle_s >= self._pace.idle_s
        if seen.trouble or not (seen.requests or silent):
            text = seen.trouble or "no request has been seen yet, nor silence for long enough"
            self._note(f"no plan: {text}")
            return
        now, alarm = self._clock.now(), self._brain.alarm(seen)
        if now < self._next_plan and not alarm:
            self._note(f"{_counted(counts)}; the next plan is due later")
            return
        self._next_plan = now + self._pace.plan_every_s
        self._planned_for = counts
        self._planning = asyncio.create_task(self._brain.propose(seen, counts), name="plan")
        self._note(f"plans{': ' + alarm if alarm else ''}")

    async def _take_plan(self, seen: Seen, counts: Mapping[str, int]) -> None:
        planning = self._planning
        assert planning is not None
        if not planning.done():
            return
        self._planning = None
        error = planning.exception()
        if error is not None:
            log.warning("no plan could be made", error=str(error)[:300])
            self._note(f"no plan: {error}", "plan")
            return
        proposal = planning.result()
        target = {role: max(0, count) for role, count in proposal.target.items()}
        if counts != self._planned_for:
            self._note("engines changed while it planned: the plan is dropped")
            return
        if {**counts, **target} == counts:
            self._note(f"stays: {'; '.join(proposal.reasons)}")
            return
        await self._begin(seen, counts, {**counts, **target}, proposal.reasons)

    async def _begin(
        self,
        seen: Seen,
        counts: Mapping[str, int],
        target: Mapping[str, int],
        reasons: tuple[str, ...],
    ) -> None:
        why = self._refusal(counts, target)
        if why:
            self._note(f"not done: {why}")
            return
        victims = choose_victims(seen.engines, counts, target)
        change = PlannedChange(
            0, 0.0, self._name, dict(counts), dict(target), reasons, dict(victims)
        )
        if self._dry_run:
            self._note(f"would go from {_counted(counts)} to {_counted(target)}")
            self._show(describe(change))
            return
        if not self._leader.leads:
            return
        change = await self._changes.begin(change)
        log.info("decision", number=change.number, before=change.before, target=change.target,
                 reasons=change.reasons)  # fmt: skip
        self._transaction = self._follow(change)
        self._note(f"from {_counted(counts)} to {_counted(target)}")

    def _refusal(self, counts: Mapping[str, int], target: Mapping[str, int]) -> str:
        """Why a target is not gone to, whatever wants it: the last bounds before anything is done.
        Fewer engines than there are, are never too many."""
        total = sum(target.values())
        if total > self._limits.engines_max and total >= sum(counts.values()):
            return f"{total} engines are more than {self._limits.engines_max}"
        for role, least in self._minimum.items():
            if target.get(role, 0) < least:
                return f"fewer than {least} {role} engines"
        return ""

    # What is shown

    async def _write_point(self, seen: Seen) -> None:
        now = self._clock.now()
        if self._dry_run or now < self._next_point or not self._leader.leads:
            return
        self._next_point = now + POINT_EVERY_S
        point = FleetPoint(
            time(),
            dict(self.wanted),
            seen.count(EngineState.READY),
            seen.count(EngineState.STARTING),
            seen.count(EngineState.DRAINING),
        )
        status = PlannerStatus(self._name, self._connector_name, self._dry_run, self.text)
        try:
            await self._changes.note(status, point)
        except StoreError:
            self.errors["store"] += 1  # the next point says how it is then

    def _note(self, text: str, error: str = "") -> None:
        if error:
            self.errors[error] += 1
        self.text = text
        if self._dry_run and text != self._shown:
            self._shown = text
            self._show(text)


def describe(change: PlannedChange) -> str:
    """A decision in lines for people."""
    lines = [f"{_counted(change.before)} -> {_counted(change.target)}"]
    lines += [f"  because {reason}" for reason in change.reasons]
    for role, victims in sorted(change.victims.items()):
        lines.append(f"  to go, {role}: {', '.join(map(str, victims))}")
    return "\n".join(lines)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items())) or "no engines"
