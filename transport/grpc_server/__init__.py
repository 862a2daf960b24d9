"""What serves gRPC's calls? One table of methods, behind nghttp2 or grpc.aio."""

from .aio_server import AioServer
from .listener import GrpcListener, make_listener
from .methods import (
    AnswerAtOnce,
    AtOnce,
    Metadata,
    Method,
    Methods,
    PeerGoneError,
    ServerCall,
    answer_call,
    served_plainly,
)

__all__ = [
    "AioServer",
    "AnswerAtOnce",
    "AtOnce",
    "GrpcListener",
    "Metadata",
    "Method",
    "Methods",
    "PeerGoneError",
    "ServerCall",
    "answer_call",
    "make_listener",
    "served_plainly",
]
