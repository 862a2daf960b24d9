"""Changes of a worker's cache that wait to be sent: numbered, and cut into messages. Pure.

Invariants: event ids grow by one over everything that is written, without a hole; each message
keeps its bounds; what was written, applied in order, is a past state of the cache or its present.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..base.identity import WorkerWithDpRank
from ..indexer.wire import TIERS, EventWriter, StorageTier

Hashes: TypeAlias = Sequence[int] | NDArray[np.uint64]


class StoredRun(NamedTuple):
    """Blocks that follow each other, cached behind `parent_hash` (None: from the start).

    The arrays must not change once they were given away.
    """

    parent_hash: int | None
    block_hashes: Hashes
    """the engine's own block ids, u64"""
    local_hashes: Hashes
    """content hashes, aligned with block_hashes"""
    tier: StorageTier = "device"
    """where they are; the parent may be in any tier"""


class RemovedRun(NamedTuple):
    """Blocks that are cached no more in one tier. None: all of them."""

    block_hashes: Hashes | None
    tier: StorageTier = "device"


Change: TypeAlias = StoredRun | RemovedRun


class Outbox:
    """Changes of one worker's cache that wait to be sent."""

    def __init__(
        self,
        worker: WorkerWithDpRank,
        *,
        first_event_id: int = 1,
        max_events: int = 128,
        max_blocks: int = 8192,
        max_queued_blocks: int = 1 << 20,
    ) -> None:
        """`max_events` and `max_blocks` bound one message, `max_queued_blocks` the changes that
        wait (a clearing counts as one block). ValueError if a bound is none.
        """
        if min(max_events, max_blocks) < 1 or max_queued_blocks < max_blocks:
            raise ValueError("an outbox needs positive bounds, and room for one message")
        self._worker = worker
        self._next_id = first_event_id
        self._max_events = max_events
        self._max_blocks = max_blocks
        self._max_queued = max_queued_blocks
        self._queue: deque[Change] = deque()
        self._queued = 0
        self._announcement: deque[Change] = deque()
        self._stale = False
        self._lower: set[StorageTier] = set()  # tiers below the device's that were ever in an event
        self.given_up = 0
        """times it became stale"""
        self.clear_id = -1
        """id of the last written event behind which no earlier event counts in any tier"""

    @property
    def stale(self) -> bool:
        """Whether changes were given up: only an announcement is true again, and until
        then nothing is taken in.
        """
        return self._stale

    @property
    def announcing(self) -> bool:
        """Whether an announcement is under way."""
        return bool(self._announcement)

    @property
    def next_event_id(self) -> int:
        return self._next_id

    def put_stored(self, run: StoredRun) -> None:
        """ValueError if the arrays of `run` differ in length, or there is no such tier."""
        self._check_run(run)
        self._put(_cut(run, self._max_blocks))

    def put_removed(self, block_hashes: Hashes, tier: StorageTier = "device") -> None:
        """ValueError if there is no such tier."""
        _check_tier(tier)
        self._put(_cut(RemovedRun(block_hashes, tier), self._max_blocks))

    def put_cleared(self, tier: StorageTier | None = None) -> None:
        """One tier was emptied; None: all of them. ValueError if there is no such tier."""
        if tier is not None:
            _check_tier(tier)
            self._put([RemovedRun(None, tier)])
        elif not self._stale:
            # Whatever waits is about blocks that are gone now.
            self._forget()
            self._put(self._clear_all())

    def invalidate(self) -> None:
        """Give up what waits: it cannot be sent, or there is too much of it."""
        self._forget()
        if not self._stale:
            self._stale = True
            self.given_up += 1

    def announce(self, runs: Iterable[StoredRun]) -> None:
        """Replace what waits by the whole cache as it is now: `runs`, parents first.

        `runs` is gone through before this returns, so it may be a generator over a living cache.
        """
        cut: list[Change] = []
        for run in runs:
            self._check_run(run)
            cut += _cut(run, self._max_blocks)
        self._forget()
        self._stale = False
        self._announcement.extend(self._clear_all())
        self._announcement.extend(cut)

    def write_message(self, writer: EventWriter) -> int:
        """Write the events of the next message; returns how many they are, 0 if nothing waits.

        Raises ValueError, TypeError or OverflowError on a hash that is none. Then the outbox is
        stale, but its numbering is whole.
        """
        while writer.events < self._max_events and (change := self._first()) is not None:
            if writer.events and writer.blocks + _weight(change) > self._max_blocks:
                break
            try:
                self._write(change, writer)
            except Exception:
                self.invalidate()
                raise
            self._next_id += 1
            self._drop_first()
        return writer.events

    def _write(self, change: Change, writer: EventWriter) -> None:
        worker_id, dp_rank = self._worker
        if isinstance(change, StoredRun):
            writer.stored(worker_id, dp_rank, self._next_id, *change)
        elif change.block_hashes is None:
            writer.cleared(worker_id, dp_rank, self._next_id, change.tier)
            if change.tier == "device" and (self._announcement or not self._lower):
                self.clear_id = self._next_id
        else:
            writer.removed(worker_id, dp_rank, self._next_id, change.block_hashes, change.tier)

    def _first(self) -> Change | None:
        for queue in (self._announcement, self._queue):
            if queue:
                return queue[0]
        return None

    def _drop_first(self) -> None:
        if self._announcement:
            self._announcement.popleft()
        else:
            self._queued -= _weight(self._queue.popleft())

    def _put(self, changes: Iterable[Change]) -> None:
        if self._stale:
            return
        for change in changes:
            self._queue.append(change)
            self._queued += _weight(change)
        if self._queued > self._max_queued:
            self.invalidate()

    def _clear_all(self) -> list[Change]:
        """The device's last: with that one a reader believes to know everything again."""
        return [RemovedRun(None, tier) for tier in (*sorted(self._lower), "device")]

    def _check_run(self, run: StoredRun) -> None:
        if len(run.block_hashes) != len(run.local_hashes):
            raise ValueError(
                f"{len(run.block_hashes)} block hashes but {len(run.local_hashes)} local hashes"
            )
        _check_tier(run.tier)
        if run.tier != "device":
            self._lower.add(run.tier)

    def _forget(self) -> None:
        self._announcement.clear()
        self._queue.clear()
        self._queued = 0


def _weight(change: Change) -> int:
    return 1 if change.block_hashes is None else len(change.block_hashes)


def _cut(change: Change, step: int) -> Iterator[Change]:
    """Pieces of at most `step` blocks; a stored one goes behind the last block of the one before.
    No blocks, no piece.
    """
    if change.block_hashes is None or 0 < len(change.block_hashes) <= step:
        yield change
        return
    for i in range(0, len(change.block_hashes), step):
        hashes = change.block_hashes[i : i + step]
        if isinstance(change, RemovedRun):
            yield RemovedRun(hashes, change.tier)
        else:
            parent = change.block_hashes[i - 1] if i else change.parent_hash
            yield StoredRun(parent, hashes, change.local_hashes[i : i + step], change.tier)


def _check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise ValueError(f"storage tier {tier!r} is none of {', '.join(TIERS)}")
