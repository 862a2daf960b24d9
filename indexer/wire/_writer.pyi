from typing import final

from ..hashing import Integers
from .events import TIERS as TIERS
from .events import StorageTier

@final
class EventWriter:
    """The events of one message, written one by one straight from hash arrays.

    `message` ends it and starts the next. Nothing is written by a call that raises: ValueError for
    an unknown tier or columns of unequal length, OverflowError for a number that does not fit its
    field. Not for two threads at once.
    """

    events: int  # in the message so far
    blocks: int  # in those events, stored and removed
    def stored(
        self,
        worker_id: int,
        dp_rank: int,
        event_id: int,
        parent_hash: int | None,
        external_hashes: Integers,
        local_hashes: Integers,
        tier: StorageTier = "device",
    ) -> None: ...
    def removed(
        self,
        worker_id: int,
        dp_rank: int,
        event_id: int,
        external_hashes: Integers,
        tier: StorageTier = "device",
    ) -> None: ...
    def cleared(
        self, worker_id: int, dp_rank: int, event_id: int, tier: StorageTier = "device"
    ) -> None: ...
    def message(
        self, publisher_id: int, sequence: int, published_at_ms: int, topic: str = "kv-events"
    ) -> bytes:
        """The message: an envelope around an array of the events."""
