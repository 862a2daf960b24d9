"""gRPC over HTTP/2 by nghttp2: which library there is, and a client's channel."""

from .client_call import CallError, ClientCall
from .client_channel import ALPN, ChannelLimits, ClientChannel, Tls
from .library import Library, load_library
from .outcome import Fault, Outcome

__all__ = [
    "ALPN",
    "CallError",
    "ChannelLimits",
    "ClientCall",
    "ClientChannel",
    "Fault",
    "Library",
    "Outcome",
    "Tls",
    "load_library",
]
