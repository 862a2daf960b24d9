"""When a silent decider is taken to be away, and when a process that ended is started again."""

import random

from dynamo_router.base.backoff import Backoff
from dynamo_router.server.fronts.kept_child import STEADY_S, RestartSchedule
from dynamo_router.server.fronts.link import AnswerWatch


def test_an_answer_is_overdue_when_nothing_came_for_so_long() -> None:
    watch = AnswerWatch(1.0)
    assert not watch.is_overdue(100.0)
    watch.owed(10.0)
    watch.owed(10.9)  # one more; the first one counts
    assert not watch.is_overdue(11.0)
    assert watch.is_overdue(11.1)


def test_whoever_says_something_does_not_hang() -> None:
    watch = AnswerWatch(1.0)
    watch.owed(10.0)
    watch.heard(10.9, more=True)
    assert not watch.is_overdue(11.8)
    assert watch.is_overdue(12.0)
    watch.heard(12.0, more=False)
    assert not watch.is_overdue(1000.0)


def test_a_process_that_ends_at_once_is_started_ever_later() -> None:
    schedule = RestartSchedule(Backoff(first=0.1, cap=10.0, rng=random.Random(1)))
    now, delays = 0.0, []
    for _ in range(12):
        schedule.started(now)
        now += 1.0
        delays.append(schedule.delay_s(now))
        now += delays[-1]
    assert all(0.05 * 2**n <= delay <= 0.1 * 2**n for n, delay in enumerate(delays[:6]))
    assert 5.0 <= delays[-1] <= 10.0
    assert schedule.restarts == 12


def test_one_that_ran_for_long_is_started_again_at_once() -> None:
    schedule = RestartSchedule(Backoff(first=0.1, cap=10.0, rng=random.Random(1)))
    for _ in range(8):
        schedule.started(0.0)
        schedule.delay_s(1.0)
    schedule.started(100.0)
    assert schedule.delay_s(100.0 + STEADY_S) <= 0.1
