"""What a worker still has to tell about its cache: numbered, cut into messages. Pure; the
KvEventPublisher drives it.

Invariants: event ids grow by one over everything that leaves, with no hole; each message keeps
its bounds; what leaves, applied in order, is always a past state of the cache or its present one.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..indexer.events import Cleared, Removed, RouterEvent, Stored, StoredBlock
from ..runtime.identity import WorkerWithDpRank

Hashes = Sequence[int]
"""u64 values: a list, or a uint64 array"""


class StoredRun(NamedTuple):
    """Blocks that follow each other, cached behind `parent_hash` (None: from the start)."""

    parent_hash: int | None
    block_hashes: Hashes
    """the engine's own block ids"""
    local_hashes: Hashes
    """content hashes, aligned with block_hashes"""


Change = Stored | Removed | Cleared


class Outbox:
    """Changes of one worker's cache, waiting to be sent."""

    def __init__(
        self,
        worker: WorkerWithDpRank,
        *,
        first_event_id: int = 1,
        max_events: int = 128,
        max_blocks: int = 8192,
        max_queued_blocks: int = 1 << 20,
    ) -> None:
        """`max_events` and `max_blocks` bound one message, `max_queued_blocks` all that waits; a
        change counts as at least one block.
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
        self._announcement: Iterator[Change] | None = None
        self._stale = False

    @property
    def stale(self) -> bool:
        """Whether changes were given up, so that only an announcement tells the truth again."""
        return self._stale

    @property
    def next_event_id(self) -> int:
        return self._next_id

    @property
    def empty(self) -> bool:
        return not self._queue and self._announcement is None

    def put_stored(self, run: StoredRun) -> None:
        """ValueError if the two arrays of `run` differ in length."""
        _check_run(run)
        self._put(_cut_stored(run, self._max_blocks), len(run.block_hashes))

    def put_removed(self, block_hashes: Hashes) -> None:
        hashes = _integers(block_hashes)
        step = self._max_blocks
        cut = (Removed(hashes[i : i + step]) for i in range(0, len(hashes), step))
        self._put(cut, len(hashes))

    def put_cleared(self) -> None:
        # Whatever waits describes blocks that are gone now. What left before needs the event.
        if not self._stale:
            self._forget()
            self._put(iter([Cleared()]), 1)

    def invalidate(self) -> None:
        """Give up what waits: it cannot be sent, or there is too much of it."""
        self._forget()
        self._stale = True

    def announce(self, runs: Iterable[StoredRun]) -> None:
        """Replace all that waits by the whole cache as it is now: `runs`, parents first.

        `runs` is gone through before this returns, so it may be a generator over a living cache;
        the arrays in it must not change afterwards.
        """
        taken = list(runs)
        for run in taken:
            _check_run(run)
        self._forget()
        self._stale = False
        self._announcement = self._announce(taken)

    def next_message(self) -> list[RouterEvent]:
        """The events of the next message, now numbered; empty if nothing waits."""
        events: list[RouterEvent] = []
        blocks = 0
        while len(events) < self._max_events and (change := self._pop()) is not None:
            weight = _weight(change)
            if events and blocks + weight > self._max_blocks:
                self._queue_front(change)
                break
            blocks += weight
            events.append(RouterEvent(self._worker, self._next_id, change))
            self._next_id += 1
        return events

    def _put(self, changes: Iterator[Change], blocks: int) -> None:
        if self._stale or not blocks:
            return
        if self._queued + blocks > self._max_queued:
            self.invalidate()
            return
        for change in changes:
            self._queue.append(change)
            self._queued += _weight(change)

    def _pop(self) -> Change | None:
        """The oldest change that waits; those of an announcement come before the queue's."""
        if self._announcement is not None:
            change = next(self._announcement, None)
            if change is not None:
                return change
            self._announcement = None
        if not self._queue:
            return None
        change = self._queue.popleft()
        self._queued -= _weight(change)
        return change

    def _queue_front(self, change: Change) -> None:
        """Undo a _pop."""
        if self._announcement is not None:
            self._announcement = _chain(change, self._announcement)
        else:
            self._queue.appendleft(change)
            self._queued += _weight(change)

    def _announce(self, runs: list[StoredRun]) -> Iterator[Change]:
        yield Cleared()
        for run in runs:
            yield from _cut_stored(run, self._max_blocks)

    def _forget(self) -> None:
        self._queue.clear()
        self._queued = 0
        self._announcement = None


def _weight(change: Change) -> int:
    if isinstance(change, Stored):
        return len(change.blocks)
    return len(change.block_hashes) if isinstance(change, Removed) else 1


def _cut_stored(run: StoredRun, step: int) -> Iterator[Change]:
    """One event per `step` blocks, each behind the last block of the one before."""
    parent = None if run.parent_hash is None else int(run.parent_hash)
    for i in range(0, len(run.block_hashes), step):
        hashes = _integers(run.block_hashes[i : i + step])
        local = _integers(run.local_hashes[i : i + step])
        yield Stored(parent, list(map(StoredBlock, hashes, local)))
        parent = hashes[-1]


def _chain(first: Change, rest: Iterator[Change]) -> Iterator[Change]:
    yield first
    yield from rest


def _check_run(run: StoredRun) -> None:
    if len(run.block_hashes) != len(run.local_hashes):
        raise ValueError(
            f"{len(run.block_hashes)} block hashes but {len(run.local_hashes)} local hashes"
        )


def _integers(hashes: Hashes) -> list[int]:
    """Python integers, which is what the codec takes, out of a list or an array."""
    tolist = getattr(hashes, "tolist", None)
    return list(hashes) if tolist is None else tolist()
