"""Whether a request goes now, waits, or is refused: limits on load, and the queue.

Entered by KvRouter (limits) and by Decider (queue); all is pure, its clock given,
but `Admission`, in which tasks wait.
"""

from .admission import Admission
from .limits import AdmissionConfig, LoadLimits
from .objectives import NO_OBJECTIVES, SLO_KEYS, Objectives, read_objectives
from .queue import AdmissionQueue
from .shared_bound import SharedBound
from .tenants import TenantConfig, TenantShares
from .ticket import NORMAL, Lane, Ticket, Urgency

__all__ = [
    "Admission",
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
