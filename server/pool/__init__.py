"""Workers that requests are routed among, all that serves them, and where they are found.

Entered by whoever serves a set of workers.
"""

from .configured_pool import ConfiguredPool
from .discovery import MOST_WORKERS, Discovery, WorkerPlane, is_discovering
from .parts import new_dispatcher, new_monitor, request_observer
from .worker_pool import WorkerPool, wait_for_probes

__all__ = [
    "MOST_WORKERS",
    "ConfiguredPool",
    "Discovery",
    "WorkerPlane",
    "WorkerPool",
    "is_discovering",
    "new_dispatcher",
    "new_monitor",
    "request_observer",
    "wait_for_probes",
]
