"""Admin calls: workers added, drained, weighted and removed, and settings read again, while the
router runs.

Entered by the services, whose gRPC methods and HTTP routes are here, and by `serve`.
"""

from .discovered_workers import DiscoveredWorkers
from .live_settings import LiveSettings
from .reload import Reloader
from .routes import AdminRoutes
from .rpcs import WorkerRpcs
from .worker_admin import AdminError, WorkerAdmin, WorkerStatus
from .worker_list import WorkerList

__all__ = [
    "AdminError",
    "AdminRoutes",
    "DiscoveredWorkers",
    "LiveSettings",
    "Reloader",
    "WorkerAdmin",
    "WorkerList",
    "WorkerRpcs",
    "WorkerStatus",
]
