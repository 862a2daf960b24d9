"""Admin calls: workers added, drained, weighted and removed, and settings read again, while the
router runs.

Entered by the services, whose gRPC methods and HTTP routes are here, and by `serve`.
"""

from .cache_clearing import CacheClearing, CacheClearingRoute
from .discovered_workers import DiscoveredWorkers, WorkerSource
from .pool_admins import PoolAdmins
from .reload import (
    ADMISSION,
    DISAGG,
    HEALTH,
    KNOBS,
    LOG,
    OUTLIERS,
    REQUESTS,
    Change,
    Reloader,
    check_changes,
)
from .routes import AdminRoutes, ReloadRoute
from .rpcs import WorkerRpcs
from .worker_admin import (
    AdminError,
    ShownWorkers,
    WorkerAdmin,
    WorkerChanges,
    WorkerStatus,
    check_deadline,
)
from .worker_list import WorkerList, check_worker_lists
