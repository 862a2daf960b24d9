"""How does a call reach an engine? Channels of two kinds, and which of them is in use."""

from .aio_channel import AioChannel
from .engine_channel import EngineCall, EngineChannel, Metadata, deliver
from .event_call import EventCall
from .http2_channel import Http2Channel
from .policy import (
    DATA_PATHS,
    GRPC_AIO,
    MAX_MESSAGE_BYTES,
    NGHTTP2,
    WINDOW_BYTES,
    ConnectionPolicy,
    data_path_of,
    data_path_option,
)

__all__ = [
    "DATA_PATHS",
    "GRPC_AIO",
    "MAX_MESSAGE_BYTES",
    "NGHTTP2",
    "WINDOW_BYTES",
    "AioChannel",
    "ConnectionPolicy",
    "EngineCall",
    "EngineChannel",
    "EventCall",
    "Http2Channel",
    "Metadata",
    "data_path_of",
    "data_path_option",
    "deliver",
]
