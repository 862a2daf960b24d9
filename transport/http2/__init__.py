"""gRPC over HTTP/2 by nghttp2: which library there is, a client's channel, and a server."""

from .client_call import CallError, ClientCall
from .client_channel import ChannelLimits, ClientChannel, Tls
from .library import Library, load_library
from .outcome import Fault, Outcome
from .server import Http2Server
from .server_call import AtOnce, PeerGoneError, Serve, ServerCall
from .server_limits import ServerLimits
from .wire import encode_metadata
