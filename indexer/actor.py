"""The event-driven index: the actor that owns the tree, as the router sees it.

Fed by the event feed (`post`) or by an embedding frontend (`apply`); read by every decision.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.errors import EventError
from ..runtime.identity import WorkerWithDpRank
from ._actor import IndexActor
from .source import SourceState, SourceStatus
from .wire import describe_decode_error

# The kernel's numbers of the states it knows (_cursor.pxd).
_STATES = (SourceState.SILENT, SourceState.EXACT, SourceState.REBUILDING, SourceState.DEGRADED)


class EventIndex:
    """Who holds which block, as the engines report it.

    One native thread applies posted messages in order; reads happen on the caller's thread and
    see every message applied so far. `max_messages` and `max_bytes` bound what may wait:
    a message beyond is refused and counted, and its loss shows as a gap of its source.
    `max_workers` bounds how many (worker, rank) are indexed, `max_blocks` how many different
    blocks: beyond, the branches that were of use longest ago are dropped, and their holders are
    `trimmed`. ValueError if a bound is below 1.
    """

    def __init__(
        self,
        *,
        max_messages: int = 16384,
        max_bytes: int = 1 << 28,
        max_workers: int = 65536,
        max_blocks: int | None = None,
    ) -> None:
        self._actor = IndexActor(
            max_messages=max_messages,
            max_bytes=max_bytes,
            max_workers=max_workers,
            max_blocks=max_blocks,
        )

    def post(self, message: bytes) -> bool:
        """Queue one message of the event plane; False if the mailbox is full."""
        return self._actor.post(message)

    def apply(self, message: bytes) -> None:
        """Apply one message of the event plane after all that was posted before it.

        Raises EventError if it cannot be decoded; what is wrong inside it is counted.
        """
        code = self._actor.apply(message)
        if code != 0:
            raise EventError(describe_decode_error(code))

    def apply_cache_event(self, worker: WorkerWithDpRank | int, event: bytes) -> None:
        """Apply one cache event of `worker` (Dynamo's JSON), unnumbered: its id is not looked at.

        Raises ValueError if it is no such event, EventError if it names unknown blocks.
        """
        self._actor.apply_cache_event(worker, event)

    def flush(self) -> None:
        """Return once everything posted before is applied."""
        self._actor.flush()

    def match(self, local_hashes: npt.NDArray[np.uint64], overlaps: npt.NDArray[np.uint32]) -> int:
        """Write each bound worker's overlap, in blocks, under its number; return the longest."""
        return self._actor.match_bound(local_hashes, overlaps)

    def scores(self, local_hashes: npt.NDArray[np.uint64]) -> dict[WorkerWithDpRank, int]:
        """Overlap in blocks of every worker that holds any, bound or not."""
        return self._actor.scores(local_hashes)

    def bind(self, worker: WorkerWithDpRank, number: int) -> None:
        """Give a worker the number its overlap is written under."""
        self._actor.bind(worker, number)

    def unbind(self, worker: WorkerWithDpRank) -> None:
        """Forget a worker and its blocks: it left."""
        self._actor.drop_worker(worker)

    def record(
        self,
        worker: WorkerWithDpRank,
        local_hashes: npt.NDArray[np.uint64],
        sequence_hashes: npt.NDArray[np.uint64],
        now: float,
    ) -> None:
        """Nothing to note: the engine will tell what it cached."""

    def expire(self, now: float) -> None:
        """Nothing grows old: engines tell what they drop."""

    def sources(self) -> list[SourceStatus]:
        """The state of every worker that is bound or was heard of."""
        return [_status(*source) for source in self._actor.sources()]

    def mark_degraded(self, worker: WorkerWithDpRank) -> None:
        """A rebuilding worker did not answer."""
        self._actor.mark_degraded(worker)

    def relearn(self) -> int:
        """Trimmed sources whose dropped blocks would fit again are rebuilding from now on, if a
        quarter of the index is free; returns how many."""
        return self._actor.relearn()

    def mark_suspect(self) -> None:
        """Events may have been missed: exact sources are rebuilding until their next one tells."""
        self._actor.mark_suspect()

    def counters(self) -> dict[str, int]:
        """Running totals of the event path; `waiting` is the mailbox's present length,
        `indexed_blocks` and `index_bytes` the tree's present size."""
        return self._actor.counters()

    def close(self) -> None:
        """Stop the thread. What was posted and not applied is dropped. Idempotent."""
        self._actor.close()


def _status(
    worker: WorkerWithDpRank, cursor: dict[str, Any], blocks: int, missing: int
) -> SourceStatus:
    state = _STATES[cursor.get("state", 0)]
    if cursor.get("suspect"):
        state = SourceState.REBUILDING
    elif state is SourceState.EXACT and missing:
        state = SourceState.TRIMMED
    return SourceStatus(
        worker=worker,
        state=state,
        blocks=blocks,
        missing=missing,
        applied=cursor.get("applied", 0),
        last_event_id=cursor.get("last_event_id", 0),
        gaps=cursor.get("gaps", 0),
        restarts=cursor.get("restarts", 0),
        duplicates=cursor.get("duplicates", 0),
        orphans=cursor.get("orphans", 0),
    )
