"""What the live planner writes: DecisionRecord and PlannerStatus. Where: see planner_keys.py.

Times are of the wall clock, for people: nothing is decided by them.
"""

import msgspec

from ..decision import Decision
from ..fleet import Fleet

KEPT_DECISIONS = 200
KEPT_POINTS = 720


class DecisionRecord(msgspec.Struct, frozen=True):
    """A decision, who made it, and what became of it."""

    decision: Decision
    planner: str
    outcome: str = ""
    ended: float | None = None
    """Unix seconds"""


class FleetPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The engines at one moment, in Unix seconds."""

    at: float
    wanted: Fleet
    serving: Fleet
    starting: Fleet
    draining: Fleet


class PlannerStatus(msgspec.Struct, frozen=True):
    """How the planner that leads is, and the engines it saw lately, oldest first."""

    planner: str
    connector: str
    text: str
    """what it does, or why it does nothing"""
    points: tuple[FleetPoint, ...] = ()


def decision_key(namespace: str, number: int) -> str:
    return f"{namespace}/{number:012d}"
