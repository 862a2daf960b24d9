"""Admin calls: workers added, drained, weighted and removed while the router runs.

Entered by the services, whose gRPC methods and HTTP routes are here, and by `serve`.
"""

from .routes import WorkerRoutes
from .rpcs import WorkerRpcs
from .worker_admin import AdminError, WorkerAdmin, WorkerStatus

__all__ = ["AdminError", "WorkerAdmin", "WorkerRoutes", "WorkerRpcs", "WorkerStatus"]
