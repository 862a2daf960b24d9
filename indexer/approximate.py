"""The approximate index: who probably holds which block, predicted from where requests were sent.

For engines that publish no KV events (`--no-kv-events`).
"""

from collections.abc import Iterator
from math import ceil, floor, inf

import numpy as np
import numpy.typing as npt

from ..base.identity import WorkerWithDpRank, as_worker
from ._predictions import PredictionTree
from .prefix_index import CacheBranch, PredictionCounts, TierOverlap
from .source import SOURCES_IN_A_STEP, SourceState, SourceStatus
from .tree import list_heaviest

TICKS_PER_SECOND = 10  # deadlines are rounded up to these, so that one expiry handles many


class ApproximateIndex:
    """A PrefixIndex without events. Pure: time is what the caller says it is. Not thread-safe.

    A block is believed to be cached until `ttl_s` after the last request with it was sent to that
    worker. More than `max_blocks` predictions, counted per worker, are pruned to
    `prune_target_ratio` of that: earliest deadline first, deeper blocks before those above them.
    `ttl_s` may be changed, for requests that come after. `expired` and `pruned` count what was
    forgotten for either reason.
    """

    def __init__(
        self,
        *,
        ttl_s: float = 120.0,
        max_blocks: int = 2**20,
        prune_target_ratio: float = 0.8,
    ) -> None:
        if not 0 <= ttl_s < inf:
            raise ValueError(f"ttl_s {ttl_s} is negative or not finite")
        if not 1 <= max_blocks < 2**31:
            raise ValueError(f"max_blocks {max_blocks} is not in 1..2**31-1")
        if not 0 <= prune_target_ratio <= 1:
            raise ValueError(f"prune_target_ratio {prune_target_ratio} is not in 0..1")
        self.ttl_s = ttl_s
        self._max_blocks = max_blocks
        self._keep = int(max_blocks * prune_target_ratio)
        self._predictions = PredictionTree()
        self.expired = 0
        self.pruned = 0

    @property
    def predicts(self) -> bool:
        """True: `record` is the only way this index learns of blocks."""
        return True

    @property
    def predictions(self) -> PredictionCounts:
        return PredictionCounts(len(self), self.expired, self.pruned)

    def __len__(self) -> int:
        """How many blocks are believed to be cached, each counted for every worker."""
        return len(self._predictions)

    def record(
        self,
        worker: WorkerWithDpRank | tuple[int, int] | int,
        local_hashes: npt.NDArray[np.uint64],
        sequence_hashes: npt.NDArray[np.uint64],
        now: float,
    ) -> None:
        """A request with these blocks was sent to a worker: it will hold them from now on.

        Raises ValueError if the hashes differ in number or a sequence hash comes twice.
        """
        self.expire(now)
        if self.ttl_s == 0:
            return
        deadline = ceil((now + self.ttl_s) * TICKS_PER_SECOND)
        self._predictions.record(as_worker(worker), local_hashes, sequence_hashes, deadline)
        if len(self._predictions) > self._max_blocks:
            self.pruned += self._predictions.prune(self._keep)

    def expire(self, now: float) -> None:
        """Forget what was not asked for again in time. Next to free while nothing is due."""
        self.expired += self._predictions.expire(max(0, floor(now * TICKS_PER_SECOND)))

    @property
    def lower_tiers(self) -> bool:
        """False: which blocks an engine moves to another tier is not predicted."""
        return False

    def match(
        self,
        local_hashes: npt.NDArray[np.uint64],
        overlaps: npt.NDArray[np.uint32],
        lower: npt.NDArray[np.uint32] | None = None,
    ) -> int:
        """Write each bound worker's overlap, in blocks, under its number; return the longest."""
        longest = self._predictions.tree.match_bound(local_hashes, overlaps)
        if lower is not None:
            lower[:-1], lower[-1] = 0, overlaps
        return longest

    def scores(self, local_hashes: npt.NDArray[np.uint64]) -> dict[WorkerWithDpRank, int]:
        """Overlap in blocks of every worker that is believed to hold any, bound or not."""
        return self._predictions.tree.match(local_hashes).scores

    def tier_scores(
        self, local_hashes: npt.NDArray[np.uint64]
    ) -> dict[WorkerWithDpRank, TierOverlap]:
        """The same; all of it counts as held on the device."""
        found = self.scores(local_hashes)
        return {worker: TierOverlap(blocks) for worker, blocks in found.items()}

    def bind(self, worker: WorkerWithDpRank, number: int) -> None:
        """Give a worker the number its overlap is written under."""
        self._predictions.bind(worker, number)

    def unbind(self, worker: WorkerWithDpRank) -> None:
        """Forget a worker that left, and its predicted blocks."""
        self._predictions.remove_worker(worker)

    def forget_predictions(self, worker: WorkerWithDpRank, number: int) -> None:
        """All that is believed of a worker, which keeps its number."""
        self.unbind(worker)
        self.bind(worker, number)

    def branches(self, looked_at: int, limit: int) -> list[CacheBranch]:
        """What is believed to be cached: see PrefixIndex."""
        found = list_heaviest(self._predictions.tree, looked_at, limit)
        return [CacheBranch(*branch) for branch in found]

    def sources(self) -> list[SourceStatus]:
        """Every worker that is bound or was sent a request."""
        return [source for step in self.sources_in_steps() for source in step]

    def sources_in_steps(self) -> Iterator[list[SourceStatus]]:
        """The same, a few at a time: each step at a moment of its own."""
        tree = self._predictions.tree
        workers = tree.workers()
        for begin in range(0, len(workers), SOURCES_IN_A_STEP):
            yield [
                SourceStatus(worker, SourceState.APPROXIMATE, tree.num_blocks(worker))
                for worker in workers[begin : begin + SOURCES_IN_A_STEP]
            ]

    def memory_bytes(self) -> int:
        """Bytes allocated, used or kept for use."""
        return self._predictions.memory_bytes()

    def close(self) -> None:
        """Nothing to release: there is no thread."""
