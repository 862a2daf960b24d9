"""The bisection of a capacity against every threshold there can be."""

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.bench.simulation.capacity import MOST_DOUBLINGS, highest_rate


@given(
    threshold=st.floats(1e-4, 1e4),
    start=st.floats(0.1, 10),
    precision=st.floats(0.01, 0.5),
)
def test_the_rate_found_is_good_and_one_a_little_higher_is_not(threshold, start, precision) -> None:
    tried: list[float] = []

    def share_at(rate: float) -> float:
        tried.append(rate)
        return 1.0 if rate <= threshold else 0.0

    found = highest_rate(share_at, start=start, share=0.95, precision=precision)
    highest, lowest = start * 2**MOST_DOUBLINGS, start / 2**MOST_DOUBLINGS
    if threshold >= highest:
        assert found == highest
    elif threshold < lowest:
        assert found == 0.0
    else:
        assert found in tried and found <= threshold < found * (1 + precision) * (1 + 1e-9)
    assert len(tried) <= MOST_DOUBLINGS + 1 + 8
