"""Confidence intervals: of a ratio over paired seeds, and of a mean over many cells."""

import math
from collections.abc import Sequence
from random import Random
from statistics import mean, stdev

# Student's t, two-sided 95 %, by degrees of freedom from 1; beyond, that of the last is kept, which
# makes intervals a little too wide.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
RESAMPLES = 2000


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float]
) -> tuple[float, float, float]:
    """The ratio of two means over paired samples, and its 95 % confidence interval.

    Student's t on the logarithm, by the delta method: the spread is that of the pairs' differences
    of n / mean(n) - d / mean(d), so what moves both alike does not count. (0, inf) around the ratio
    of a single pair; both means must be above 0 and finite.
    """
    top, bottom = mean(numerators), mean(denominators)
    ratio = top / bottom
    if len(numerators) < 2:
        return ratio, 0.0, math.inf
    apart = [n / top - d / bottom for n, d in zip(numerators, denominators, strict=True)]
    freedom = len(apart) - 1
    reach = STUDENT_T[min(freedom, len(STUDENT_T)) - 1] * stdev(apart) / math.sqrt(len(apart))
    return ratio, ratio * math.exp(-reach), ratio * math.exp(reach)


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one value, all above 0."""
    return math.exp(mean(map(math.log, values)))


def bootstrap_interval(samples: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The 95 % interval of the geometric mean over groups (cells) of samples (seeds), all above 0.

    Percentile bootstrap at two levels: each of RESAMPLES times as many groups are drawn with
    replacement as there are, and of each as many samples. So it shows how far the mean may move
    with other cells of the same kind as well as with other seeds.
    """
    logs = [[math.log(value) for value in group] for group in samples]
    draw = Random(0).random
    means = []
    for _ in range(RESAMPLES):
        total = 0.0
        for _ in logs:
            group = logs[int(draw() * len(logs))]
            total += sum(group[int(draw() * len(group))] for _ in group) / len(group)
        means.append(total / len(logs))
    means.sort()
    low, high = means[round(0.025 * (RESAMPLES - 1))], means[round(0.975 * (RESAMPLES - 1))]
    return math.exp(low), math.exp(high)
