"""ChangeLog: decisions as records in the store, one of them open at most."""

import time

import msgspec

from ...runtime.kv_stores import KeyValueStore
from ...workers.records import (
    DECISIONS,
    KEPT_DECISIONS,
    KEPT_POINTS,
    STATUS,
    ChangeState,
    FleetPoint,
    PlannedChange,
    PlannerStatus,
    decision_key,
    read_decisions,
    read_status,
)


class ChangeLog:
    """Of one namespace. Written by the planner that leads; every call may raise StoreError."""

    def __init__(self, store: KeyValueStore, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self._decisions, self._status = store.bucket(DECISIONS), store.bucket(STATUS)
        self._last = 0
        self._points: tuple[FleetPoint, ...] = ()

    async def open_change(self) -> PlannedChange | None:
        """What a planner before us, or we, did not end. Of several the newest; those before it are
        marked as abandoned."""
        found = await read_decisions(self._store, self._namespace)
        self._last = found[-1].number if found else 0
        status = await read_status(self._store, self._namespace)
        self._points = () if status is None else status.points
        still_open = [change for change in found if change.state == "open"]
        for change in still_open[:-1]:
            await self.end(change, "abandoned", "another decision came after it")
        return still_open[-1] if still_open else None

    async def begin(self, change: PlannedChange) -> PlannedChange:
        """Write a decision, before anything of it is done; with its number, and time."""
        numbered = msgspec.structs.replace(change, number=self._last + 1, at=time.time())
        await self._write(numbered)
        self._last = numbered.number
        if self._last > KEPT_DECISIONS:
            await self._decisions.delete(decision_key(self._namespace, self._last - KEPT_DECISIONS))
        return numbered

    async def end(self, change: PlannedChange, state: ChangeState, outcome: str) -> None:
        await self._write(
            msgspec.structs.replace(change, state=state, outcome=outcome, ended=time.time())
        )

    async def note(self, status: PlannerStatus, point: FleetPoint) -> None:
        """Add what the fleet is now, and how the planner is."""
        self._points = (*self._points, point)[-KEPT_POINTS:]
        told = msgspec.structs.replace(status, points=self._points)
        await self._status.put(self._namespace, msgspec.json.encode(told))

    async def _write(self, change: PlannedChange) -> None:
        key = decision_key(self._namespace, change.number)
        await self._decisions.put(key, msgspec.json.encode(change))
