"""How do engines hand a computed prompt over? A pure plan for each connector."""

from .connectors import Connector
from .fitting import Fit, Half, fit
from .meetings import Meetings
from .plan import HandoffPlan, plan_handoff, why_whole
from .security import MOST_PARCEL_BYTES, foreign_host

__all__ = [
    "MOST_PARCEL_BYTES",
    "Connector",
    "Fit",
    "Half",
    "HandoffPlan",
    "Meetings",
    "fit",
    "foreign_host",
    "plan_handoff",
    "why_whole",
]
