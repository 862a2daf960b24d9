"""What an event index believes of caches beside events: predictions from routing.

Two kinds: of a worker that reports its blocks, for the short while until it does; and of one that
reports nothing, as in an approximate index.
"""

import numpy as np
import numpy.typing as npt

from ...base.identity import WorkerWithDpRank
from ..approximate import ApproximateIndex
from ..prefix_index import CacheBranch, PredictionCounts

LocalHashes = npt.NDArray[np.uint64]


class PredictedCaches:
    """Overlaps by worker number, and by worker; not thread-safe.

    `ttl_s` is how long a decision is believed of a worker that reports; None: never, and not to be
    changed. `silent` takes what is predicted of those that do not, as `predict` says; None: nothing
    is.
    """

    def __init__(self, ttl_s: float | None, silent: ApproximateIndex | None) -> None:
        self._soon = None if ttl_s is None else ApproximateIndex(ttl_s=ttl_s)
        self._silent = silent
        self._indexes = tuple(index for index in (self._soon, silent) if index is not None)
        self._silent_workers: set[WorkerWithDpRank] = set()
        self._numbers: dict[WorkerWithDpRank, int] = {}
        self._overlaps = np.zeros((2, 0), dtype=np.uint32)
        self.records = bool(ttl_s)
        """whether `record` may note anything"""
        self.is_empty = True
        """whether nothing at all is believed; that may be found out late"""

    @property
    def counts(self) -> PredictionCounts:
        """Of both kinds together."""
        return PredictionCounts(
            sum(map(len, self._indexes)),
            sum(index.expired for index in self._indexes),
            sum(index.pruned for index in self._indexes),
        )

    def __contains__(self, worker: object) -> bool:
        """Whether this worker's cache is predicted, since it reports nothing."""
        return worker in self._silent_workers

    @property
    def ttl_s(self) -> float | None:
        return None if self._soon is None else self._soon.ttl_s

    @ttl_s.setter
    def ttl_s(self, seconds: float) -> None:
        if self._soon is not None:
            self._soon.ttl_s = seconds
            self._note_records()

    def predict(self, worker: WorkerWithDpRank, on: bool) -> None:
        """Predict this worker's cache from now on, or go by what it reports."""
        if self._silent is None or (worker in self._silent_workers) is on:
            return
        (self._silent_workers.add if on else self._silent_workers.discard)(worker)
        self._note_records()
        for index in self._indexes:  # what was believed by the other rule is over
            index.unbind(worker)
            if worker in self._numbers:
                index.bind(worker, self._numbers[worker])

    def bind(self, worker: WorkerWithDpRank, number: int) -> None:
        self._numbers[worker] = number
        for index in self._indexes:
            index.bind(worker, number)

    def unbind(self, worker: WorkerWithDpRank) -> None:
        """Forget a worker, and its predicted blocks."""
        self._numbers.pop(worker, None)
        self._silent_workers.discard(worker)
        self._note_records()
        for index in self._indexes:
            index.unbind(worker)

    def forget(self, worker: WorkerWithDpRank, number: int) -> None:
        """Forget what is believed of a worker, which stays."""
        for index in self._indexes:
            index.forget_predictions(worker, number)

    def record(
        self,
        worker: WorkerWithDpRank,
        local_hashes: LocalHashes,
        sequence_hashes: npt.NDArray[np.uint64],
        now: float,
    ) -> None:
        """A request with these blocks was sent to a worker."""
        index = self._silent if worker in self._silent_workers else self._soon
        if index is not None:
            self.is_empty = False
            index.record(worker, local_hashes, sequence_hashes, now)

    def expire(self, now: float) -> None:
        if self.is_empty:
            return
        for index in self._indexes:
            if len(index):
                index.expire(now)
        self.is_empty = not any(map(len, self._indexes))

    def match(self, local_hashes: LocalHashes, count: int) -> npt.NDArray[np.uint32] | None:
        """Overlap in blocks by number, below `count`; None: of none. Good until the next call."""
        found = None
        for number, index in enumerate(self._indexes):
            if not len(index):
                continue
            if self._overlaps.shape[1] != count:
                self._overlaps = np.zeros((2, count), dtype=np.uint32)
            row = self._overlaps[number]
            if index.match(local_hashes, row):
                found = row if found is None else np.maximum(found, row)
        return found

    def scores(self, local_hashes: LocalHashes) -> dict[WorkerWithDpRank, int]:
        """The same by worker, bound or not."""
        found: dict[WorkerWithDpRank, int] = {}
        for index in self._indexes:
            found |= index.scores(local_hashes)  # a worker is in one of them at most
        return found

    def branches(self, looked_at: int, limit: int) -> list[CacheBranch]:
        """Those of workers that report nothing."""
        if self._silent is None or not self._silent_workers:
            return []
        return self._silent.branches(looked_at, limit)

    def blocks_of_silent(self) -> dict[WorkerWithDpRank, int]:
        """How many blocks each worker that reports nothing is believed to hold."""
        if self._silent is None or not self._silent_workers:
            return {}
        known = {source.worker: source.blocks for source in self._silent.sources()}
        return {worker: known.get(worker, 0) for worker in self._silent_workers}

    def _note_records(self) -> None:
        self.records = bool(self._silent_workers) or bool(self.ttl_s)
