"""What a worker does and what is made of it, on a clock that stands still."""

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.workers.health_tracker import HealthPolicy, HealthTracker
from dynamo_router.workers.registry import WorkerState

POLICY = HealthPolicy(probe_interval_s=5, retry_first_s=0.5, retry_most_s=4, inhibit_s=6)
NEVER = float("-inf")


def ready() -> HealthTracker:
    tracker = HealthTracker(POLICY, 0)
    tracker.on_probe_ok(0)
    return tracker


def test_starts_connecting_and_is_probed_at_once() -> None:
    tracker = HealthTracker(POLICY, 7)
    assert (tracker.state, tracker.next_probe) == (WorkerState.CONNECTING, 7)


def test_a_good_probe_makes_it_ready_until_the_next() -> None:
    tracker = ready()
    assert (tracker.state, tracker.reason, tracker.next_probe) == (WorkerState.READY, "", 5)


def test_failed_probes_back_off_up_to_a_bound() -> None:
    tracker = HealthTracker(POLICY, 0)
    waits = []
    for _ in range(6):
        tracker.on_probe_failed(0, "refused")
        waits.append(tracker.next_probe)
    assert waits == [0.5, 1, 2, 4, 4, 4]
    assert (tracker.state, tracker.reason) == (WorkerState.CONNECTING, "refused")


def test_backoff_does_not_overflow() -> None:
    tracker = ready()
    for _ in range(5000):
        tracker.on_probe_failed(0, "refused")
    assert tracker.next_probe == 4


def test_one_failed_probe_takes_a_ready_worker_away_and_one_good_one_brings_it_back() -> None:
    tracker = ready()
    tracker.on_probe_failed(5, "gone")
    assert (tracker.state, tracker.next_probe) == (WorkerState.UNHEALTHY, 5.5)
    tracker.on_probe_ok(5.5)
    assert (tracker.state, tracker.next_probe) == (WorkerState.READY, 10.5)


def test_a_probe_that_was_late_by_our_own_stall_is_repeated_once() -> None:
    tracker = ready()
    tracker.on_probe_void(5, "no answer")
    assert (tracker.state, tracker.next_probe, tracker.failed_probes) == (WorkerState.READY, 5, 0)
    tracker.on_probe_ok(5.1)
    tracker.on_probe_void(11, "no answer")
    assert tracker.state is WorkerState.READY
    tracker.on_probe_void(15, "no answer")
    assert (tracker.state, tracker.reason) == (WorkerState.UNHEALTHY, "no answer")
    tracker.on_probe_ok(16)
    tracker.on_probe_void(22, "no answer")
    assert tracker.state is WorkerState.READY


def test_a_broken_connection_inhibits_until_a_probe_says_otherwise() -> None:
    tracker = ready()
    tracker.on_connection_lost(2)
    assert (tracker.state, tracker.inhibited_until) == (WorkerState.READY, 8)
    assert tracker.next_probe == 2
    tracker.on_probe_ok(2.01)
    assert tracker.inhibited_until == NEVER


def test_the_last_one_is_asked_but_not_inhibited() -> None:
    tracker = ready()
    tracker.on_connection_lost(2, may_inhibit=False)
    assert (tracker.next_probe, tracker.inhibited_until) == (2, NEVER)


def test_a_suspect_is_asked_at_once() -> None:
    tracker = ready()
    tracker.on_suspicion(3)
    assert (tracker.state, tracker.next_probe, tracker.inhibited_until) == (
        WorkerState.READY,
        3,
        NEVER,
    )


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf")])
def test_times_that_are_none_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="probe_timeout_s"):
        HealthPolicy(probe_timeout_s=value)


def test_a_stranger_is_refused_and_asked_again_later() -> None:
    tracker = ready()
    tracker.on_refused(1, "block size")
    assert (tracker.state, tracker.reason, tracker.next_probe) == (
        WorkerState.REFUSED,
        "block size",
        5,
    )
    tracker.on_connection_lost(1)
    assert (tracker.state, tracker.inhibited_until) == (WorkerState.REFUSED, NEVER)
    tracker.on_probe_ok(5)
    assert tracker.state is WorkerState.READY
