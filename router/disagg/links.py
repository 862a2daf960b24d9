"""LinkEstimate: how long a hand-off takes, learnt from those that were observed. Pure.

    seconds = latency + bytes / bandwidth

from a prefill worker's answer to the first token of the decode worker: what a router can observe of
every engine. The fleet has one line, a weighted least squares fit from a prior; each pair of
workers how many times longer than that it takes.
"""

import math

LATENCY_S = 0.01
"""of a hand-off without bytes, before any was observed"""
BANDWIDTH = 10e9
"""bytes a second, before any was observed"""
KEPT = 0.98
"""of what is known, with each hand-off that is observed"""
PRIOR_WEIGHT = 4.0
PAIR_RECENT = 0.2
MOST_SLOWER = 20.0
MOST_PAIRS = 16_384
UNIT = 1e9
"""bytes, so that the sums are of one size"""


class LinkEstimate:
    """One pool's. Keys are any names of workers: their host, if transfers share its card."""

    def __init__(self, latency_s: float = LATENCY_S, bandwidth: float = BANDWIDTH) -> None:
        self._weight = self._x = self._xx = self._y = self._xy = 0.0
        for gigabytes in (0.0, 1.0):
            self._add(PRIOR_WEIGHT, gigabytes, latency_s + gigabytes * UNIT / bandwidth)
        self._pairs: dict[tuple[object, object], float] = {}
        self.observed = 0

    def seconds(self, source: object, target: object, size: float) -> float:
        """What a hand-off of `size` bytes is expected to take."""
        latency, per_unit = self._line()
        return (latency + per_unit * size / UNIT) * self._pairs.get((source, target), 1.0)

    def observe(self, source: object, target: object, size: float, seconds: float) -> None:
        """One took so long. What is no time is left out."""
        if not (math.isfinite(seconds) and seconds >= 0 and size >= 0):
            return
        self.observed += 1
        latency, per_unit = self._line()
        expected = latency + per_unit * size / UNIT
        key = source, target
        known = self._pairs.get(key, 1.0)
        if key in self._pairs or len(self._pairs) < MOST_PAIRS:
            ratio = min(max(seconds / max(expected, 1e-9), 1 / MOST_SLOWER), MOST_SLOWER)
            self._pairs[key] = known + PAIR_RECENT * (ratio - known)
        self._weight *= KEPT
        self._x *= KEPT
        self._xx *= KEPT
        self._y *= KEPT
        self._xy *= KEPT
        self._add(1.0, size / UNIT, seconds)

    def forget(self, worker: object) -> None:
        """A worker is gone, and what was known of its pairs."""
        for key in [key for key in self._pairs if worker in key]:
            del self._pairs[key]

    def _add(self, weight: float, x: float, y: float) -> None:
        self._weight += weight
        self._x += weight * x
        self._xx += weight * x * x
        self._y += weight * y
        self._xy += weight * x * y

    def _line(self) -> tuple[float, float]:
        """(seconds without bytes, seconds for a unit more); neither is negative."""
        spread = self._weight * self._xx - self._x * self._x
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        if spread <= 1e-12 * self._weight * self._weight:  # all of one size: in proportion
            return (mean_y, 0.0) if mean_x <= 0 else (0.0, mean_y / mean_x)
        slope = max(0.0, (self._weight * self._xy - self._x * self._y) / spread)
        latency = mean_y - slope * mean_x
        if latency < 0:
            return 0.0, self._xy / self._xx
        return latency, slope
