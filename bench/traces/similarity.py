"""How far two traces lie apart: a distance for each property that matters to routing."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .analysis import Samples
from .cache_curve import default_sizes


def trace_distances(one: Samples, other: Samples) -> dict[str, float]:
    """Distances from 0 (alike) to 1, by name.

    Those of distributions are Kolmogorov-Smirnov's: the largest difference between the shares below
    any value; reuse distances are weighted by tokens. That of the hit-rate curve is the largest
    difference between the hit rates at 125k tokens and its doublings. Those of the joint ones are
    differences of rank correlations, halved.
    """
    largest = max(samples.reuse_distance.max(initial=0) for samples in (one, other))
    sizes = default_sizes(int(largest))
    rates = [np.array([rate for _, rate in samples.curve.curve(sizes)]) for samples in (one, other)]
    return {
        "input_length": ks_distance(one.input_length, other.input_length),
        "output_length": ks_distance(one.output_length, other.output_length),
        "context_length": ks_distance(one.context_length, other.context_length),
        "interarrival_time": ks_distance(one.interarrival_s, other.interarrival_s),
        "reuse_distance": ks_distance(
            one.reuse_distance, other.reuse_distance, one.reuse_tokens, other.reuse_tokens
        ),
        "hit_rate_curve": float(np.abs(rates[0] - rates[1]).max()),
        "session_size": ks_distance(one.session_size, other.session_size),
        "session_span": ks_distance(one.session_span_s, other.session_span_s),
        "history_taken_over": ks_distance(one.history_share, other.history_share),
        "prefix_interarrival_time": ks_distance(one.gap_s, other.gap_s),
        "input_with_output": _joint(one, other, "input_length", "output_length"),
        "context_with_output": _joint(one, other, "context_length", "output_length"),
        "context_with_unique": _joint(one, other, "context_length", "unique_prompt_length"),
    }


def ks_distance(
    one: ArrayLike,
    other: ArrayLike,
    one_weights: ArrayLike | None = None,
    other_weights: ArrayLike | None = None,
) -> float:
    """The largest difference between two (weighted) cumulative distributions.

    1 if only one of them has samples, 0 if neither.
    """
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if not len(first) or not len(second):
        return float(len(first) != len(second))
    places = np.unique(np.concatenate([first, second]))
    return float(
        np.abs(_below(first, one_weights, places) - _below(second, other_weights, places)).max()
    )


def rank_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's: how far larger goes with larger, from -1 to 1; 0 where nothing varies."""
    ranks = [_ranks(np.asarray(values)) for values in (one, other)]
    deviations = [rank - rank.mean() for rank in ranks] if len(ranks[0]) else ranks
    scale = float(np.sqrt((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum()))
    return float((deviations[0] * deviations[1]).sum()) / scale if scale else 0.0


def _below(
    values: NDArray[np.float64], weights: ArrayLike | None, places: NDArray[np.float64]
) -> NDArray[np.float64]:
    order = np.argsort(values, kind="stable")
    weight = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)[order]
    summed = np.concatenate([[0.0], np.cumsum(weight)])
    found: NDArray[np.float64] = summed[np.searchsorted(values[order], places, "right")]
    found /= summed[-1]
    return found


def _ranks(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Ranks, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return found


def _joint(one: Samples, other: Samples, first: str, second: str) -> float:
    correlations = [
        rank_correlation(getattr(samples, first), getattr(samples, second))
        for samples in (one, other)
    ]
    return abs(correlations[0] - correlations[1]) / 2
