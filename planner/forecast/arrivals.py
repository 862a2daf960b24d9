"""ArrivalForecast: how many requests come in the next bins, by quantiles.

Predictors are weighted by their recent pinball loss, half the horizon ahead; the quantiles are
those of what the weighted forecast has missed by, at each distance ahead, and at least those of
arrivals by chance (Poisson).
"""

import math
from collections import deque
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .predictors import Holt, Kalman, LastValue, Path, Predictor, Seasonal
from .steady import steady_bins

QUANTILES = (0.5, 0.9)
"""At which a predictor's loss is taken: too little costs more than too much."""
LOSS_MEMORY = 0.93  # of a bin for the next
RESIDUALS = 120  # bins kept for each distance ahead
LEAST_RESIDUALS = 8  # from which on their distribution counts
TRUSTED = 1.25
"""times the least loss of any predictor: up to that the season's is believed by itself."""
CHANCE = 2.0
"""standard deviations of a bin that the season may have lost more: a few bins say little."""
LONGEST_STRETCH = 40
"""Bins that are looked at for one rate."""
LONGEST_JUMP = 240  # bins without data, after which what was seen before says nothing


class Forecast(NamedTuple):
    """Counts of the next bins: the mean path, and the weights of the predictors behind it."""

    bin_s: float
    mean: Path
    weights: dict[str, float]


class ArrivalForecast:
    """A series of counts in bins of `bin_s` seconds, and what comes next.

    `season`: counts of past bins, of one period before the first bin.
    """

    def __init__(self, bin_s: float, bins: int, season: Sequence[float] = ()) -> None:
        self.bin_s = bin_s
        self._bins = bins
        self._predictors: list[Predictor] = [LastValue(), LastValue(4), Holt(), Kalman()]
        if season:
            self._predictors.append(Seasonal(season, len(season)))
        self._seasonal = bool(season)
        self._losses = np.zeros(len(self._predictors))
        self._past: deque[tuple[NDArray[np.float64], Path]] = deque(maxlen=bins)
        self._residuals = [deque[float](maxlen=RESIDUALS) for _ in range(bins)]
        self._counts = deque[float](maxlen=LONGEST_STRETCH)
        self.seen = 0

    def update(self, count: float) -> None:
        """A bin's count. ValueError for one that is no finite number of at least 0."""
        if not (math.isfinite(count) and count >= 0):
            raise ValueError(f"{count} is no count of arrivals")
        if self._past:
            # About where new engines will serve: what is right there decides what to start.
            ahead = min(len(self._past), self._bins // 2 + 1)
            predicted = self._past[-ahead][0][:, ahead - 1]
            self._losses = LOSS_MEMORY * self._losses + _pinball(count, predicted)
        # Forecasts were made one bin after the other: the last one saw this bin as its first.
        for distance, (_, mean) in enumerate(reversed(self._past)):
            if distance < self._bins:
                error = (count - mean[distance]) / math.sqrt(max(1.0, mean[distance]))
                self._residuals[distance].append(float(error))
        for each in self._predictors:
            each.update(count)
        self._counts.append(count)
        self.seen += 1
        self._remember()

    def skip(self, bins: int = 1) -> None:
        """Bins that are over, of unknown counts."""
        for _ in range(min(bins, LONGEST_JUMP)):
            for each in self._predictors:
                each.skip()
        self._past.clear()
        self._counts.clear()
        self._remember()

    def forecast(self) -> Forecast:
        """The mean path of the next bins."""
        paths = self._paths()
        weights = self._weights()
        shown = {
            each.name: round(float(w), 3) for each, w in zip(self._predictors, weights, strict=True)
        }
        return Forecast(self.bin_s, weights @ paths, shown)

    def quantile(self, level: float) -> Path:
        """The path that counts stay below with this chance, bin by bin. Where today goes on as the
        season did, it is at least the season's: other predictors see no rise before it begins."""
        mean = self.forecast().mean
        path = np.array([max(0.0, self._at(level, h, float(m))) for h, m in enumerate(mean)])
        if self._seasonal and self._trusts_season(float(mean[0])):
            season = self._predictors[-1].predict(self._bins)
            chance = NormalDist().inv_cdf(level) * np.sqrt(np.maximum(1.0, season))
            path = np.maximum(path, season + chance)
        return path

    def steady_s(self, dispersion: float) -> float:
        """For how long arrivals have been of one rate; 0 where the season says that it ends.
        `dispersion`: the variance of counts, of their mean, that is chance."""
        ahead: Path = np.zeros(0)
        if self._seasonal and self._trusts_season(float(self.forecast().mean[0])):
            ahead = self._predictors[-1].predict(self._bins)
        return self.bin_s * steady_bins(self._counts, dispersion, ahead.tolist())

    def _trusts_season(self, count: float) -> bool:
        """Whether today goes on as the season did, as far as losses can show."""
        least = float(self._losses.min()) + CHANCE * math.sqrt(max(1.0, count)) / TRUSTED
        return float(self._losses[-1]) <= TRUSTED * least

    def _at(self, level: float, distance: int, mean: float) -> float:
        chance = NormalDist().inv_cdf(level)
        spread = math.sqrt(max(1.0, mean))
        residuals = self._residuals[distance]
        missed = chance
        if len(residuals) >= LEAST_RESIDUALS:
            missed = float(np.quantile(residuals, level))
            # With few residuals the far quantiles are those of chance.
            share = len(residuals) / (len(residuals) + LEAST_RESIDUALS)
            missed = share * missed + (1 - share) * chance
        else:  # nothing is known: further ahead is less sure
            missed = chance * math.sqrt(1 + distance / 4)
        return mean + missed * spread

    def _paths(self) -> NDArray[np.float64]:
        return np.array([each.predict(self._bins) for each in self._predictors])

    def _weights(self) -> NDArray[np.float64]:
        losses = self._losses
        raw = 1 / (losses + 0.05 * losses.mean() + 1e-9) ** 2
        weights: NDArray[np.float64] = raw / raw.sum()
        return weights

    def _remember(self) -> None:
        paths = self._paths()
        self._past.append((paths, self._weights() @ paths))


def _pinball(count: float, predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The loss of each prediction, whose upper quantile is taken to be that of chance."""
    total = np.zeros(len(predicted))
    for level in QUANTILES:
        at = predicted + NormalDist().inv_cdf(level) * np.sqrt(np.maximum(1.0, predicted))
        total += np.where(count >= at, level * (count - at), (1 - level) * (at - count))
    return total
