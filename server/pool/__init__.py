"""Workers that requests are routed among, all that serves them, and where they are found.

Entered by whoever serves a set of workers.
"""

from .configured_pool import ConfiguredPool
from .worker_discovery import MOST_WORKERS, WorkerDiscovery, WorkerPlane, is_discovering
from .worker_pool import WorkerPool

__all__ = [
    "MOST_WORKERS",
    "ConfiguredPool",
    "WorkerDiscovery",
    "WorkerPlane",
    "WorkerPool",
    "is_discovering",
]
