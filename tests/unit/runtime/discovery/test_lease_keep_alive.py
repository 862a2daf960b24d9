"""The keep-alive's decisions: in time, never in lockstep, never giving up."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamo_router.runtime.discovery.lease_keep_alive import LeaseKeepAlive, LeaseStep


def held_lease(seed: int = 0, ttl_s: float = 10.0) -> LeaseKeepAlive:
    keep_alive = LeaseKeepAlive(ttl_s, rng=Random(seed))
    keep_alive.on_granted(7, 0.0, 0.0)
    return keep_alive


def test_it_is_granted_at_once() -> None:
    keep_alive = LeaseKeepAlive(now=3.0)
    assert (keep_alive.step, keep_alive.due, keep_alive.held(3.0)) == (LeaseStep.GRANT, 3.0, False)


@given(st.integers())
def test_it_is_renewed_when_half_of_what_is_left_has_passed(seed: int) -> None:
    keep_alive = held_lease(seed)
    assert keep_alive.step is LeaseStep.RENEW
    assert 4.0 <= keep_alive.due <= 5.0
    # The answer took two seconds, which the store may have counted already.
    keep_alive.on_renewed(10.0, 5.0, 7.0)
    assert keep_alive.ends == 15.0
    assert 7.0 + 3.2 <= keep_alive.due <= 7.0 + 4.0


def test_a_fleet_does_not_renew_in_lockstep() -> None:
    dues = {round(held_lease(seed).due, 3) for seed in range(50)}
    assert len(dues) > 40


def test_a_failure_is_tried_again_soon_and_ever_more_seldom() -> None:
    keep_alive, now, delays = held_lease(), 5.0, []
    for _ in range(20):
        keep_alive.on_failed(now)
        delays.append(keep_alive.due - now)
        now = keep_alive.due
    assert delays[0] <= 0.05 and max(delays) <= 5.0
    assert now < 100.0 and sum(delay < 1.0 for delay in delays) >= 5
    # Its time is over by our count, but the store has not said so: it may have it still.
    assert keep_alive.step is LeaseStep.RENEW and not keep_alive.held(now)
    keep_alive.on_renewed(10.0, now, now)
    assert keep_alive.held(now) and keep_alive.grants == 1


def test_a_lost_lease_is_taken_again_under_its_name() -> None:
    keep_alive = held_lease()
    keep_alive.on_lost(20.0)
    assert keep_alive.step is LeaseStep.GRANT and not keep_alive.held(20.0)
    assert 20.0 <= keep_alive.due <= 21.0 and keep_alive.lease == 7
    keep_alive.on_granted(7, keep_alive.due, keep_alive.due)
    assert keep_alive.step is LeaseStep.RENEW and keep_alive.grants == 2


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
def test_a_lease_lives_for_some_time(ttl_s: float) -> None:
    with pytest.raises(ValueError, match="time to live"):
        LeaseKeepAlive(ttl_s)


class KeepAliveMachine(RuleBasedStateMachine):
    """A store that answers late, fails, forgets; its own count of the lease is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.keep_alive = LeaseKeepAlive(10.0, now=0.0, rng=Random(1))
        self.ends_at_store: float | None = None
        self.failures = 0

    @rule(took=st.floats(0, 3), outcome=st.sampled_from(["answers", "fails", "forgot"]))
    def take_a_step(self, took: float, outcome: str) -> None:
        asked = self.now = max(self.now, self.keep_alive.due)
        step = self.keep_alive.step
        there = self.ends_at_store is not None and self.ends_at_store > asked
        self.now += took
        if outcome == "fails":
            self.failures += 1
            self.keep_alive.on_failed(self.now)
        elif step is LeaseStep.GRANT:
            self.ends_at_store = asked + took / 2 + 10.0
            self.keep_alive.on_granted(7, asked, self.now)
        elif outcome == "forgot" or not there:
            self.ends_at_store = None
            self.keep_alive.on_lost(self.now)
        else:
            self.ends_at_store = asked + took / 2 + 10.0
            self.keep_alive.on_renewed(10.0, asked, self.now)

    @invariant()
    def it_never_claims_more_than_the_store_has(self) -> None:
        if self.keep_alive.ends is not None:
            assert self.ends_at_store is not None
            assert self.keep_alive.ends <= self.ends_at_store

    @invariant()
    def it_is_never_idle_for_long(self) -> None:
        assert self.keep_alive.due <= self.now + 5.0

    @precondition(
        lambda self: self.keep_alive.held(self.now) and self.keep_alive.step is LeaseStep.RENEW
    )
    @rule()
    def it_asks_before_the_end(self) -> None:
        ends = self.keep_alive.ends
        assert ends is not None
        assert self.keep_alive.due < max(ends, self.now + 5.0)


TestKeepAliveMachine = KeepAliveMachine.TestCase
