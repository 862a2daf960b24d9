"""What a table of sessions remembers, for how long, and of how many."""

import pytest

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.affinity import Binding, Session, SessionTable

ONE, TWO = WorkerWithDpRank(1, 0), WorkerWithDpRank(2, 1)


def table(most: int = 100, ttl_s: float = 60.0) -> SessionTable:
    return SessionTable(ttl_s, most, writer=5, sequence=1000, repeat_s=10.0)


def test_a_session_stays_bound_until_its_time_is_over() -> None:
    sessions = table()
    sessions.bind(Session("a"), ONE, 0.0)
    assert sessions.worker_of("a", 59.9) == ONE
    assert sessions.worker_of("a", 60.0) is None
    assert (len(sessions), sessions.counts.expired) == (0, 1)


def test_a_request_in_flight_keeps_it_and_its_end_begins_the_time_anew() -> None:
    sessions = table()
    sessions.bind(Session("a"), ONE, 0.0)
    sessions.begin("a", 1.0)
    sessions.expire(500.0)
    assert sessions.worker_of("a", 500.0) == ONE
    sessions.end("a", 501.0)
    assert sessions.worker_of("a", 560.0) == ONE
    assert sessions.worker_of("a", 561.0) is None


def test_a_session_may_ask_for_less_time_and_gets_no_more() -> None:
    sessions = table()
    sessions.bind(Session("short", timeout_s=5.0), ONE, 0.0)
    sessions.bind(Session("long", timeout_s=500.0), ONE, 0.0)
    assert sessions.worker_of("short", 5.0) is None
    assert sessions.worker_of("long", 60.0) is None


def test_a_worker_that_leaves_takes_its_sessions_along() -> None:
    sessions = table()
    for key, worker in (("a", ONE), ("b", TWO), ("c", ONE)):
        sessions.bind(Session(key), worker, 0.0)
    assert (sessions.count_on(ONE), sessions.count_on(TWO)) == (2, 1)
    sessions.on_worker_gone(ONE)
    assert [sessions.worker_of(key, 1.0) for key in "abc"] == [None, TWO, None]
    sessions.check_integrity()


def test_one_caller_has_half_of_the_table_and_drops_its_own_oldest() -> None:
    sessions = table(most=8)
    sessions.bind(Session("kept", owner="quiet"), ONE, 0.0)
    for number in range(50):
        sessions.bind(Session(f"loud{number}", owner="loud"), TWO, 1.0 + number)
    assert sessions.worker_of("kept", 51.0) == ONE
    assert len(sessions) == 5 and sessions.counts.evicted == 46
    assert sessions.worker_of("loud46", 51.0) == TWO and sessions.worker_of("loud45", 51.0) is None


def test_a_full_table_drops_what_was_used_longest_ago() -> None:
    sessions = table(most=4)
    for number in range(4):
        sessions.bind(Session(f"s{number}", owner=str(number)), ONE, float(number))
    sessions.bind(Session("s0", owner="0"), ONE, 5.0)  # used again
    sessions.bind(Session("s4", owner="4"), ONE, 6.0)
    assert sessions.worker_of("s1", 6.0) is None and sessions.worker_of("s0", 6.0) == ONE


def test_the_greater_version_wins_in_whatever_order_it_is_heard() -> None:
    old, new = Binding("a", ONE, 5000, 7), Binding("a", TWO, 5000, 9)
    for order in ((old, new), (new, old)):
        sessions = table()
        for binding in order:
            sessions.merge(binding, 0.0)
        assert sessions.worker_of("a", 1.0) == TWO
    sessions.bind(Session("a"), ONE, 2.0)  # by this router, later: greater than what it heard
    assert sessions.take_unsent(9, 2.0) == [Binding("a", ONE, 5001, 5)]


def test_what_is_used_is_told_again_now_and_then() -> None:
    sessions = table()
    sessions.bind(Session("a"), ONE, 0.0)
    assert len(sessions.take_unsent(9, 0.0)) == 1
    sessions.begin("a", 5.0)
    assert sessions.take_unsent(9, 5.0) == []
    sessions.end("a", 10.0)
    assert len(sessions.take_unsent(9, 10.0)) == 1


def test_a_newcomer_is_told_all_a_part_at_a_time() -> None:
    sessions = table()
    for number in range(7):
        sessions.bind(Session(f"s{number}"), ONE, 0.0)
    sessions.take_unsent(99, 0.0)
    sessions.send_all()
    assert [len(sessions.take_unsent(3, 1.0)) for _ in range(4)] == [3, 3, 1, 0]


def test_all_who_come_while_all_is_told_are_told_together() -> None:
    """A crowd of newcomers keeps nobody waiting, and everybody hears everything."""
    sessions = table()
    for number in range(6):
        sessions.bind(Session(f"s{number}"), ONE, 0.0)
    sessions.take_unsent(99, 0.0)
    heard: list[set[str]] = []
    for _ in range(20):
        sessions.send_all()
        heard.append(set())
        some = {binding.key for binding in sessions.take_unsent(1, 1.0)}
        for each in heard:
            each |= some
    assert [len(each) for each in heard[::5]] == [6, 6, 6, 5]
    while some := {binding.key for binding in sessions.take_unsent(3, 1.0)}:
        for each in heard:
            each |= some
    assert all(len(each) == 6 for each in heard)


def test_what_is_forgotten_while_all_is_told_keeps_nobody_waiting() -> None:
    sessions = table()
    for name in "abc":
        sessions.bind(Session(name), ONE, 0.0)
    sessions.send_all()
    assert len(sessions.take_unsent(1, 0.0)) == 1
    sessions.send_all()  # somebody who has missed that one
    for name in "bc":
        sessions.unbind(name)
    assert [binding.key for binding in sessions.take_unsent(9, 0.0)] == ["a"]


@pytest.mark.parametrize("bad", [{"worker": ONE}, {"worker": None}])
def test_a_session_is_unbound_from_the_worker_that_is_meant(bad: dict[str, object]) -> None:
    sessions = table()
    sessions.bind(Session("a"), ONE, 0.0)
    sessions.unbind("a", TWO)
    assert sessions.worker_of("a", 0.0) == ONE
    sessions.unbind("a", **bad)  # type: ignore[arg-type]
    assert sessions.worker_of("a", 0.0) is None
