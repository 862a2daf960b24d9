"""What do those hear who were away? Streams of events that NATS keeps, read by many, and snapshots.

Entered by routers and publishers whose events are to last.
"""

from .jetstream_plane import JetStreamPlane
from .object_store import SnapshotStore
from .stream_client import EventStreamClient
from .stream_names import StreamNames, max_age_s, slug
from .stream_reader import StreamPosition
from .stream_upkeep import StreamUpkeep

__all__ = [
    "EventStreamClient",
    "JetStreamPlane",
    "SnapshotStore",
    "StreamNames",
    "StreamPosition",
    "StreamUpkeep",
    "max_age_s",
    "slug",
]
