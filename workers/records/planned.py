"""What a planner writes into a store: its decisions, and the engines that it saw.

| bucket | key | value |
|---|---|---|
| `v1/planner_decisions` | `{namespace}/{number}`, 12 digits | PlannedChange, as JSON |
| `v1/planner_status` | `{namespace}` | PlannerStatus, as JSON |

Times are of the wall clock, for people: no decision is made by them.
"""

from typing import Literal

import msgspec

from ...base.errors import UNREADABLE
from ...runtime.kv_stores import KeyValueStore

DECISIONS, STATUS = "v1/planner_decisions", "v1/planner_status"
KEPT_DECISIONS = 200
KEPT_POINTS = 720

ChangeState = Literal["open", "done", "abandoned", "dry-run"]


class PlannedChange(msgspec.Struct, frozen=True):
    """One decision and what became of it. Engines are counted by role."""

    number: int
    at: float
    """Unix seconds"""
    planner: str
    before: dict[str, int]
    target: dict[str, int]
    reasons: tuple[str, ...] = ()
    victims: dict[str, tuple[int, ...]] = {}
    """ids of the engines that are to go"""
    state: ChangeState = "open"
    outcome: str = ""
    ended: float | None = None
    """Unix seconds"""


class FleetPoint(msgspec.Struct, frozen=True, array_like=True):
    """The engines at one moment, by role: wanted, ready, starting and draining."""

    at: float
    wanted: dict[str, int]
    ready: dict[str, int]
    starting: dict[str, int]
    draining: dict[str, int]


class PlannerStatus(msgspec.Struct, frozen=True):
    """How the planner that leads is, and the engines it saw lately, oldest first."""

    planner: str
    connector: str
    dry_run: bool
    text: str
    """what it does, or why it does nothing"""
    points: tuple[FleetPoint, ...] = ()


def decision_key(namespace: str, number: int) -> str:
    return f"{namespace}/{number:012d}"


async def read_decisions(store: KeyValueStore, namespace: str) -> list[PlannedChange]:
    """The decisions that are kept, oldest first; what cannot be read is left out. StoreError."""
    listing = await store.bucket(DECISIONS).entries(f"{namespace}/")
    found = []
    for entry in listing.entries:
        try:
            found.append(msgspec.json.decode(entry.value, type=PlannedChange))
        except UNREADABLE:
            continue  # of another version
    return sorted(found, key=lambda change: change.number)


async def read_status(store: KeyValueStore, namespace: str) -> PlannerStatus | None:
    """None where no planner has written one. StoreError."""
    entry = await store.bucket(STATUS).get(namespace)
    if entry is None:
        return None
    try:
        return msgspec.json.decode(entry.value, type=PlannerStatus)
    except UNREADABLE:
        return None
