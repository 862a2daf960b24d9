"""An event plane without a broker: each publisher has a ZMQ socket, which others find in the store.

Entered by publishers and subscribers of events where `event_plane` is zmq; needs pyzmq.
"""

from .channels import EVENT_CHANNELS, Channel, channel_scope, decode_channel, scope_prefix
from .connection_monitor import RENEW_S, Connection, ConnectionMonitor
from .multipart import MultipartError, decode_multipart, encode_multipart
from .zmq_plane import ZmqPlane

__all__ = [
    "EVENT_CHANNELS",
    "RENEW_S",
    "Channel",
    "Connection",
    "ConnectionMonitor",
    "MultipartError",
    "ZmqPlane",
    "channel_scope",
    "decode_channel",
    "decode_multipart",
    "encode_multipart",
    "scope_prefix",
]
