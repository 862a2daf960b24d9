"""ChangeLog: decisions as records in the store, one of them open at most."""

import time

import msgspec
import structlog

from ...base.errors import UNREADABLE
from ...runtime.kv_stores import KeyValueStore
from ...workers.records import DECISIONS, STATUS, read_plan
from ..decision import Decision, DecisionState
from .plan_records import (
    KEPT_DECISIONS,
    KEPT_POINTS,
    DecisionRecord,
    FleetPoint,
    PlannerStatus,
    decision_key,
)

log = structlog.get_logger(__name__)


class ChangeLog:
    """Of one namespace. Written by the planner that leads; every call may raise StoreError."""

    def __init__(self, store: KeyValueStore, namespace: str, planner: str) -> None:
        self._store, self._namespace, self._planner = store, namespace, planner
        self._decisions, self._status = store.bucket(DECISIONS), store.bucket(STATUS)
        self._last = 0
        self._points: tuple[FleetPoint, ...] = ()

    async def open_decision(self) -> Decision | None:
        """What a planner before us, or we, did not end. Of several the newest; those before it are
        abandoned. A record that cannot be read is passed over."""
        texts, status = await read_plan(self._store, self._namespace)
        found = [record for text in texts if (record := _read(text)) is not None]
        self._last = found[-1].decision.id if found else 0
        if status is not None:
            try:
                self._points = msgspec.json.decode(status, type=PlannerStatus).points
            except UNREADABLE:
                self._points = ()
        still_open = [each.decision for each in found if each.decision.state == "open"]
        for decision in still_open[:-1]:
            await self.end(decision, "abandoned", "another decision came after it")
        return still_open[-1] if still_open else None

    async def begin(self, decision: Decision) -> Decision:
        """Write a decision, before anything of it is done; with its number, and time."""
        now = time.time()
        lives_s = None if decision.expires is None else decision.expires - decision.at
        expires = None if lives_s is None else now + lives_s
        numbered = msgspec.structs.replace(decision, id=self._last + 1, at=now, expires=expires)
        await self._write(DecisionRecord(numbered, self._planner))
        self._last = numbered.id
        if self._last > KEPT_DECISIONS:
            oldest = decision_key(self._namespace, self._last - KEPT_DECISIONS)
            await self._decisions.delete(oldest)
        return numbered

    async def end(self, decision: Decision, state: DecisionState, outcome: str) -> None:
        """Write what became of it."""
        ended = decision.in_state(state)
        await self._write(DecisionRecord(ended, self._planner, outcome, time.time()))

    async def note(self, status: PlannerStatus, point: FleetPoint) -> None:
        """Add what the fleet is now, and how the planner is."""
        self._points = (*self._points, point)[-KEPT_POINTS:]
        shown = msgspec.structs.replace(status, points=self._points)
        await self._status.put(self._namespace, msgspec.json.encode(shown))

    async def _write(self, record: DecisionRecord) -> None:
        key = decision_key(self._namespace, record.decision.id)
        await self._decisions.put(key, msgspec.json.encode(record))


def _read(text: bytes) -> DecisionRecord | None:
    try:
        return msgspec.json.decode(text, type=DecisionRecord)
    except (*UNREADABLE, ValueError) as error:
        log.warning("a decision is passed over", error=str(error)[:200])
        return None
