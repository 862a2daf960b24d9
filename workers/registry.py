"""The one place that knows the workers: who they are, their state, and their dense numbers.

The router, the slot table and the cost function keep arrays aligned by worker number.
Pure: no clock of its own, no I/O. The router reads it, discovery and health write it.

Invariants: a (worker_id, dp_rank) has one number while it is registered; a number is handed
out again only after its worker was removed.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ..base.errors import InvalidRequestError
from ..base.identity import WorkerWithDpRank, as_worker

MAX_RANKS = 4096
PREDICTED = "predicted"
"""The event source of a worker that sends no events of its cache."""


class WorkerState(enum.Enum):
    """Where a worker stands. Only READY workers are given requests."""

    CONNECTING = "connecting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    REFUSED = "refused"


@dataclass(frozen=True)
class WorkerEntry:
    """One engine: its ranks dp_start .. dp_start+dp_size-1 and the facts known about it.

    `total_kv_blocks`, `max_num_batched_tokens` and `max_num_seqs`, the most requests that it runs
    at once, are per rank; None where unknown.
    `weight`, above 0 and at most 1, is how many of the requests of a worker of weight 1 it may get.
    `inhibited_until` is a monotonic time before which it gets no request. `publisher_ids`, one for
    each rank, are those under which it announced its KV events; empty: it announced none.
    `event_source` is where the index has its knowledge of its cache from; empty: not known yet.
    """

    worker_id: int
    dp_start: int = 0
    dp_size: int = 1
    address: str | None = None
    state: WorkerState = WorkerState.READY
    reason: str = ""
    inhibited_until: float = float("-inf")
    total_kv_blocks: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    publisher_ids: tuple[int, ...] = ()
    weight: float = 1.0
    dialect: str = "trtllm"
    """what it speaks: trtllm, dynamo or openai"""
    origin: str = "static"
    """where we have it from: static, admin, or the store that it was found in"""
    event_source: str = ""
    event_error: str = ""
    """why no events come from it, where its cache is predicted instead"""
    numbers: tuple[int, ...] = field(default=(), compare=False)

    @property
    def ranks(self) -> list[WorkerWithDpRank]:
        last = self.dp_start + self.dp_size
        return [WorkerWithDpRank(self.worker_id, rank) for rank in range(self.dp_start, last)]


def check_weight(weight: float) -> float:
    """A weight that a worker can have; ValueError if it is none."""
    if not 0 < weight <= 1:
        raise ValueError(f"weight {weight!r} is not above 0 and at most 1")
    return weight


class WorkerFacts(TypedDict, total=False):
    """What `WorkerRegistry.add` takes of a worker's facts, as keyword arguments."""

    dp_size: int
    dp_start: int
    address: str | None
    total_kv_blocks: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    weight: float


class WorkerRegistry:
    """The registered workers. Listeners (`on_add`, `on_remove`) get numbers given and taken.

    Those in `on_update` get every entry that was added or renewed, with its numbers.
    """

    def __init__(self) -> None:
        self._entries: dict[int, WorkerEntry] = {}
        self._numbers: dict[WorkerWithDpRank, int] = {}
        self.by_number: list[WorkerWithDpRank | None] = []
        """every registered rank at its number; for kernels, as what follows: only read it"""
        self._free: list[int] = []
        self.ready = np.zeros(0, dtype=np.bool_)
        """what `eligible` says while no worker is inhibited"""
        self._kv_blocks = np.zeros(0, dtype=np.int64)
        self._batch_tokens = np.zeros(0, dtype=np.int64)
        self._max_seqs = np.zeros(0, dtype=np.int64)
        self._weights = np.ones(0, dtype=np.float64)
        self.inhibited_ids: set[int] = set()
        """of workers that may get nothing for a while"""
        self.weighted_ids: set[int] = set()
        """of workers with a weight below 1"""
        self.on_add: list[Callable[[WorkerWithDpRank, int], None]] = []
        self.on_remove: list[Callable[[WorkerWithDpRank, int], None]] = []
        self.on_update: list[Callable[[WorkerEntry], None]] = []

    def add(
        self,
        worker_id: int,
        *,
        dp_size: int = 1,
        dp_start: int = 0,
        address: str | None = None,
        total_kv_blocks: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        publisher_ids: tuple[int, ...] = (),
        weight: float = 1.0,
        dialect: str = "trtllm",
        origin: str = "static",
        state: WorkerState = WorkerState.READY,
    ) -> WorkerEntry:
        """Register a worker, or renew what is known of one.

        A renewal with other ranks removes and adds the ranks that differ. Raises ValueError on
        an id, rank or weight out of range, or publishers that are not one for each rank.
        """
        if not 1 <= dp_size <= MAX_RANKS:
            raise ValueError(f"dp_size {dp_size} is not in 1..{MAX_RANKS}")
        if len(publisher_ids) not in (0, dp_size):
            raise ValueError(f"{len(publisher_ids)} publishers for {dp_size} ranks")
        entry = WorkerEntry(
            worker_id=worker_id,
            dp_start=dp_start,
            dp_size=dp_size,
            address=address,
            state=state,
            total_kv_blocks=total_kv_blocks,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            publisher_ids=publisher_ids,
            weight=check_weight(weight),
            dialect=dialect,
            origin=origin,
        )
        wanted = [as_worker(worker) for worker in entry.ranks]
        known = self._entries.get(worker_id)
        if known is not None:
            source, error = known.event_source, known.event_error
            entry = replace(entry, event_source=source, event_error=error)
        for worker in known.ranks if known else []:
            if worker not in wanted:
                self._release(worker)
        for worker in wanted:
            if worker not in self._numbers:
                self._assign(worker)
        entry = replace(entry, numbers=tuple(self._numbers[worker] for worker in wanted))
        self._renew(entry)
        return entry

    def remove(self, worker_id: int) -> bool:
        """Forget a worker; False if it was not known."""
        entry = self._entries.pop(worker_id, None)
        if entry is None:
            return False
        self.inhibited_ids.discard(worker_id)
        self.weighted_ids.discard(worker_id)
        for worker in entry.ranks:
            self._release(worker)
        return True

    def set_state(self, worker_id: int, state: WorkerState, reason: str = "") -> None:
        """Move a worker to a state; unknown ids are ignored (it left in the meantime)."""
        if worker_id in self._entries:
            self._store(replace(self._entries[worker_id], state=state, reason=reason))

    def inhibit(self, worker_id: int, until: float) -> None:
        """Give a worker no request before the monotonic time `until`."""
        if worker_id in self._entries:
            self.inhibited_ids.add(worker_id)
            self._store(replace(self._entries[worker_id], inhibited_until=until))

    def set_weight(self, worker_id: int, weight: float) -> None:
        """Give a worker another weight; ValueError if it is none. Unknown ids are ignored."""
        check_weight(weight)
        if worker_id in self._entries:
            self._store(replace(self._entries[worker_id], weight=weight))

    def learn_kv_blocks(self, worker_id: int, total_kv_blocks: int) -> None:
        """Note the blocks seen at a worker that reported no size; until it is renewed."""
        entry = self._entries.get(worker_id)
        if entry is not None and entry.total_kv_blocks is None:
            self._renew(replace(entry, total_kv_blocks=total_kv_blocks))

    def set_event_source(self, worker_id: int, source: str, error: str = "") -> None:
        """Note where the index has its knowledge of a worker's cache from, by its name in
        `/workers`; `error`: why no events come. Unknown ids are ignored."""
        entry = self._entries.get(worker_id)
        if entry is not None and (source, error) != (entry.event_source, entry.event_error):
            self._renew(replace(entry, event_source=source, event_error=error))

    def entry(self, worker_id: int) -> WorkerEntry | None:
        return self._entries.get(worker_id)

    def entries(self) -> list[WorkerEntry]:
        return list(self._entries.values())

    def number(self, worker: WorkerWithDpRank) -> int:
        """The dense number of a registered worker; raises InvalidRequestError for others."""
        number = self._numbers.get(worker)
        if number is None:
            raise InvalidRequestError(f"worker {tuple(worker)} is not registered")
        return number

    def find(self, worker: WorkerWithDpRank) -> int | None:
        """The dense number of a worker; None if it is not registered."""
        return self._numbers.get(worker)

    def worker(self, number: int) -> WorkerWithDpRank:
        """The worker of a number in use; raises LookupError for others."""
        worker = self.by_number[number] if 0 <= number < len(self.by_number) else None
        if worker is None:
            raise LookupError(f"no worker has number {number}")
        return worker

    def numbered(self) -> list[tuple[int, WorkerWithDpRank]]:
        """(number, worker) of every registered rank, by number."""
        return [(n, worker) for n, worker in enumerate(self.by_number) if worker is not None]

    @property
    def capacity(self) -> int:
        """One more than the highest number ever in use: the length of arrays aligned by number."""
        return len(self.by_number)

    @property
    def kv_blocks(self) -> npt.NDArray[np.int64]:
        """KV blocks of each number's rank; 0 where unknown. Treat it as read-only."""
        return self._kv_blocks

    @property
    def batch_tokens(self) -> npt.NDArray[np.int64]:
        """Token budget of a step of each number's rank; 0 where unknown. Treat it as read-only."""
        return self._batch_tokens

    @property
    def max_num_seqs(self) -> npt.NDArray[np.int64]:
        """Most requests that each number's rank runs; 0 where unknown. Treat it as read-only."""
        return self._max_seqs

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The weight of each number's worker. Treat it as read-only."""
        return self._weights

    @property
    def is_weighted(self) -> bool:
        """Whether any worker has a weight below 1."""
        return bool(self.weighted_ids)

    def eligible(self, now: float) -> npt.NDArray[np.bool_]:
        """Which numbers may be given a request at monotonic time `now`. Treat it as read-only."""
        if self.inhibited_ids:
            over = [w for w in self.inhibited_ids if self._entries[w].inhibited_until <= now]
            for worker_id in over:
                self.inhibited_ids.discard(worker_id)
                self._store(self._entries[worker_id])
        return self.ready

    def inhibited(self) -> npt.NDArray[np.bool_]:
        """Which numbers' workers are well, and inhibited for a while."""
        mask = np.zeros(self.capacity, dtype=np.bool_)
        for worker_id in self.inhibited_ids:
            entry = self._entries[worker_id]
            if entry.state is WorkerState.READY:
                mask[list(entry.numbers)] = True
        return mask

    def is_ready(self, number: int) -> bool:
        """Whether the rank of a number in use is well, though it may be inhibited for a while."""
        return self._entries[self.worker(number).worker_id].state is WorkerState.READY

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, worker_id: int) -> bool:
        return worker_id in self._entries

    def _renew(self, entry: WorkerEntry) -> None:
        self._store(entry)
        for listener in self.on_update:
            listener(entry)

    def _store(self, entry: WorkerEntry) -> None:
        self._entries[entry.worker_id] = entry
        usable = entry.state is WorkerState.READY and entry.worker_id not in self.inhibited_ids
        numbers = list(entry.numbers)
        self.ready[numbers] = usable
        self._kv_blocks[numbers] = entry.total_kv_blocks or 0
        self._batch_tokens[numbers] = entry.max_num_batched_tokens or 0
        self._max_seqs[numbers] = entry.max_num_seqs or 0
        self._weights[numbers] = entry.weight
        (self.weighted_ids.add if entry.weight < 1 else self.weighted_ids.discard)(entry.worker_id)

    def _assign(self, worker: WorkerWithDpRank) -> None:
        if self._free:
            number = self._free.pop()
            self.by_number[number] = worker
        else:
            number = len(self.by_number)
            self.by_number.append(worker)
            self.ready = np.append(self.ready, False)
            self._kv_blocks = np.append(self._kv_blocks, 0)
            self._batch_tokens = np.append(self._batch_tokens, 0)
            self._max_seqs = np.append(self._max_seqs, 0)
            self._weights = np.append(self._weights, 1.0)
        self._numbers[worker] = number
        for listener in self.on_add:
            listener(worker, number)

    def _release(self, worker: WorkerWithDpRank) -> None:
        number = self._numbers.pop(worker)
        for listener in self.on_remove:
            listener(worker, number)
        self.by_number[number] = None
        self.ready[number] = False
        self._free.append(number)
