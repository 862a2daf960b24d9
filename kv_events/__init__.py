"""KV events on their way into the index: find their sources, subscribe, watch for gaps, ask again,
save snapshots.

Entered by `serve`; the index itself needs none of it.
"""

from typing import TYPE_CHECKING

from ..base.lazy_names import lazy_names
from .engine_stream import EngineStream, StreamCounts
from .event_sources import EventSources
from .event_subscribers import EventSubscribers
from .feed import EventFeed
from .index_peers import IndexPeers
from .recovery import REPLAY_TICK_S, TICK_S, EventRecovery, RecoveryActions
from .snapshot_task import SnapshotTask
from .worker_queries import WorkerQueries

if TYPE_CHECKING:
    from .durable_events import DurableEvents, StateReset
    from .intake import SYNC_RETRY_S, EventIntake

# The client of NATS comes with them.
__getattr__ = lazy_names(
    __name__,
    {
        "DurableEvents": ".durable_events",
        "EventIntake": ".intake",
        "SYNC_RETRY_S": ".intake",
        "StateReset": ".durable_events",
    },
)
