"""Time in which a process looked at nothing counts for nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.clock import STALLED_S
from dynamo_router.base.lost_time import MOST_STALLS, LostTime


def test_without_a_stall_all_time_counts() -> None:
    lost = LostTime()
    for n in range(10):
        lost.expect(n + 1.0)
        assert not lost.on_look(n + 1.0 + STALLED_S / 2)
    assert lost.waited(0.0, 10.0) == 10.0


def test_a_stall_counts_for_what_waited_through_it_alone() -> None:
    lost = LostTime()
    lost.expect(5.0)
    assert lost.on_look(65.0)
    lost.expect(65.5)
    assert not lost.on_look(65.5)
    assert lost.waited(4.0, 66.0) == pytest.approx(2.0)
    assert lost.waited(35.0, 66.0) == pytest.approx(1.0)
    assert lost.waited(65.0, 66.0) == 1.0


def test_a_stall_counts_before_it_was_noted() -> None:
    """A time-out may fire before the look that is late, too."""
    lost = LostTime()
    lost.expect(5.0)
    assert lost.waited(4.0, 65.0) == pytest.approx(1.0)
    assert lost.waited(4.0, 5.0 + STALLED_S / 2) == pytest.approx(1.0 + STALLED_S / 2)


def test_a_process_that_is_always_late_looks_each_other_time() -> None:
    lost = LostTime()
    late = []
    for n in range(6):
        lost.expect(10.0 * n)
        late.append(lost.on_look(10.0 * n + 5.0))
    assert late == [True, False] * 3


def test_what_is_kept_of_stalls_is_bounded() -> None:
    lost = LostTime()
    for n in range(4 * MOST_STALLS):
        lost.expect(10.0 * n)
        lost.on_look(10.0 * n + 5.0)
    assert lost.waited(0.0, 40.0 * MOST_STALLS) == 40.0 * MOST_STALLS - 5.0 * MOST_STALLS


class Counted(float):
    """A time that counts what it is compared with."""

    compared = 0

    def _counted(self) -> float:
        Counted.compared += 1
        return float(self)

    def __lt__(self, other: float) -> bool:
        return self._counted() < other

    def __le__(self, other: float) -> bool:
        return self._counted() <= other

    def __gt__(self, other: float) -> bool:
        return self._counted() > other

    def __ge__(self, other: float) -> bool:
        return self._counted() >= other


def test_many_stalls_make_a_look_hardly_slower() -> None:
    """Each request in flight asks several times in a look: a look that took long would be the next
    stall."""
    lost = LostTime()
    for n in range(MOST_STALLS):
        lost.expect(10.0 * n)
        lost.on_look(10.0 * n + 5.0)
    since = Counted(-1.0)
    Counted.compared = 0
    assert lost.waited(since, 10.0 * MOST_STALLS) == 5.0 * MOST_STALLS + 1.0
    assert 0 < Counted.compared < 16


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20),
    st.integers(0, 200),
    st.integers(0, 40),
)
def test_each_second_is_looked_at_or_lost(
    turns: list[tuple[int, int]], since: int, later: int
) -> None:
    lost, now, seconds = LostTime(), 0, set()
    for pause, late in turns:
        lost.expect(now + pause)
        if late:
            seconds.update(range(now + pause, now + pause + late))
        now += pause + late
        lost.on_look(now)
    since = min(since, now)
    until = now + later
    assert lost.waited(since, until) == len(set(range(since, until)) - seconds)
