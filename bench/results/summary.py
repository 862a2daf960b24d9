"""Summaries of samples: means, percentiles, and how far rounds of a benchmark lie apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Summary:
    """Mean and percentiles of some samples, in their unit; all None where there were none."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


def percentiles(samples: ArrayLike, *wanted: float) -> list[float]:
    """The wanted percentiles of at least one sample.

    Percentile q of n sorted samples stands at rank (n - 1) * q / 100, counted from 0; between two
    samples it is interpolated linearly. This is the only definition of a percentile in the project.
    """
    values = np.asarray(samples, np.float64)
    found: list[float] = np.percentile(values, wanted, method="linear").tolist()
    return found


def summarise(samples: ArrayLike) -> Summary:
    """The mean and the percentiles of `samples`."""
    values = np.asarray(samples, np.float64)
    if values.size == 0:
        return Summary()
    p50, p90, p99 = percentiles(values, 50, 90, 99)
    return Summary(float(values.mean()), p50, p90, p99)


def summarise_weighted(samples: ArrayLike, counts: ArrayLike) -> Summary:
    """As `summarise`, of samples that each occur as often as `counts` says."""
    values, weights = np.asarray(samples, np.float64), np.asarray(counts, np.int64)
    total = int(weights.sum())
    if total == 0:
        return Summary()
    order = np.argsort(values)
    ordered, ends = values[order], np.cumsum(weights[order])
    # Each percentile's rank, and its two neighbours among the samples as if they were spelt out.
    ranks = (total - 1) * np.array([50.0, 90.0, 99.0]) / 100
    below = np.floor(ranks).astype(np.int64)
    low = ordered[np.searchsorted(ends, below, side="right")]
    high = ordered[np.searchsorted(ends, np.ceil(ranks).astype(np.int64), side="right")]
    p50, p90, p99 = (low + (high - low) * (ranks - below)).tolist()
    return Summary(float(values @ weights) / total, p50, p90, p99)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of some rounds of a benchmark, at least one: their median, and how far they lie apart."""
    return {"median": median(values), "min": min(values), "max": max(values)}
