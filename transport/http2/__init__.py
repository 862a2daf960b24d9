"""gRPC over HTTP/2 by nghttp2: which library there is, a client's channel, and a server."""

from .client_call import CallError, ClientCall
from .client_channel import ALPN, ChannelLimits, ClientChannel, Tls
from .library import Library, load_library
from .outcome import Fault, Outcome
from .server import Http2Server
from .server_call import AtOnce, CallAborted, PeerGoneError, Serve, ServerCall
from .server_limits import ByteBound, ConnectionShare, OnLimit, ServerLimits

__all__ = [
    "ALPN",
    "AtOnce",
    "CallAborted",
    "CallError",
    "ChannelLimits",
    "ClientCall",
    "ClientChannel",
    "ConnectionShare",
    "Fault",
    "Http2Server",
    "ByteBound",
    "Library",
    "OnLimit",
    "Outcome",
    "PeerGoneError",
    "Serve",
    "ServerCall",
    "ServerLimits",
    "Tls",
    "load_library",
]
