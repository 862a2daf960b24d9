"""ArrivalForecast: how many requests come in the next bins, by quantiles.

Predictors are weighted by their recent pinball loss, half the horizon ahead. Quantiles are those of
what forecasts have missed by in all bins of a block together: bins miss in both directions, and the
sum of their quantiles is more than the quantile of their sum. They are at least those of chance.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .predictors import Holt, Kalman, LastValue, Path, Predictor, Seasonal
from .steady import dispersion_of, is_one_rate, steady_bins

QUANTILES = (0.5, 0.9)
"""At which a predictor's loss is taken: too little costs more than too much."""
LOSS_MEMORY = 0.93  # of a bin for the next
RESIDUALS = 120  # bins kept for each distance ahead
LEAST_RESIDUALS = 8  # from which on their distribution counts
BLOCK = 5
"""Bins whose total is a quantile's, from the last bin ahead backwards: some dozen of 15 s are what
new engines serve."""
ALIKE = 4.0
"""times as many arrivals, or as few: what was missed by of others says nothing, as the end of a
silence says nothing of a busy hour."""
LEVEL_BINS = 4
"""that a forecast's level is at least the mean of, once there are as many."""
TRUSTED = 1.25
"""times the least loss of any predictor: up to that the season's is believed by itself."""
CHANCE = 2.0
"""standard deviations of a bin that the season may have lost more: a few bins say little."""
LONGEST_STRETCH = 40
"""Bins that are looked at for one rate."""
ONE_RATE_S = 3600.0
"""Seconds of one rate, the end of the day before among them, that say how the load is."""
JUMP_BINS = 3
"""that are of another rate than those before: arrivals have jumped, and are not less than that."""
LONGEST_JUMP = 240  # bins without data, after which what was seen before says nothing


class Forecast(NamedTuple):
    """Counts of the next bins: the mean path, and the weights of the predictors behind it."""

    bin_s: float
    mean: Path
    weights: dict[str, float]


class ArrivalForecast:
    """A series of counts in bins of `bin_s` seconds, and what comes next.

    `season`: counts of past bins, of one period before the first bin. What forecasts missed by
    then counts until there is more of today.
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
        ends = range(bins, 0, -BLOCK)
        self._blocks = [slice(max(0, end - BLOCK), end) for end in ends]
        self._residuals = [deque[tuple[float, float]](maxlen=RESIDUALS) for _ in self._blocks]
        """by blocks: what was expected, and what it was missed by, beside its square root"""
        self._counts = deque[float](maxlen=LONGEST_STRETCH)
        hour = math.ceil(ONE_RATE_S / bin_s)
        self._hour = deque[float](season[-hour:], maxlen=hour)
        self.seen = 0
        if season:
            self._begin_as(season)

    def update(self, count: float) -> None:
        """A bin's count. ValueError for one that is no finite number of at least 0."""
        if not (math.isfinite(count) and count >= 0):
            raise ValueError(f"{count} is no count of arrivals")
        if self._past:
            # About where new engines will serve: what is right there decides what to start.
            ahead = min(len(self._past), self._bins // 2 + 1)
            predicted = self._past[-ahead][0][:, ahead - 1]
            self._losses = LOSS_MEMORY * self._losses + _pinball(count, predicted)
        self._counts.append(count)
        self._hour.append(count)
        for block, residuals in zip(self._blocks, self._residuals, strict=True):
            # Forecasts were made one bin after the other: the last one saw this bin as its first.
            if block.stop <= len(self._past):
                expected = max(1.0, float(self._past[-block.stop][1][block].sum()))
                came = sum(islice(reversed(self._counts), block.stop - block.start))
                residuals.append((expected, (came - expected) / math.sqrt(expected)))
        for each in self._predictors:
            each.update(count)
        self.seen += 1
        self._remember()

    def skip(self, bins: int = 1) -> None:
        """Bins that are over, of unknown counts."""
        for _ in range(min(bins, LONGEST_JUMP)):
            for each in self._predictors:
                each.skip()
        self._past.clear()
        self._counts.clear()
        self._hour.clear()
        self._remember()

    def forecast(self) -> Forecast:
        """The mean path of the next bins."""
        paths = self._paths()
        weights = self._weights()
        shown = {
            each.name: round(float(w), 3) for each, w in zip(self._predictors, weights, strict=True)
        }
        return Forecast(self.bin_s, weights @ paths, shown)

    def quantile(self, level: float, dispersion: float = 1.0) -> Path:
        """The path whose total counts stay below with this chance, block by block. `dispersion`:
        the variance of counts, of their mean, that is chance."""
        path = self._expected(self._paths())
        # Smoother predictors would take minutes to believe a jump.
        path = np.maximum(path, self.jump(dispersion))
        for block, residuals in zip(self._blocks, self._residuals, strict=True):
            size, total = block.stop - block.start, float(path[block].sum())
            expected = max(1.0, total)
            alike = [by for of, by in residuals if expected / ALIKE <= of <= expected * ALIKE]
            wanted = total + self._missed(level, size, alike) * math.sqrt(expected)
            if total > 0:
                path[block] *= max(0.0, wanted) / total
            else:
                path[block] = max(0.0, wanted) / size
        return path

    def of_one_rate(self, level: float, dispersion: float) -> Path | None:
        """The path whose total counts stay below with this chance, where arrivals have been of one
        rate for ONE_RATE_S: what moves a forecast then is chance. None where they have not."""
        if not self.is_settled(dispersion):
            return None
        dispersion = max(dispersion, dispersion_of(self._hour))
        mean = sum(self._hour) / len(self._hour)
        path = np.full(self._bins, mean)
        for block in self._blocks:
            total = mean * (block.stop - block.start)
            more = NormalDist().inv_cdf(level) * math.sqrt(dispersion * total)
            path[block] *= 1 + more / max(1.0, total)
        return path

    def _expected(self, paths: NDArray[np.float64]) -> Path:
        """The weighted mean of the predictors. Where today goes on as the season did, a block has
        at least the season's arrivals: other predictors see no rise before it begins."""
        mean: Path = self._weights() @ paths
        if self._seasonal and self._trusts_season(float(mean[0])):
            for block in self._blocks:
                if paths[-1][block].sum() > mean[block].sum():
                    mean[block] = paths[-1][block]
        return mean

    def jump(self, dispersion: float) -> float:
        """Arrivals a bin since they have jumped; 0 where chance explains the last bins."""
        last = steady_bins(self._counts, dispersion)
        if last > JUMP_BINS or last == len(self._counts):
            return 0.0
        now = sum(islice(reversed(self._counts), last)) / last
        before = (sum(self._counts) - now * last) / (len(self._counts) - last)
        return now if now > before else 0.0

    def steady_s(self, dispersion: float) -> float:
        """For how long arrivals have been of one rate; 0 where the season says that it ends.
        `dispersion`: the variance of counts, of their mean, that is chance."""
        return self.bin_s * steady_bins(self._counts, dispersion, self._season_ahead())

    def is_settled(self, dispersion: float) -> bool:
        """Whether arrivals have been of one rate for ONE_RATE_S, and the season says no other.
        `dispersion` as of `steady_s`."""
        if len(self._hour) < (self._hour.maxlen or 0):
            return False
        # Sessions are not always known by their prompts: what counts have varied by is chance too.
        dispersion = max(dispersion, dispersion_of(self._hour))
        # The season's own counts: times how busy the last minute was, a burst would go on there.
        season = self._predictors[-1]
        trusted = self._seasonal and self._trusts_season(float(self.forecast().mean[0]))
        ahead = season.then(self._bins) if trusted and isinstance(season, Seasonal) else []
        return is_one_rate([*self._hour, *ahead], dispersion)

    def _season_ahead(self) -> list[float]:
        """What comes by the season, if there is one and today goes on as it did."""
        if self._seasonal and self._trusts_season(float(self.forecast().mean[0])):
            ahead: list[float] = self._predictors[-1].predict(self._bins).tolist()
            return ahead
        return []

    def _trusts_season(self, count: float) -> bool:
        """Whether today goes on as the season did, as far as losses can show."""
        least = float(self._losses.min()) + CHANCE * math.sqrt(max(1.0, count)) / TRUSTED
        return float(self._losses[-1]) <= TRUSTED * least

    def _missed(self, level: float, bins: int, residuals: Sequence[float]) -> float:
        """The quantile of what the total of some bins exceeds its forecast by, beside its square
        root."""
        # By chance: that of the bins, and that of those which the level was learnt from.
        known = min(max(1, self.seen), LEVEL_BINS)
        chance = NormalDist().inv_cdf(level) * math.sqrt(1 + bins / known)
        if len(residuals) < LEAST_RESIDUALS:
            return chance
        share = len(residuals) / (len(residuals) + LEAST_RESIDUALS)
        return share * float(np.quantile(residuals, level)) + (1 - share) * chance

    def _begin_as(self, season: Sequence[float]) -> None:
        """What forecasts missed by on the day before is known, and that today begins as it did."""
        before = ArrivalForecast(self.bin_s, self._bins)
        for each in season:
            before.update(each)
        self._residuals = before._residuals
        began = float(np.mean(season[:LEVEL_BINS]))
        for predictor in self._predictors[:-1]:
            for _ in range(LEVEL_BINS):
                predictor.update(began)

    def _paths(self) -> NDArray[np.float64]:
        return np.array([each.predict(self._bins) for each in self._predictors])

    def _weights(self) -> NDArray[np.float64]:
        losses = self._losses
        raw = 1 / (losses + 0.05 * losses.mean() + 1e-9) ** 2
        weights: NDArray[np.float64] = raw / raw.sum()
        return weights

    def _remember(self) -> None:
        paths = self._paths()
        self._past.append((paths, self._expected(paths)))


def _pinball(count: float, predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The loss of each prediction, whose upper quantile is taken to be that of chance."""
    total = np.zeros(len(predicted))
    for level in QUANTILES:
        at = predicted + NormalDist().inv_cdf(level) * np.sqrt(np.maximum(1.0, predicted))
        total += np.where(count >= at, level * (count - at), (1 - level) * (at - count))
    return total
