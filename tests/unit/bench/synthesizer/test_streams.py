"""The synthesizer's randomness: independent streams, fair passes, distributions, arrivals."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.bench.synthesizer.arrivals import learn_arrivals
from dynamo_router.bench.synthesizer.empirical import empirical
from dynamo_router.bench.synthesizer.streams import Streams, passes


def test_a_stream_is_a_function_of_seed_and_purpose() -> None:
    def numbers(seed: int, purpose: str) -> list[float]:
        stream = Streams(seed)[purpose]
        return [stream.random() for _ in range(50)]

    assert numbers(1, "steps") == numbers(1, "steps")
    assert len({tuple(numbers(seed, name)) for seed in range(3) for name in "abc"}) == 9
    # Golden: a change would make every published seed mean another trace.
    assert numbers(1, "steps")[0] == pytest.approx(GOLDEN)
    together = np.corrcoef([numbers(seed, name) for seed in range(4) for name in "abc"])
    assert np.abs(together - np.eye(12)).max() < 0.6


GOLDEN = 0.5496688117290734


@given(
    st.lists(st.integers(), max_size=20),
    st.none() | st.integers(1, 30),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_every_pass_has_every_item_once(
    items: list[int], held: int | None, rounds: int, seed: int
) -> None:
    drawn = list(islice(passes(items, Streams(seed)["x"], held), rounds * len(items)))
    for start in range(0, len(drawn), max(1, len(items))):
        assert Counter(drawn[start : start + len(items)]) == Counter(items)
    if held == 1:
        assert drawn == items * rounds


def test_a_held_pass_keeps_its_course() -> None:
    drawn = list(islice(passes(range(10_000), Streams(0)["x"], 10), 10_000))
    assert drawn != sorted(drawn)
    # Never early by more than what is held, and rarely late by much more.
    assert max(item - at for at, item in enumerate(drawn)) < 10
    assert np.mean([abs(item - at) for at, item in enumerate(drawn)]) < 12


def test_a_full_pass_is_an_even_shuffle() -> None:
    first = Counter(next(passes(range(4), Streams(seed)["x"])) for seed in range(2000))
    assert all(400 < count < 600 for count in first.values())


@settings(max_examples=60)
@given(st.lists(st.integers(-5, 50), min_size=1, max_size=40), st.floats(0.001, 1))
def test_a_distribution_is_its_samples(samples: list[int], share: float) -> None:
    found = empirical(samples)
    assert found.samples() == sorted(samples) and len(found) == len(samples)
    assert found.mean == pytest.approx(sum(samples) / len(samples))
    cdf = found.cdf
    assert (np.diff(cdf) > 0).all() and cdf[-1] == pytest.approx(1) and cdf[0] > 0
    value = found.quantile(share)
    assert sum(sample <= value for sample in samples) >= share * len(samples) - 1e-9
    assert sum(sample < value for sample in samples) < share * len(samples) + 1e-9


def test_a_distribution_of_nothing() -> None:
    assert len(empirical([])) == 0 and empirical([]).mean == 0 and empirical([]).samples() == []


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 3000.0]), min_size=1, max_size=200),
    st.integers(0, 3),
)
def test_a_pass_of_arrivals_takes_as_long_as_the_trace(gaps: list[float], seed: int) -> None:
    times = np.cumsum(gaps)
    process = learn_arrivals(times)
    drawn = list(islice(process.times(Streams(seed)["arrivals"]), 2 * len(times)))
    assert drawn[0] == 0 and drawn == sorted(drawn)
    first = drawn[: len(times)]
    # As many at an instant, and the same gaps: one is left out at the start, one joins.
    assert sorted(Counter(first).values()) == sorted(Counter(times.tolist()).values())
    assert process.span_ms == pytest.approx(times[-1] - times[0])
    largest = max(process.gaps_ms)
    assert abs(first[-1] - process.span_ms) <= largest + 1e-6


def test_bursts_stay_bursts() -> None:
    """Ten requests at a time, every three seconds, with an hour's silence in between."""
    instants = [*range(0, 300_000, 3000), *range(4_000_000, 4_300_000, 3000)]
    times = np.repeat(np.array(instants, np.float64), 10)
    drawn = np.array(list(islice(learn_arrivals(times).times(Streams(3)["x"]), len(times))))
    assert (np.unique(drawn, return_counts=True)[1] == 10).all()
    gaps = np.diff(np.unique(drawn))
    assert (gaps > 3_000_000).sum() <= 2 and np.median(gaps) == 3000
