"""Which departures are believed."""

from dynamo_router.workers.records import Departures


def departures(*here: int) -> Departures:
    known = Departures(grace_s=20.0)
    for worker_id in here:
        known.on_here(worker_id)
    return known


def test_one_of_several_leaves_at_once() -> None:
    known = departures(1, 2, 3)
    assert known.on_gone(1, 0.0)
    assert known.kept == set() and known.overdue(100.0) == []


def test_half_may_leave_the_others_are_kept() -> None:
    known = departures(1, 2, 3, 4)
    left = [known.on_gone(worker_id, 0.0) for worker_id in (1, 2, 3, 4)]
    assert left == [True, True, False, False]
    assert known.kept == {3, 4}


def test_those_that_come_back_were_never_gone() -> None:
    known = departures(1, 2)
    known.on_gone(1, 0.0)
    assert not known.on_gone(2, 0.0)
    known.on_here(2)
    assert known.kept == set() and known.overdue(50.0) == []


def test_the_others_leave_when_the_grace_is_over() -> None:
    known = departures(1)
    assert not known.on_gone(1, 5.0)
    assert known.overdue(24.9) == []
    assert known.overdue(25.0) == [1]
    assert known.overdue(25.0) == []


def test_departures_of_long_ago_do_not_count() -> None:
    known = departures(1, 2, 3, 4)
    assert known.on_gone(1, 0.0) and known.on_gone(2, 0.0)
    assert known.on_gone(3, 21.0)  # one of two that were there lately


def test_who_does_not_answer_either_is_forgotten() -> None:
    known = departures(1)
    known.on_gone(1, 0.0)
    known.forget(1)
    assert known.kept == set() and known.overdue(100.0) == []


def test_a_stranger_does_not_leave() -> None:
    assert not departures(1).on_gone(9, 0.0)


def test_who_is_registered_elsewhere_says_nothing_of_the_store() -> None:
    known = departures(1, 2, 3)
    known.on_moved(1)
    known.on_moved(2)
    assert known.kept == set()
    assert not known.on_gone(3, 0.0) and known.kept == {3}
