"""StreamUpkeep: whose turn a snapshot is, what may go, and which readers count for nothing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.runtime.event_planes.jetstream.stream_upkeep import (
    STALE_S,
    TURN_S,
    ReaderFact,
    StreamUpkeep,
    UpkeepPlan,
)


def plan(upkeep: StreamUpkeep, now: float, **more: Any) -> UpkeepPlan:
    facts = {"first": 1, "last": 0, "read": 0, "readers": [], "snapshot": None} | more
    return upkeep.plan(now, **facts)


def reader(name: str, acked: int, bound: bool = True) -> ReaderFact:
    return ReaderFact(name, acked, bound)


def test_a_snapshot_is_due_when_many_messages_are_behind_it() -> None:
    upkeep = StreamUpkeep("a", threshold=10, interval_s=60)
    assert not plan(upkeep, 0, read=9).save
    assert plan(upkeep, 1, read=10).save
    assert not plan(upkeep, 2, read=10, snapshot=10).save
    assert not plan(upkeep, 3, read=19, snapshot=10).save
    assert plan(upkeep, 4, read=20, snapshot=10).save


def test_a_snapshot_is_due_when_it_is_old_and_not_of_now() -> None:
    upkeep = StreamUpkeep("a", threshold=1000, interval_s=60)
    assert not plan(upkeep, 0, read=5, snapshot=5).save
    assert not plan(upkeep, 61, read=5, snapshot=5).save
    assert plan(upkeep, 62, read=6, snapshot=5).save


def test_routers_take_turns_by_their_names() -> None:
    readers = [reader("a", 10), reader("b", 10), reader("c", 10)]
    first, second = (StreamUpkeep(n, threshold=10, interval_s=60) for n in "ab")
    assert plan(first, 0, read=10, readers=readers).save
    assert not plan(second, 0, read=10, readers=readers).save
    assert not plan(second, TURN_S - 0.1, read=10, readers=readers).save
    assert plan(second, TURN_S, read=10, readers=readers).save  # the first one did not
    assert not plan(first, 1, read=10, readers=readers).save  # it has tried


def test_nothing_goes_without_a_snapshot_or_below_the_threshold() -> None:
    upkeep = StreamUpkeep("a", threshold=10, interval_s=60)
    assert plan(upkeep, 0, last=50, read=50).purge_below is None
    assert plan(upkeep, 1, last=10, read=10, snapshot=10).purge_below is None


def test_what_goes_is_behind_every_living_reader() -> None:
    upkeep = StreamUpkeep("a", threshold=10, interval_s=60)
    readers = [reader("a", 50), reader("slow", 20), reader("gone", 3, bound=False)]
    facts = {"last": 50, "read": 50, "snapshot": 45, "readers": readers}
    assert plan(upkeep, 0, **facts).purge_below == 4  # it may come back
    assert plan(upkeep, 1, first=4, **facts).purge_below is None
    late = plan(upkeep, STALE_S, first=4, **facts)
    assert late.purge_below == 21 and late.remove == ["gone"]


def test_a_reader_that_comes_back_in_time_stays() -> None:
    upkeep = StreamUpkeep("a", threshold=10, interval_s=60)
    assert plan(upkeep, 0, readers=[reader("b", 1, bound=False)]).remove == []
    assert plan(upkeep, STALE_S - 1, readers=[reader("b", 1)]).remove == []
    assert plan(upkeep, STALE_S + 1, readers=[reader("b", 1, bound=False)]).remove == []


def test_a_router_does_not_remove_itself() -> None:
    upkeep = StreamUpkeep("a", threshold=10, interval_s=60)
    for now in (0, 2 * STALE_S):
        assert plan(upkeep, now, readers=[reader("a", 1, bound=False)]).remove == []


@given(
    snapshot=st.none() | st.integers(0, 60),
    acked=st.lists(st.integers(0, 60), max_size=4),
    first=st.integers(1, 60),
    threshold=st.integers(1, 80),
)
def test_nobody_loses_what_is_still_to_be_read(
    snapshot: int | None, acked: list[int], first: int, threshold: int
) -> None:
    upkeep = StreamUpkeep("r0", threshold=threshold, interval_s=60)
    readers = [reader(f"r{number}", floor) for number, floor in enumerate(acked)]
    below = plan(
        upkeep, 0, first=first, last=60, read=60, readers=readers, snapshot=snapshot
    ).purge_below
    if below is not None:
        assert snapshot is not None and first < below <= snapshot + 1
        assert all(below <= floor + 1 for floor in acked)
