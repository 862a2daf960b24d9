"""A policy's figures beside the best baseline's: for each figure the one that is best at it."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from ..results import ratio_interval
from .figures import Figures

LOWER_IS_BETTER = ("ttft", "ttft_p99", "e2e", "engine_s_per_1000_good", "balance")
LEAST_SHARE = 0.05
"""A goodput below counts as this in ratios: so far beyond its capacity a fleet's is noise."""


class Comparison(NamedTuple):
    """Means over the same seeds, and the policy's over the best baseline's.

    Below 1 the ratio is a gain in latencies and engine seconds, above 1 in all else. It is None
    where it cannot be computed: the baseline's mean is 0 or infinite. `low` and `high` are its 95 %
    interval over paired seeds.
    """

    own: float
    best: float
    rival: str  # the baseline that has the best mean
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    by_seed: tuple[float, ...] = ()  # the ratio with each seed, where there is one


def compare_figure(
    key: str, mine: Sequence[Figures], rivals: Mapping[str, Sequence[Figures]]
) -> Comparison | None:
    """One figure of the policy's runs and of each baseline's, with the same seeds in that order.

    The baseline is chosen by the very runs it is compared with, which flatters it, not the policy.
    None unless all runs have the figure.
    """
    runs = [*mine, *(run for each in rivals.values() for run in each)]
    if not rivals or not all(key in run for run in runs):
        return None
    pick = min if key in LOWER_IS_BETTER else max
    rival = pick(rivals, key=lambda name: mean(run[key] for run in rivals[name]))
    own, best = ([run[key] for run in each] for each in (mine, rivals[rival]))
    found = Comparison(mean(own), mean(best), rival)
    if not 0 < found.best < math.inf:
        return found
    if key.startswith("goodput"):
        own, best = ([max(LEAST_SHARE, each) for each in shares] for shares in (own, best))
    if not 0 < mean(own) < math.inf:
        return found._replace(ratio=mean(own) / mean(best))
    ratio, low, high = ratio_interval(own, best)
    by_seed = tuple(a / b for a, b in zip(own, best, strict=True)) if min(own + best) > 0 else ()
    return found._replace(ratio=ratio, low=low, high=high, by_seed=by_seed)


def how_far_behind(key: str, ratio: float) -> float:
    """The ratio turned so that above 1 the policy is behind the best baseline."""
    if key in LOWER_IS_BETTER:
        return ratio
    return 1 / ratio if ratio > 0 else math.inf
