"""Whether a request goes now, waits, or is refused: limits on load, and the queue.

Entered by KvRouter (limits) and by the dispatcher (queue); the queue is pure, its clock is given.
"""

from .limits import AdmissionConfig, LoadLimits
from .objectives import NO_OBJECTIVES, Objectives, read_objectives
from .queue import NORMAL, AdmissionQueue, Lane, Ticket, Urgency
from .shared_bound import SharedBound

__all__ = [
    "AdmissionConfig",
    "AdmissionQueue",
    "Lane",
    "LoadLimits",
    "NORMAL",
    "NO_OBJECTIVES",
    "Objectives",
    "SharedBound",
    "Ticket",
    "Urgency",
    "read_objectives",
]
