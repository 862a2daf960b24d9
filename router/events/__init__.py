"""KV events on their way into the index: subscribe, watch for gaps, ask again, save snapshots.

Entered by `serve`; the index itself needs none of it.
"""

from .feed import REPLAY_TICK_S, TICK_S, EventFeed
from .resync import ReplayPlanner, ResyncPlanner
from .snapshot_task import IndexKeeper

__all__ = [
    "EventFeed",
    "IndexKeeper",
    "REPLAY_TICK_S",
    "ReplayPlanner",
    "ResyncPlanner",
    "TICK_S",
]
