"""Predictors of a series of counts, one value a bin. Each says the next bins' means.

A bin whose count is unknown is passed to none of them: `skip` lets time go on.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Path = NDArray[np.float64]


class Predictor(Protocol):
    """One way to look ahead."""

    name: str

    def update(self, count: float) -> None:
        """The count of the next bin."""

    def skip(self) -> None:
        """The next bin is over, and its count is unknown."""

    def predict(self, bins: int) -> Path:
        """Means of the next bins, none below 0."""
        ...


class LastValue:
    """What was, will be: the mean of the last `over` bins."""

    def __init__(self, over: int = 1) -> None:
        self.name = "last value" if over == 1 else f"mean of {over}"
        self._over = over
        self._seen: list[float] = []

    def update(self, count: float) -> None:
        self._seen = [*self._seen, count][-self._over :]

    def skip(self) -> None:
        pass

    def predict(self, bins: int) -> Path:
        return np.full(bins, float(np.mean(self._seen)) if self._seen else 0.0)


class Holt:
    """Exponential smoothing of level and trend; the trend is damped with each bin ahead."""

    name = "Holt"

    def __init__(self, level: float = 0.5, trend: float = 0.2, damping: float = 0.95) -> None:
        self._weights = level, trend
        self._damping = damping
        self._level: float | None = None
        self._trend = 0.0

    def update(self, count: float) -> None:
        if self._level is None:
            self._level = count
            return
        level, trend = self._weights
        before = self._level
        expected = before + self._damping * self._trend
        self._level = expected + level * (count - expected)
        moved = self._level - before
        self._trend = self._damping * self._trend + trend * (moved - self._damping * self._trend)

    def skip(self) -> None:
        if self._level is not None:
            self._trend *= self._damping
            self._level = max(0.0, self._level + self._trend)

    def predict(self, bins: int) -> Path:
        if self._level is None:
            return np.zeros(bins)
        steps = np.cumsum(self._damping ** np.arange(1, bins + 1))
        return np.maximum(0.0, self._level + self._trend * steps)


class Kalman:
    """A local linear trend; what a count varies by is taken to be its mean, as for arrivals."""

    name = "Kalman"

    def __init__(self, q_level: float = 1.0, q_trend: float = 0.1) -> None:
        self._noise = np.diag([q_level, q_trend])
        self._move = np.array([[1.0, 1.0], [0.0, 1.0]])
        self._state: Path | None = None
        self._spread = np.diag([100.0, 10.0])

    def update(self, count: float) -> None:
        if self._state is None:
            self._state = np.array([count, 0.0])
            return
        self.skip()
        seen = np.array([1.0, 0.0])
        variance = max(1.0, float(self._state[0]))
        gain = self._spread @ seen / (seen @ self._spread @ seen + variance)
        self._state = self._state + gain * (count - self._state[0])
        self._spread = self._spread - np.outer(gain, seen) @ self._spread

    def skip(self) -> None:
        if self._state is not None:
            self._state = self._move @ self._state
            scale = max(1.0, float(self._state[0])) / 100  # a busy series moves by more
            self._spread = self._move @ self._spread @ self._move.T + self._noise * scale

    def predict(self, bins: int) -> Path:
        if self._state is None:
            return np.zeros(bins)
        ahead = np.arange(1, bins + 1)
        path: Path = np.maximum(0.0, self._state[0] + self._state[1] * ahead)
        return path


class Seasonal:
    """As it was one period before, times how much busier it is now than then.

    `before`: counts of past bins, of a day at least; without a whole period it predicts 0 bins'
    worth of knowledge: the last value.
    """

    name = "seasonal"
    LATEST = 4
    """Bins whose mean goes on where nothing is known of the period before."""
    RECENT = 24
    """Bins that are compared with those of the period before, LATEST at a time: requests of
    sessions come in bursts, and what a few bins have of one says nothing of the hours to come."""
    CALM = 20.0
    """Arrivals that are taken to have come both now and then: a few say little of the day."""

    def __init__(self, before: Sequence[float], period: int) -> None:
        if period < 1:
            raise ValueError(f"a season of {period} bins")
        self._period = period
        self._seen: list[float | None] = []
        self._seen += list(before)[-period:]
        self._begun = len(self._seen)

    def update(self, count: float) -> None:
        self._seen.append(count)

    def skip(self) -> None:
        self._seen.append(None)

    def predict(self, bins: int) -> Path:
        known = [each for each in self._seen[-self.LATEST :] if each is not None]
        last = float(np.mean(known)) if known else 0.0
        if len(self._seen) < self._period:
            return np.full(bins, last)
        then = [self._before(len(self._seen) + place) for place in range(bins)]
        ratio = self._ratio()
        return np.array([last if each is None else each * ratio for each in then])

    def then(self, bins: int) -> list[float]:
        """Counts of one period before the next bins, as far as they are known."""
        if len(self._seen) < self._period:
            return []
        found = (self._before(len(self._seen) + place) for place in range(bins))
        return [each for each in found if each is not None]

    def _before(self, place: int) -> float | None:
        """The count one period before a bin, or more periods where that bin is ahead as well."""
        while place >= len(self._seen):
            place -= self._period
        return self._seen[place]

    def _ratio(self) -> float:
        """The median: one spike, however high, makes neither the hours to come nor their rest."""
        newest, ratios = len(self._seen), list[float]()
        for end in range(newest, newest - self.RECENT, -self.LATEST):
            places = range(max(self._begun, self._period, end - self.LATEST), end)
            pairs = [(self._seen[place], self._seen[place - self._period]) for place in places]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if known:
                now, then = np.sum(known, axis=0) + self.CALM
                ratios.append(float(now / then))
        return float(np.clip(np.median(ratios), 0.25, 4.0)) if ratios else 1.0
