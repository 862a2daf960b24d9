"""The servers: gRPC (the engine's own protocol, RouterService, health) and HTTP.

Entered by `serve` alone.
"""

from .call_limits import CallLimits
from .grpc_server import GrpcServer
from .http_server import HttpServer
from .router_service import RouterService
from .trtllm_service import MODE_KEY, POLICY_KEY, TrtllmService

__all__ = [
    "CallLimits",
    "GrpcServer",
    "HttpServer",
    "MODE_KEY",
    "POLICY_KEY",
    "RouterService",
    "TrtllmService",
]
