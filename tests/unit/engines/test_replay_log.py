"""The replay log: what is kept, what is sent again, and what is too old."""

import pytest

from dynamo_router.engines.replay_log import MIN_REPLAY_INTERVAL_S, ReplayLog


def log(*sizes: int, clear: int | None = None, **bounds: int) -> ReplayLog:
    """A log of messages with so many events each, from id 1 on; message k is `k` bytes of k."""
    made = ReplayLog(next_event_id=1, **{"max_events": 100, "max_bytes": 1000, **bounds})
    first = 1
    for number, size in enumerate(sizes, start=1):
        last = first + size - 1
        clear_id = clear if clear is not None and first <= clear <= last else None
        made.append(first, last, bytes([number] * number), clear_id)
        first = last + 1
    return made


def take(made: ReplayLog, first: int, last: int | None = None) -> list[int] | None:
    made.want(first, last)
    messages = made.take(0.0)
    return None if messages is None else [message[0] for message in messages]


@pytest.mark.parametrize(
    ("first", "last", "messages"),
    [
        (1, None, [1, 2, 3]),
        (2, 2, [1]),
        (3, 3, [2]),
        (2, 3, [1, 2]),
        (4, 99, [3]),
        (6, None, [3]),
        (7, None, []),  # the next one: nothing is missing
        (8, None, None),  # was never sent
        (0, None, [1, 2, 3]),
    ],
)
def test_the_messages_with_the_missing_events(
    first: int, last: int | None, messages: list[int] | None
) -> None:
    assert take(log(2, 1, 3), first, last) == messages


@pytest.mark.parametrize("bounds", [{"max_events": 4}, {"max_bytes": 5}])
def test_what_is_too_old_is_kept_no_more(bounds: dict[str, int]) -> None:
    made = log(2, 1, 3, **bounds)
    assert made.kept_events == 4
    assert take(made, 2) is None and take(made, 3) == [2, 3]


@pytest.mark.parametrize("bounds", [{"max_events": 0}, {"max_bytes": 0}])
def test_a_log_without_room_keeps_nothing(bounds: dict[str, int]) -> None:
    made = log(1, 1, **bounds)
    assert made.kept_events == 0
    assert take(made, 2) is None and take(made, 3) == []


def test_an_event_before_the_first_one_was_never_sent() -> None:
    assert take(log(2, 1, 3), 0) == take(log(2, 1, 3), 1)
    assert take(log(2, 1, 3), 0, 0) == []


def test_before_the_first_message_nothing_is_missing() -> None:
    assert take(log(), 1) == [] and take(log(), 2) is None


@pytest.mark.parametrize(
    ("first", "last", "messages"),
    [(1, 2, [3]), (1, None, [3, 4]), (4, 9, [3, 4]), (5, None, [4])],
)
def test_what_a_clearing_made_worthless_is_left_out(
    first: int, last: int | None, messages: list[int]
) -> None:
    assert take(log(2, 1, 1, 3, clear=4), first, last) == messages


def test_a_clearing_that_is_kept_heals_what_is_too_old() -> None:
    made = log(2, 1, 1, 3, clear=4, max_events=4)
    assert take(made, 1) == [3, 4]
    assert take(log(2, 1, 1, 3, clear=3, max_events=4), 1) is None


def test_requests_in_between_become_one() -> None:
    made = log(1, 1, 1, 1, 1)
    assert made.wait_s(5.0) is None
    made.want(3, 3)
    assert made.wait_s(5.0) == 0.0
    assert made.take(5.0) == [bytes([3] * 3)]
    for first, last in ((4, 4), (2, 2), (3, 3)):
        made.want(first, last)
    assert made.wait_s(5.0) == pytest.approx(MIN_REPLAY_INTERVAL_S)
    assert made.wait_s(6.0) == 0.0
    assert [message[0] for message in made.take(6.0) or ()] == [2, 3, 4]
    assert made.wait_s(7.0) is None
    made.want(2, 2)
    made.want(3, None)
    assert [message[0] for message in made.take(7.0) or ()] == [2, 3, 4, 5]


@pytest.mark.parametrize("bounds", [{"max_events": -1}, {"max_bytes": -1}])
def test_bounds_that_are_none(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        log(**bounds)
