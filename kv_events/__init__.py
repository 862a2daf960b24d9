"""KV events on their way into the index: find their sources, subscribe, watch for gaps, ask again,
save snapshots.

Entered by `serve`; the index itself needs none of it.
"""

from .durable_events import DurableEvents, StateReset
from .engine_stream import EngineStream, StreamCounts
from .event_sources import EventSources
from .event_subscribers import EventSubscribers
from .feed import EventFeed
from .index_peers import IndexPeers
from .intake import SYNC_RETRY_S, EventIntake
from .recovery import REPLAY_TICK_S, TICK_S, EventRecovery, RecoveryActions
from .snapshot_task import SnapshotTask
from .worker_queries import WorkerQueries

__all__ = [
    "DurableEvents",
    "EngineStream",
    "EventFeed",
    "EventIntake",
    "EventRecovery",
    "EventSources",
    "EventSubscribers",
    "IndexPeers",
    "REPLAY_TICK_S",
    "RecoveryActions",
    "SYNC_RETRY_S",
    "SnapshotTask",
    "StateReset",
    "StreamCounts",
    "TICK_S",
    "WorkerQueries",
]
