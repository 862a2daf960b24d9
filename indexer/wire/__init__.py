"""How KV events are written: as Python values, as JSON and msgpack bytes, decoded and encoded.

Entered by publishers, feeds and tools; the trees know only the decoded events.
"""

from .codec import (
    EventWriter,
    decode_cache_event,
    decode_event_message,
    describe_decode_error,
    encode_event_message,
    encode_heartbeat,
    encode_router_event,
)
from .events import TIERS, EventData, Removed, RouterEvent, StorageTier, Stored, StoredBlock
from .grpc_batch import CLEARED_EVENTS, BatchHead, frame_batch, plain_batch, read_head

__all__ = [
    "BatchHead",
    "CLEARED_EVENTS",
    "EventData",
    "EventWriter",
    "Removed",
    "RouterEvent",
    "StorageTier",
    "Stored",
    "StoredBlock",
    "TIERS",
    "decode_cache_event",
    "decode_event_message",
    "describe_decode_error",
    "encode_event_message",
    "encode_heartbeat",
    "encode_router_event",
    "frame_batch",
    "plain_batch",
    "read_head",
]
