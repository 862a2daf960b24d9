"""The servers: gRPC (the engine's own protocol, RouterService, health) and HTTP.

Entered by `serve` alone.
"""

from .grpc_server import GrpcServer
from .http_server import AdminAt, HttpServer
from .pool_routes import PoolRoutes, WorkersRoute
from .router_service import SERVICE as ROUTER_SERVICE
from .router_service import RouterService
from .state_routes import HealthRoutes, MetricsRoute, RecordRoute
from .trtllm_service import (
    METADATA_KEYS,
    MODE_KEY,
    PINNED_WORKER_KEY,
    POLICY_KEY,
    PRIORITY_KEY,
    TrtllmService,
    read_metadata,
)
