"""Of how many last bins arrivals are of one rate, but for chance."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SURE = 3.0
"""Standard deviations of chance, for the most different of some dozen ways to part a stretch."""


SETTLED = 4.0
"""Standard deviations of chance, for the most different of some hundred ways to part an hour."""
TOGETHER = 8
"""Bins whose totals are compared with those before: sessions last for longer than a bin."""


def is_one_rate(counts: Sequence[float], dispersion: float) -> bool:
    """Whether all `counts`, an hour of them, are of one rate but for chance. `dispersion` as of
    `steady_bins`."""
    stretch = np.array(counts, np.float64)
    return len(stretch) > 1 and bool(_apart(stretch, dispersion).max() <= SETTLED)


def dispersion_of(counts: Sequence[float]) -> float:
    """The variance of counts, of their mean, as those of two minutes differ from the two before: in
    the median, which neither a jump nor a slope changes much. At least 1."""
    whole = np.array(counts, np.float64)[len(counts) % TOGETHER :].reshape(-1, TOGETHER).sum(axis=1)
    if len(whole) < 2 or not whole.any():
        return 1.0
    of_normal = 2 * 0.455  # the median square of a difference of two, beside their variance
    return max(1.0, float(np.median(np.diff(whole) ** 2) / (of_normal * whole.mean())))


def steady_bins(counts: Sequence[float], dispersion: float, ahead: Sequence[float] = ()) -> int:
    """The longest stretch of last `counts` that is of one rate: wherever it is parted, arrivals
    before and after differ by no more than chance. 0 where counts expected `ahead` differ from it.

    `dispersion`: the variance of counts, of their mean: 1 if each request comes by itself.
    """
    stretch = np.array(counts, np.float64)
    while len(stretch) > 1:
        apart = _apart(stretch, dispersion)
        if apart.max() <= SURE:
            break
        stretch = stretch[-1 - int(np.argmax(apart)) :]
    if len(stretch) and len(ahead):
        whole = np.concatenate([stretch, ahead])
        if _apart(whole, dispersion)[len(ahead) - 1] > SURE:
            return 0
    return len(stretch)


def _apart(counts: NDArray[np.float64], dispersion: float) -> NDArray[np.float64]:
    """By how many standard deviations the last n bins, n from 1 on, differ from all: each arrival
    is as likely in any bin, so those of some bins are binomial."""
    share = np.arange(1, len(counts)) / len(counts)
    total = float(counts.sum())
    chance = np.sqrt(np.maximum(1.0, dispersion * total * share * (1 - share)))
    found: NDArray[np.float64] = np.abs(np.cumsum(counts[::-1])[:-1] - total * share) / chance
    return found
