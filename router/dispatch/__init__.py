"""A request's way through a worker and back: admission, attempts, retries, abort, accounting.

Entered by the services.
"""

from .dispatch import DP_RANK_KEY, Dispatcher
from .observers import DispatchObserver, OutputTracking
from .request import Flight
from .status import ClientGoneError, status_of
from .turns import Admission, admission_of, queue_of

__all__ = [
    "DP_RANK_KEY",
    "Admission",
    "ClientGoneError",
    "DispatchObserver",
    "Dispatcher",
    "Flight",
    "OutputTracking",
    "admission_of",
    "queue_of",
    "status_of",
]
