"""What do those hear who were away? Streams of events that NATS keeps, read by many, and snapshots.

Entered by routers and publishers whose events are to last.
"""

from .jetstream_plane import JetStreamPlane
from .object_store import SnapshotStore
from .stream_client import EventStreamClient, NameTakenError, StreamFacts
from .stream_names import StreamNames, max_age_s, slug
from .stream_reader import StreamPosition, StreamReader
from .stream_upkeep import ReaderFact, StreamUpkeep, UpkeepPlan

__all__ = [
    "EventStreamClient",
    "JetStreamPlane",
    "NameTakenError",
    "ReaderFact",
    "SnapshotStore",
    "StreamFacts",
    "StreamNames",
    "StreamPosition",
    "StreamReader",
    "StreamUpkeep",
    "UpkeepPlan",
    "max_age_s",
    "slug",
]
