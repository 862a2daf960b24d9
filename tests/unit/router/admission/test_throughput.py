"""When a request that finds no room is told to come again: the rate at which others go."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.router.admission.queue import AdmissionQueue
from dynamo_router.router.admission.throughput import MOST_COUNTED, Throughput
from dynamo_router.router.admission.ticket import Ticket


def full_queue(limit: int) -> tuple[AdmissionQueue, ManualClock, list[float]]:
    """A queue with no place left, its clock, and seconds until a worker is free."""
    clock, free_in = ManualClock(1.0), [math.inf]
    queue = AdmissionQueue(lambda lane: free_in[0], limit=limit, now=clock.now)
    for place in range(limit):
        queue.enter(lambda place=place: Ticket(str(place), clock.now()))  # type: ignore[misc]
    return queue, clock, free_in


def refused(queue: AdmissionQueue) -> float:
    with pytest.raises(NoWorkersError) as raised:
        queue.enter(lambda: Ticket("more", 0.0))
    assert raised.value.retry_after_s is not None
    return raised.value.retry_after_s


def test_a_refused_request_comes_again_when_those_that_wait_have_gone() -> None:
    queue, clock, free_in = full_queue(20)
    free_in[0] = 0.0
    for turn in range(10):
        clock.advance(0.5)
        assert queue.next() is not None
        queue.enter(lambda turn=turn: Ticket(f"later {turn}", clock.now()))  # type: ignore[misc]
    assert refused(queue) == pytest.approx(20 * 0.5)


def test_who_gives_up_makes_room_as_who_goes() -> None:
    queue, clock, _ = full_queue(4)
    clock.advance(3.0)
    assert queue.discard("2")
    queue.enter(lambda: Ticket("new", clock.now()))
    assert refused(queue) == pytest.approx(4 * 3.0)


def test_a_queue_that_was_empty_has_no_pace_of_before() -> None:
    queue, clock, free_in = full_queue(2)
    clock.advance(50.0)
    free_in[0] = 0.0
    while queue.next() is not None:
        pass
    clock.advance(1000.0)
    for place in range(2):
        queue.enter(lambda place=place: Ticket(f"b{place}", 0.0))  # type: ignore[misc]
    assert refused(queue) == 0.0


def test_without_a_clock_nothing_is_foreseen() -> None:
    queue = AdmissionQueue(lambda lane: math.inf, limit=1)
    queue.enter(lambda: Ticket("a", 0.0))
    assert refused(queue) == 0.0


@given(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=3 * MOST_COUNTED), st.integers(1, 999))
def test_a_pace_is_that_of_late_and_within_what_was_seen(gaps: list[float], waiting: int) -> None:
    rate, now = Throughput(), 100.0
    rate.on_first(now)
    for gap in gaps:
        now += gap
        rate.on_gone(now)
    each = rate.seconds(waiting, now) / waiting
    assert min(gaps) / 2.1 <= each <= max(gaps) * 1.05
    if len(gaps) < MOST_COUNTED:
        assert each == pytest.approx(sum(gaps) / len(gaps))


def test_a_pace_that_changes_is_followed() -> None:
    rate, now = Throughput(), 0.0
    rate.on_first(now)
    for gap in (1.0, 0.01):
        for _ in range(4 * MOST_COUNTED):
            now += gap
            rate.on_gone(now)
    assert rate.seconds(1, now) < 0.2
