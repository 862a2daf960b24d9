"""The servers: gRPC (the engine's own protocol, RouterService, health) and HTTP.

Entered by `serve` alone.
"""

from .call_limits import CallLimits
from .connections import HttpConnections, plan_connections
from .grpc_server import GrpcServer
from .http_server import HttpServer
from .router_service import RouterService
from .trtllm_service import (
    METADATA_KEYS,
    MODE_KEY,
    PINNED_WORKER_KEY,
    POLICY_KEY,
    TrtllmService,
    read_metadata,
)

__all__ = [
    "CallLimits",
    "GrpcServer",
    "HttpConnections",
    "HttpServer",
    "METADATA_KEYS",
    "MODE_KEY",
    "PINNED_WORKER_KEY",
    "POLICY_KEY",
    "RouterService",
    "TrtllmService",
    "plan_connections",
    "read_metadata",
]
