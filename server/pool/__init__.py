"""Workers that requests are routed among, all that serves them, and where they are found.

Entered by whoever serves a set of workers.
"""

from .discovery import MOST_WORKERS, Discovery, WorkerPlane, is_discovering
from .live_settings import LiveSettings
from .worker_pool import WorkerPool

__all__ = [
    "MOST_WORKERS",
    "Discovery",
    "LiveSettings",
    "WorkerPlane",
    "WorkerPool",
    "is_discovering",
]
