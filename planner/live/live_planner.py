"""LivePlanner: looks, decides, and brings one change at a time about, turn by turn."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Protocol

import msgspec
import structlog

from ...base.clock import Clock
from ...runtime.kv_stores import StoreError
from ...workers.records import ModelCard
from ..connectors import Connector, ConnectorError
from ..decision import Decision, DecisionState
from ..fleet import Fleet
from ..observation import Observation
from .change_log import ChangeLog
from .leader import Leader
from .plan_records import FleetPoint, PlannerStatus
from .router_client import RouterClient
from .sight import Seen, Sight
from .transaction import EngineState, Limits, SeenEngine, Step, Transaction, choose_victims

POINT_EVERY_S = 5.0
ASK_EVERY_S = 5.0
"""An observation is not free, and a plan is due every minute or so."""

log = structlog.get_logger(__name__)


class Brain(Protocol):
    """Decides how many engines there should be. Never called twice at a time."""

    async def observe(self, seen: Observation) -> Decision:
        """What to do now, within the constraints; where nothing is to be done, why. RouterError
        where that cannot be found; its words are shown."""
        ...


class Engines(Protocol):
    """The engines that are registered."""

    @property
    def engines(self) -> Mapping[int, tuple[ModelCard, float]]:
        """Card and age in seconds, by id."""
        ...


class LivePlanner:
    """Call `turn` every second or so. With `dry_run` nothing is written, locked or changed: `show`
    gets what would be done."""

    def __init__(
        self,
        *,
        name: str,
        engines: Engines,
        registry: str,
        routers: Sequence[RouterClient],
        sight: Sight,
        brain: Brain,
        connector: Connector,
        connector_name: str,
        leader: Leader,
        changes: ChangeLog,
        limits: Limits,
        least: Fleet,
        window_s: float,
        clock: Clock,
        dry_run: bool = False,
        show: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`registry`: where engines are looked for, in words; `least`: those that there are always
        to be; `window_s`: how old the requests of an observation may be."""
        self._name, self._engines, self._routers = name, engines, routers
        self._registry = registry
        self._sight, self._brain, self._connector = sight, brain, connector
        self._connector_name, self._leader, self._log = connector_name, leader, changes
        self._limits, self._least, self._window_s = limits, least, window_s
        self._clock, self._dry_run, self._show = clock, dry_run, show
        self._transaction: Transaction | None = None
        self._resumed = False
        self._planning: asyncio.Task[Decision] | None = None
        self._planned_for = Fleet()
        self._next_question = self._next_point = clock.now()
        self._shown = ""
        self.seen: Seen | None = None
        self.wanted: Fleet | None = None
        """engines as they were asked for last; None before the first look at them"""
        self.text = "starts"
        """what it does, or why it does nothing"""
        self.outcomes: Counter[str] = Counter()
        """decisions by what became of them"""
        self.errors: Counter[str] = Counter()
        """turns that could not be completed, by store, connector or plan"""

    @property
    def leads(self) -> bool:
        return self._dry_run or self._leader.leads

    @property
    def open_decision(self) -> Decision | None:
        return None if self._transaction is None else self._transaction.decision

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
        decision = await self._log.open_decision()
        if decision is not None:
            log.info("an open decision is resumed", number=decision.id)
            self._transaction = self._follow(decision)
        self._resumed = True

    def _follow(self, decision: Decision) -> Transaction:
        return Transaction(
            decision, self._limits, self._clock.now(), names_victims=self._connector.names_victims
        )

    # The open decision

    async def _go_on(self, transaction: Transaction, seen: Seen) -> None:
        step = transaction.step(self._clock.now(), seen.engines)
        if step.drains and not step.end:
            drained = await self._drain(seen.engines, step.drains)
            step = transaction.step(self._clock.now(), drained)
        if not self._leader.leads:  # asking took its time
            self._note("another planner may lead: nothing is begun")
            return
        await self._connector.apply(step.wanted, step.leaving)
        self.wanted = Fleet(**step.wanted)
        self._note(step.text)
        if step.end:
            await self._end(transaction.decision, step)

    async def _drain(
        self, engines: tuple[SeenEngine, ...], wanted: tuple[int, ...]
    ) -> tuple[SeenEngine, ...]:
        """Have every router drain these; the engines as the routers answer that they are now."""
        left: dict[int, int] = {}
        for engine_id in wanted if self._leader.leads else ():
            answers = await asyncio.gather(*(each.drain(engine_id) for each in self._routers))
            known = [answer for answer in answers if answer is not None]
            if known and len(known) == len(answers):
                left[engine_id] = sum(known)
        return tuple(
            replace(each, state=EngineState.DRAINING, in_flight=left[each.engine_id])
            if each.engine_id in left
            else each
            for each in engines
        )

    async def _end(self, decision: Decision, step: Step) -> None:
        state: DecisionState = "done" if step.end == "done" else "abandoned"
        await self._log.end(decision, state, step.text)
        log.info("decision ended", number=decision.id, state=state, outcome=step.text)
        self.outcomes[state] += 1
        self._transaction = None

    # The next decision

    async def _decide(self, seen: Seen) -> None:
        asked = await self._connector.asked()
        counts: dict[str, int] = {**dict(seen.roles), **(asked or {})}
        present = Fleet(**counts)
        self.wanted = present if self.wanted is None else self.wanted
        least = present.highest(self._least)
        if least != present:
            reasons = [f"fewer than the least that there are to be: {self._least}"]
            if not seen.engines:
                reasons.append(f"none is registered in {self._registry}")
            rule = Decision(id=0, at=0.0, before=present, after=least, kind="rule",
                            reasons=tuple(reasons))  # fmt: skip
            await self._begin(seen, rule)
            return
        if self._planning is not None:
            await self._take_plan(seen, present)
            return
        if seen.trouble:
            self._note(f"no plan: {seen.trouble}")
            return
        now = self._clock.now()
        if now < self._next_question:
            return
        self._next_question = now + ASK_EVERY_S
        self._planned_for = present
        start_limit_s = self._limits.start_limit_s
        observation = seen.observation(now, self._window_s, present, start_limit_s)
        self._planning = asyncio.create_task(self._brain.observe(observation), name="plan")

    async def _take_plan(self, seen: Seen, present: Fleet) -> None:
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
        # Engines that drain, or failed, are not what the plan begins from; what it wants is the
        # whole, without them.
        decision = msgspec.structs.replace(planning.result(), before=present)
        if present != self._planned_for:
            self._note("engines changed while it planned: the plan is dropped")
        elif not decision.changes:
            reasons = "; ".join(decision.reasons)
            self._note(f"stays at {present}{': ' if reasons else ''}{reasons}")
        else:
            await self._begin(seen, decision)

    async def _begin(self, seen: Seen, decision: Decision) -> None:
        why = self._refusal(decision)
        if why:
            self._note(f"not done: {why}")
            return
        victims = choose_victims(seen.engines, decision.before, decision.after)
        decision = msgspec.structs.replace(decision, victims=victims)
        if self._dry_run:
            self._note(f"would go from {decision.before} to {decision.after}")
            self._show(describe(decision))
            return
        if not self._leader.leads:
            return
        decision = await self._log.begin(decision)
        log.info("decision", number=decision.id, before=str(decision.before),
                 after=str(decision.after), reasons=decision.reasons)  # fmt: skip
        self._transaction = self._follow(decision)
        self._note(f"from {decision.before} to {decision.after}")

    def _refusal(self, decision: Decision) -> str:
        """Why a decision is not begun, whatever wants it: the last bounds before anything is done.
        Fewer engines than there are, are never too many."""
        costs, most = self._limits.costs, self._limits.engines_max
        before, after = decision.before.cost(costs), decision.after.cost(costs)
        if after > most and after >= before:
            return f"{decision.after} take {after} accelerators, more than {most}"
        if decision.after.highest(self._least) != decision.after:
            return f"{decision.after} are fewer than {self._least}"
        return ""

    # What is shown

    async def _write_point(self, seen: Seen) -> None:
        now = self._clock.now()
        if self._dry_run or now < self._next_point or not self._leader.leads:
            return
        self._next_point = now + POINT_EVERY_S
        point = FleetPoint(
            time(),
            self.wanted or seen.roles,
            seen.count(EngineState.READY),
            seen.count(EngineState.STARTING),
            seen.count(EngineState.DRAINING),
        )
        try:
            await self._log.note(PlannerStatus(self._name, self._connector_name, self.text), point)
        except StoreError:
            self.errors["store"] += 1  # the next point shows how it is then

    def _note(self, text: str, error: str = "") -> None:
        if error:
            self.errors[error] += 1
        self.text = text
        if self._dry_run and text != self._shown:
            self._shown = text
            self._show(text)


def describe(decision: Decision) -> str:
    """A decision in lines for people."""
    lines = [f"{decision.before} -> {decision.after}"]
    lines += [f"  because: {reason}" for reason in decision.reasons]
    if decision.victims:
        lines.append(f"  to go: {', '.join(map(str, decision.victims))}")
    return "\n".join(lines)
