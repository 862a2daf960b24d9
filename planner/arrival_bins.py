"""ArrivalBins: observations in, counts of arrivals by bin out; no data is no zero."""

import math

import numpy as np

from .observation import Observation

MOST_BINS = 5000
"""that are counted in one step: after a longer gap the first ones are left out."""


class ArrivalBins:
    """Bins of `bin_s` seconds from the first observation on.

    Raises nothing: a clock that went back, or so far on that requests are missing, leaves bins
    without a count, and `trouble` says so.
    """

    def __init__(self, bin_s: float) -> None:
        self._bin_s = bin_s
        self._next: float | None = None  # where the next bin begins
        self._last = -math.inf
        self.trouble = ""

    def take(self, seen: Observation) -> list[float | None]:
        """Counts of the bins that have ended since the last call; None where one is unknown."""
        self.trouble = ""
        if seen.at < self._last:
            self.trouble = f"the clock went back by {self._last - seen.at:.0f} s"
            self._next, self._last = None, seen.at
        if self._next is None:
            # What the window has of the past is known already: whole bins of it.
            known = 0 if seen.requests is None else int(seen.window_s // self._bin_s)
            self._next = seen.at - known * self._bin_s
        gap, self._last = seen.at - self._last, seen.at
        ended = int((seen.at - self._next) // self._bin_s)
        if ended > MOST_BINS:  # those long gone would say nothing
            self._next += (ended - MOST_BINS) * self._bin_s
            ended = MOST_BINS
        if seen.requests is None:
            self.trouble = self.trouble or "no data on requests"
            self._next += ended * self._bin_s
            return [None] * ended
        if math.isfinite(gap) and gap > seen.window_s:
            self.trouble = self.trouble or f"nothing is known of {gap - seen.window_s:.0f} s"
        times = np.array([each.arrival_s for each in seen.requests], np.float64)
        edges = self._next + self._bin_s * np.arange(ended + 1)
        counts = np.diff(np.searchsorted(times, edges)) if ended else np.array([])
        oldest = seen.at - seen.window_s - 1e-9
        self._next += ended * self._bin_s
        return [
            float(count) if begin >= oldest else None
            for count, begin in zip(counts, edges, strict=False)
        ]
