"""Confidence intervals against what they are defined by."""

import math
from random import Random
from statistics import mean

import pytest

from dynamo_router.bench.results.confidence import (
    bootstrap_interval,
    geometric_mean,
    ratio_interval,
)


def test_the_interval_of_a_ratio_is_students_t_over_the_pairs() -> None:
    ratio, low, high = ratio_interval([90.0, 110.0], [100.0, 100.0])
    # Differences -0.1 and 0.1: a standard deviation of 0.1414, over the root of 2 0.1.
    assert ratio == 1.0
    assert (low, high) == (pytest.approx(math.exp(-1.2706)), pytest.approx(math.exp(1.2706)))
    assert ratio_interval([3.0], [2.0]) == (1.5, 0.0, math.inf)


def test_what_moves_both_of_a_pair_alike_does_not_widen_it() -> None:
    ratio, low, high = ratio_interval([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert ratio == low == high == 0.5


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    draw = Random(5).gauss
    held = 0
    for _ in range(400):
        shared = [draw(100, 20) for _ in range(4)]
        own = [0.9 * each + draw(0, 3) for each in shared]
        best = [each + draw(0, 3) for each in shared]
        _, low, high = ratio_interval(own, best)
        held += low <= 0.9 <= high
    assert 0.90 <= held / 400 <= 0.99


def test_the_bootstrap_holds_the_mean_and_narrows_with_more_cells() -> None:
    draw = Random(7).gauss
    samples = [[math.exp(draw(0.1, 0.2)) for _ in range(4)] for _ in range(40)]
    low, high = bootstrap_interval(samples)
    middle = geometric_mean([geometric_mean(group) for group in samples])
    assert low < middle < high
    few = bootstrap_interval(samples[:5])
    assert high / low < few[1] / few[0]
    assert bootstrap_interval(samples) == (low, high)
    assert bootstrap_interval([[2.0, 2.0]]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert mean([low, high]) > 1
