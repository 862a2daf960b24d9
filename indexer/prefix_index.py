"""What the router asks of an index, whether it is told by engines or predicts them."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..runtime.identity import WorkerWithDpRank
from .source import SourceStatus


class PrefixIndex(Protocol):
    """Who holds which prefix. Not thread-safe unless an implementation says so."""

    @property
    def predicts(self) -> bool:
        """Whether `record` has a use."""

    def match(self, local_hashes: npt.NDArray[np.uint64], overlaps: npt.NDArray[np.uint32]) -> int:
        """Write each bound worker's overlap, in blocks, under its number; return the longest."""

    def scores(self, local_hashes: npt.NDArray[np.uint64]) -> dict[WorkerWithDpRank, int]:
        """Overlap in blocks of every worker that holds any, bound or not."""

    def bind(self, worker: WorkerWithDpRank, number: int) -> None:
        """Give a worker the number its overlap is written under."""

    def unbind(self, worker: WorkerWithDpRank) -> None:
        """Forget a worker and its blocks: it left."""

    def record(
        self,
        worker: WorkerWithDpRank,
        local_hashes: npt.NDArray[np.uint64],
        sequence_hashes: npt.NDArray[np.uint64],
        now: float,
    ) -> None:
        """A request with these blocks was sent to a worker."""

    def expire(self, now: float) -> None:
        """Forget what is too old to be believed. Costs next to nothing while nothing is."""

    def sources(self) -> Sequence[SourceStatus]:
        """The state of every worker that is bound or was heard of."""

    def close(self) -> None:
        """Let go of threads. Idempotent."""
