"""Whether a request goes now, waits, or is refused: limits on load, and the queue.

Entered by KvRouter (limits) and by the dispatcher (queue); pure, the clock is given.
"""

from .limits import AdmissionConfig, LoadLimits
from .objectives import NO_OBJECTIVES, SLO_KEYS, Objectives, read_objectives
from .queue import AdmissionQueue
from .shared_bound import SharedBound
from .tenants import TenantConfig, TenantShares
from .ticket import NORMAL, Lane, Ticket, Urgency

__all__ = [
    "AdmissionConfig",
    "AdmissionQueue",
    "Lane",
    "LoadLimits",
    "NORMAL",
    "NO_OBJECTIVES",
    "Objectives",
    "SLO_KEYS",
    "SharedBound",
    "TenantConfig",
    "TenantShares",
    "Ticket",
    "Urgency",
    "read_objectives",
]
