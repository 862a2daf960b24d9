"""How do engines hand a computed prompt over? A pure plan for each connector."""

from .connectors import Connector, Meeting
from .fit import Fit, Half, fit
from .meetings import Meetings
from .plan import HandoffPlan, Shape, is_divisible, plan_handoff, why_whole
from .security import MOST_PARCEL_BYTES, foreign_host

__all__ = [
    "MOST_PARCEL_BYTES",
    "Connector",
    "Fit",
    "Half",
    "HandoffPlan",
    "Meeting",
    "Meetings",
    "Shape",
    "fit",
    "foreign_host",
    "is_divisible",
    "plan_handoff",
    "why_whole",
]
