"""Days of a shape: as busy as their curve, with sessions that stay whole."""

import numpy as np
import pytest

from dynamo_router.bench.traces import build_tree, columns_of
from dynamo_router.bench.traffic import SHAPES, TRAFFIC_BLOCK_SIZE, shape_traffic

REQUESTS, RATE = 6000, 5.0
DAY_S = REQUESTS / RATE


def times_of(name: str, seed: int = 0) -> np.ndarray:
    found = shape_traffic(name, REQUESTS, rate=RATE, seed=seed)
    times = np.array([each.timestamp_ms for each in found]) / 1e3
    assert len(times) == REQUESTS and (np.diff(times) >= 0).all()
    assert times[-1] == pytest.approx(DAY_S, rel=0.01)
    return times


@pytest.mark.parametrize("name", SHAPES)
def test_equal_seeds_make_equal_days_whose_ids_are_prefixes(name: str) -> None:
    made = shape_traffic(name, 400, rate=RATE, seed=3)
    assert made == shape_traffic(name, 400, rate=RATE, seed=3)
    assert made != shape_traffic(name, 400, rate=RATE, seed=4)
    build_tree(columns_of(made, trace_block_size=TRAFFIC_BLOCK_SIZE))


def test_sinus_is_four_times_as_busy_at_noon() -> None:
    counts = np.histogram(times_of("sinus"), 20, (0, DAY_S))[0]
    assert counts[9:11].mean() / counts[[0, -1]].mean() == pytest.approx(4, rel=0.25)


def test_a_step_is_five_times_and_stays() -> None:
    counts = np.histogram(times_of("step"), 60, (0, DAY_S))[0].astype(float)
    at = int(np.argmax(np.diff(counts))) + 1
    assert 0.25 < at / 60 < 0.65
    assert counts[at + 2 :].mean() / counts[: at - 1].mean() == pytest.approx(5, rel=0.2)


def test_a_spike_is_a_minute_of_ten_times_elsewhere_each_day() -> None:
    places = []
    for seed in (0, 1):
        times = times_of("spike", seed)
        seconds = np.histogram(times, int(DAY_S), (0, DAY_S))[0].astype(float)
        minute = np.convolve(seconds, np.ones(60), "valid")
        at = int(np.argmax(minute))
        rest = (REQUESTS - minute[at]) / (DAY_S - 60)
        assert minute[at] / 60 / rest == pytest.approx(10, rel=0.3)
        places.append(at)
    assert abs(places[0] - places[1]) > 30


def test_silence_is_silent_in_the_middle() -> None:
    times = times_of("silence")
    inside = (times > DAY_S / 3 + 2) & (times < 2 * DAY_S / 3 - 2)
    assert not inside.any()


def test_azure_has_the_published_medians() -> None:
    made = shape_traffic("azure", REQUESTS, rate=RATE, seed=0)
    assert np.median([each.input_length for each in made]) == pytest.approx(1020, rel=0.1)
    assert np.median([each.output_length for each in made]) == pytest.approx(129, rel=0.1)
    counts = np.histogram(times_of("azure"), 24, (0, DAY_S))[0]
    assert counts.max() / counts.min() == pytest.approx(3.3, rel=0.25)


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(KeyError):
        shape_traffic("square", 10, rate=1.0, seed=0)
