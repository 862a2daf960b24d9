"""How far the index can be trusted about each worker."""

import enum
from dataclasses import dataclass

from ..runtime.identity import WorkerWithDpRank


class SourceState(enum.Enum):
    """How far the index can be trusted about one worker."""

    SILENT = "silent"  # nothing was heard of it yet
    EXACT = "exact"  # all it said since it started, or since its last clear, is applied
    REBUILDING = "rebuilding"  # something was missed; it was asked to announce itself again
    DEGRADED = "degraded"  # something was missed and nobody answers: incomplete, never wrong
    APPROXIMATE = "approximate"  # predicted from routing, not reported


@dataclass(frozen=True)
class SourceStatus:
    """What is known of one worker's events. `blocks`: how many it is believed to hold."""

    worker: WorkerWithDpRank
    state: SourceState
    blocks: int
    applied: int = 0
    last_event_id: int = 0
    gaps: int = 0
    restarts: int = 0
    duplicates: int = 0
    orphans: int = 0
