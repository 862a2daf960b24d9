"""A histogram counted on the event loop, at the price of an append for each observation."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client.core import HistogramMetricFamily

FOLD_AT = 1024
"""How many observations may wait to be sorted into buckets."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
LONG_SECONDS = (*SECONDS, 300, 600, 1800, 3600)
SHORT_SECONDS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
TOKENS = tuple(2**n for n in range(4, 21))
RATIO = tuple(n / 10 for n in range(1, 11))


class Histogram:
    """Counts by bucket, on the event loop.

    Observing is an append; sorting into buckets waits until there are many or a scrape comes. A
    request spends its time in gRPC, so whatever runs once for it runs with cold caches, and a
    loop over a thousand values costs less than a thousand times that.
    """

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._bounds = name, help, bounds
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self.new: list[float] = []
        """what was observed since the last `fold`"""

    def observe(self, value: float) -> None:
        self.new.append(value)
        if len(self.new) >= FOLD_AT:
            self.fold()

    @property
    def counts(self) -> list[int]:
        """How many values fell into each bucket, until now."""
        self.fold()
        found: list[int] = self._counts.tolist()
        return found

    @property
    def sum(self) -> float:
        """Of all values, until now."""
        self.fold()
        return self._sum

    def family(self) -> HistogramMetricFamily:
        self.fold()
        bounds = [str(float(bound)) for bound in self._bounds]
        buckets = list(zip([*bounds, "+Inf"], self._counts.cumsum().tolist(), strict=True))
        return HistogramMetricFamily(self._name, self._help, buckets, self._sum)

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Observe all of these, at once."""
        found = np.searchsorted(self._bounds, values)  # a bound belongs to the bucket below it
        self._counts += np.bincount(found, minlength=len(self._counts))
        self._sum += float(values.sum())

    def fold(self) -> None:
        """Sort what is new into buckets."""
        values = np.array(self.new, dtype=np.float64)
        self.new.clear()
        self.add(values)


class HistogramRow:
    """Histograms that each observe one value of the same things, at the price of one append."""

    def __init__(self, *histograms: Histogram) -> None:
        self._histograms = histograms
        self._new: list[tuple[float, ...]] = []

    def observe(self, *values: float) -> None:
        """One value for each histogram, in their order."""
        self._new.append(values)
        if len(self._new) >= FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Have the histograms count what waits."""
        if self._new:
            new, self._new = self._new, []
            columns = np.array(new, dtype=np.float64).T
            for histogram, values in zip(self._histograms, columns, strict=True):
                histogram.add(values)
