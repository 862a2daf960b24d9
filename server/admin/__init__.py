"""Admin calls: workers added, drained, weighted and removed, and settings read again, while the
router runs.

Entered by the services, whose gRPC methods and HTTP routes are here, and by `serve`.
"""

from .discovered_workers import DiscoveredWorkers
from .reload import (
    ADMISSION,
    HEALTH,
    KNOBS,
    LOG,
    OUTLIERS,
    REQUESTS,
    Change,
    Reloader,
    changes_as_json,
    check_changes,
)
from .routes import AdminRoutes
from .rpcs import WorkerRpcs
from .worker_admin import AdminError, WorkerAdmin, WorkerChanges, WorkerStatus, check_deadline
from .worker_list import WorkerList, check_worker_lists

__all__ = [
    "ADMISSION",
    "HEALTH",
    "KNOBS",
    "LOG",
    "OUTLIERS",
    "REQUESTS",
    "AdminError",
    "AdminRoutes",
    "Change",
    "DiscoveredWorkers",
    "Reloader",
    "WorkerAdmin",
    "WorkerChanges",
    "WorkerList",
    "WorkerRpcs",
    "WorkerStatus",
    "changes_as_json",
    "check_changes",
    "check_deadline",
    "check_worker_lists",
]
