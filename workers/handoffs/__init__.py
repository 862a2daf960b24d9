"""How do engines hand a computed prompt over? A pure plan for each pair of dialects."""

from .plan import HandoffPlan, is_divisible, plan_handoff, why_not_paired
from .security import MOST_PARCEL_BYTES, foreign_host

__all__ = [
    "MOST_PARCEL_BYTES",
    "HandoffPlan",
    "foreign_host",
    "is_divisible",
    "plan_handoff",
    "why_not_paired",
]
