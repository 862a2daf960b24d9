"""What the router asks of an index, one fed with KV events or one that predicts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..base.identity import WorkerWithDpRank
from .source import SourceStatus

LOWER_ROWS = 3
"""Rows of `match`'s lower tiers: host memory; disk and external storage; any tier together."""


class TierOverlap(NamedTuple):
    """How many leading blocks of a prompt a worker holds, tier by tier.

    A tier counts from where the one above it ended: `device` is the contiguous prefix held there,
    `host_pinned` how many blocks from there on are held in host memory without a hole, and so on
    down (Dynamo's rule, and how engines look their tiers up). So a block counts once, in the
    highest tier that holds it, and one behind a hole does not count, whichever worker holds it.
    """

    device: int
    host_pinned: int = 0
    disk: int = 0
    external: int = 0


class PredictionCounts(NamedTuple):
    """What is believed of caches because of where requests were sent, and what was forgotten."""

    blocks: int = 0
    """believed to be cached, each counted for every worker"""
    expired: int = 0
    """forgotten so far for their age"""
    pruned: int = 0
    """forgotten so far for want of room"""


class CacheBranch(NamedTuple):
    """A run of blocks that prompts have in common, and who holds them."""

    parent: int | None
    """place in the list of the branch that it goes on from; None: prompts begin with it"""
    begin: int
    """blocks above it"""
    blocks: int
    local_hash: int
    """of its first block"""
    holders: int
    """workers that hold some of it"""
    first_holders: tuple[tuple[WorkerWithDpRank, int], ...]
    """some of them, with how many of its leading blocks each holds"""
    more: bool
    """whether others that go on from it were not looked at"""


class PrefixIndex(Protocol):
    """Who holds which prefix. Not thread-safe unless an implementation says so."""

    @property
    def predicts(self) -> bool:
        """Whether `record` notes anything."""
        ...

    @property
    def predictions(self) -> PredictionCounts:
        """How many there are and were."""
        ...

    @property
    def lower_tiers(self) -> bool:
        """Whether asking for the lower tiers' overlaps can find any."""
        ...

    def match(
        self,
        local_hashes: npt.NDArray[np.uint64],
        overlaps: npt.NDArray[np.uint32],
        lower: npt.NDArray[np.uint32] | None = None,
    ) -> int:
        """Write each bound worker's overlap, in blocks, under its number; return the longest.

        `lower`, of LOWER_ROWS rows as long as `overlaps`, gets what host memory adds to that, what
        disk and external storage add, and the sum of all tiers: see TierOverlap.
        """
        ...

    def scores(self, local_hashes: npt.NDArray[np.uint64]) -> dict[WorkerWithDpRank, int]:
        """Overlap in blocks of every worker that holds any on its device, bound or not."""
        ...

    def tier_scores(
        self, local_hashes: npt.NDArray[np.uint64]
    ) -> dict[WorkerWithDpRank, TierOverlap]:
        """The same by tier, of every worker that holds a prefix in its tiers together."""
        ...

    def bind(self, worker: WorkerWithDpRank, number: int) -> None:
        """Give a worker the number its overlap is written under."""

    def unbind(self, worker: WorkerWithDpRank) -> None:
        """Forget a worker and its blocks: it left."""

    def forget_predictions(self, worker: WorkerWithDpRank, number: int) -> None:
        """Forget what is predicted of a worker, which has this number."""

    def record(
        self,
        worker: WorkerWithDpRank,
        local_hashes: npt.NDArray[np.uint64],
        sequence_hashes: npt.NDArray[np.uint64],
        now: float,
    ) -> None:
        """A request with these blocks was sent to a worker."""

    def expire(self, now: float) -> None:
        """Forget predictions that are too old. Costs next to nothing while there are none."""

    def sources(self) -> Sequence[SourceStatus]:
        """The state of every worker that is bound or has sent a message."""
        ...

    def sources_in_steps(self) -> Iterator[Sequence[SourceStatus]]:
        """The same, a few at a time, for a reader that must not take long at a time."""
        ...

    def branches(self, looked_at: int, limit: int) -> list[CacheBranch]:
        """Of `looked_at` of the device's branches, newer ones first, the `limit` whose blocks are
        held most, parents first."""
        ...

    def close(self) -> None:
        """Stop the threads. Idempotent."""
