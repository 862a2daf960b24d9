"""How does a call reach an engine? A channel on nghttp2, and its settings."""

from .engine_channel import EngineCall, EngineChannel, Metadata, deliver
from .event_call import EventCall
from .policy import MAX_MESSAGE_BYTES, WINDOW_BYTES, ConnectionPolicy
