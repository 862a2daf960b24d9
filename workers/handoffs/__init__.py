"""How do engines hand a computed prompt over? A pure plan for each connector."""

from .connectors import Connector
from .fitting import Fit, Half, fit
from .meetings import Meetings
from .plan import HandoffPlan, Shape, plan_handoff, plan_queued, why_whole
from .queue_hint import RemotePrefillHint, read_hint
from .security import MOST_PARCEL_BYTES, foreign_host

__all__ = [
    "MOST_PARCEL_BYTES",
    "Connector",
    "Fit",
    "Half",
    "HandoffPlan",
    "Meetings",
    "RemotePrefillHint",
    "Shape",
    "fit",
    "foreign_host",
    "plan_handoff",
    "plan_queued",
    "read_hint",
    "why_whole",
]
