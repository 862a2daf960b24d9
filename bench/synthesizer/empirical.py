"""A distribution as it was seen: different values, and how often each came."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class Empirical:
    """`values` ascend; `counts` are at least 1. Both may be empty."""

    values: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """How many samples there were."""
        return int(self.counts.sum())

    @property
    def cdf(self) -> NDArray[np.float64]:
        """Per value: the share of samples that are not above it. Ends with 1."""
        found: NDArray[np.float64] = np.cumsum(self.counts) / max(1, len(self))
        return found

    def quantile(self, share: float) -> int:
        """The smallest value that at least this share of samples is not above."""
        return int(self.values[np.searchsorted(self.cdf, share - 1e-12)])

    @property
    def mean(self) -> float:
        """The mean of the samples; 0 without any."""
        return float((self.values * self.counts).sum()) / max(1, len(self))

    def samples(self) -> list[int]:
        """Every sample, ascending."""
        found: list[int] = np.repeat(self.values, self.counts).tolist()
        return found


def empirical(samples: ArrayLike) -> Empirical:
    """The distribution of some whole numbers."""
    values, counts = np.unique(np.asarray(samples, np.int64), return_counts=True)
    return Empirical(values, counts.astype(np.int64))
