"""When a process that ended is started again."""

import random

from dynamo_router.base.backoff import Backoff
from dynamo_router.server.fronts.kept_child import STEADY_S, RestartSchedule


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
