"""How KV events are written: as Python values, as JSON and msgpack bytes, decoded and encoded.

Entered by publishers, feeds and tools; the trees know only the decoded events.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
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

if TYPE_CHECKING:
    from .engine_batches import (
        CLEARED_EVENTS,
        BatchHead,
        EngineBatch,
        EngineEvents,
        frame_batch,
        read_grpc_batch,
    )

# Readers of engines' own streams import it; an index alone needs none of it.
_STREAMS = "CLEARED_EVENTS BatchHead EngineBatch EngineEvents frame_batch read_grpc_batch"
__getattr__ = lazy_names(__name__, dict.fromkeys(_STREAMS.split(), ".engine_batches"))
