"""How far the index can be trusted about each worker."""

import enum
from typing import Annotated, NamedTuple, TypeAlias

from msgspec import Meta

from ..base.identity import WorkerWithDpRank

SOURCES_IN_A_STEP = 64
"""of reading their states: some 0.3 ms"""


class SourceState(enum.Enum):
    """How far the index can be trusted about one worker."""

    SILENT = "silent"  # no message came from it yet
    EXACT = "exact"  # all its events since it started, or since its last clear, is applied
    TRIMMED = "trimmed"  # as exact, but some of it was dropped to keep the budget: never wrong
    RECOVERING = "recovering"  # exact until a gap; asked for its events after that
    REBUILDING = "rebuilding"  # something was missed; it was asked to announce itself again
    DEGRADED = "degraded"  # events were missed and cannot be had: incomplete, never wrong
    # Predicted from routing, or from messages without envelopes: a restart may go unnoticed.
    APPROXIMATE = "approximate"


class Missing(NamedTuple):
    """Events of one publisher that did not come: from `first` to `last`, or to its newest."""

    publisher_id: int
    first: int
    last: int | None


_Number: TypeAlias = Annotated[int, Meta(ge=0)]
_Bit: TypeAlias = Annotated[int, Meta(ge=0, le=1)]


class CursorImage(NamedTuple):
    """Where a source stood in its numbering; event_index/_cursor.pxd explains the fields."""

    publisher_id: _Number
    floor: _Number
    sequence: _Number
    applied_sequence: _Number
    last_event_id: _Number
    newest: _Number
    fresh: _Bit
    linked: _Bit
    from_zero: _Bit
    origin: Annotated[int, Meta(ge=0, le=2)]
    past: tuple[tuple[_Number, _Number], ...]
    """publishers before it, and below which id all of each are known"""


class SourceImage(NamedTuple):
    """All that an index knows of one source: its cursor, and its blocks as native arrays.

    `unindexed`: see SourceStatus."""

    worker: WorkerWithDpRank
    cursor: CursorImage
    unindexed: int
    runs: bytes
    external_hashes: bytes
    local_hashes: bytes


class SourceStatus(NamedTuple):
    """What is known of one worker's events. `blocks`: how many it is believed to hold on its
    device; `lower_blocks`: in host memory, on disk, in external storage; `unindexed`: how many more
    it reported on its device, which the index had to drop, an upper estimate.
    """

    worker: WorkerWithDpRank
    state: SourceState
    blocks: int
    unindexed: int = 0
    applied: int = 0
    last_event_id: int = 0
    gaps: int = 0
    restarts: int = 0
    duplicates: int = 0
    orphans: int = 0
    lower_blocks: tuple[int, int, int] = (0, 0, 0)
    given_up: int = 0
    """gaps that were not filled"""
    messages: int = 0
    """events and heartbeats of any kind"""
    beats: int = 0
    """heartbeats: whether it speaks the recovery protocol"""
    missing: Missing | None = None
    """of a recovering source: what to ask it for"""
    unannounced: int = 0
    """events and heartbeats of publishers that its worker did not announce: ignored"""
    restored: bool = False
    """what is known was read from a file, and the source has not confirmed it"""
