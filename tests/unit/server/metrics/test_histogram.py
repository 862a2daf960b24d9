"""Histograms that sort late."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import HistogramMetricFamily

from dynamo_router.server.metrics.histogram import FOLD_AT, Histogram, HistogramRow

BOUNDS = (1, 2, 4)


def buckets(family: HistogramMetricFamily) -> dict[str, float]:
    samples = family.samples
    return {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}


@given(st.lists(st.floats(0, 8, width=16), max_size=50))
def test_buckets_are_cumulative_and_take_their_bound_in(values: list[float]) -> None:
    histogram = Histogram("h", "", BOUNDS)
    for value in values:
        histogram.observe(value)
    wanted = {str(float(b)): sum(v <= b for v in values) for b in BOUNDS}
    assert buckets(histogram.family()) == {**wanted, "+Inf": len(values)}
    (total,) = [s.value for s in histogram.family().samples if s.name == "h_sum"]
    assert np.isclose(total, sum(values))


def test_what_waits_is_bounded() -> None:
    histogram = Histogram("h", "", BOUNDS)
    for _ in range(3 * FOLD_AT + 5):
        histogram.observe(1.0)
        assert len(histogram.new) < FOLD_AT
    assert buckets(histogram.family())["+Inf"] == 3 * FOLD_AT + 5


@given(st.lists(st.tuples(st.floats(0, 8, width=16), st.floats(0, 8, width=16)), max_size=50))
def test_a_row_is_the_same_as_its_histograms_one_by_one(rows: list[tuple[float, float]]) -> None:
    pairs = [(Histogram("h", "", BOUNDS), Histogram("g", "", (3,))) for _ in range(2)]
    together, apart = pairs
    row = HistogramRow(*together)
    for values in rows:
        row.observe(*values)
        for histogram, value in zip(apart, values, strict=True):
            histogram.observe(value)
    row.fold()
    row.fold()  # counts nothing twice
    for one, other in zip(together, apart, strict=True):
        assert one.family().samples == other.family().samples


def test_what_waits_of_a_row_is_bounded() -> None:
    histogram = Histogram("h", "", BOUNDS)
    row = HistogramRow(histogram)
    for _ in range(FOLD_AT + 1):
        row.observe(1.0)
        assert len(row._new) < FOLD_AT
    assert buckets(histogram.family())["+Inf"] == FOLD_AT
