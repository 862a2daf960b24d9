"""The servers: gRPC (the engine's own protocol, RouterService, health) and HTTP.

Entered by `serve` alone.
"""

from .grpc_server import GrpcDoor
from .http_server import HttpDoor
from .router_service import RouterService
from .trtllm_service import MODE_KEY, POLICY_KEY, TrtllmService

__all__ = [
    "GrpcDoor",
    "HttpDoor",
    "MODE_KEY",
    "POLICY_KEY",
    "RouterService",
    "TrtllmService",
]
