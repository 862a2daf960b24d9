"""Who is ejected, for how long, and who never: on a clock that stands still."""

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo_router.base.errors import ConfigError
from dynamo_router.workers.outliers import OutlierDetector, OutlierPolicy

POLICY = OutlierPolicy(
    failures_in_a_row=3, ejection_s=10, longest_ejection_s=50, probation=2, least_requests=4
)
IN = -math.inf


def fleet(workers: int = 4, policy: OutlierPolicy = POLICY) -> OutlierDetector:
    detector = OutlierDetector(policy)
    for worker in range(workers):
        detector.set_alive(worker, True)
    return detector


def eject(detector: OutlierDetector, worker: int, now: float) -> None:
    for _ in range(3):
        detector.on_fault(worker, now)


def test_failures_in_a_row_eject() -> None:
    detector = fleet()
    detector.on_fault(1, 0)
    detector.on_fault(1, 0)
    detector.on_success(1, 0, 1.0)
    detector.on_fault(1, 0)
    detector.on_fault(1, 0)
    assert detector.out_until(1, 0) == IN
    assert detector.on_fault(1, 1)
    assert (detector.out_until(1, 1), detector.ejected_until(1, 1)) == (11, 11)
    assert detector.reason(1) == "failed 3 requests in a row; ejected for 10 s"
    assert detector.ejections == {1: 1}
    assert detector.out_until(2, 1) == IN


def test_requests_on_their_way_at_an_ejection_do_not_prolong_it() -> None:
    detector = fleet()
    eject(detector, 1, 0)
    for _ in range(9):
        detector.on_fault(1, 5)
    assert detector.out_until(1, 5) == 10


def test_after_an_ejection_one_request_at_a_time_tries_the_worker() -> None:
    detector = fleet()
    eject(detector, 1, 0)
    assert detector.out_until(1, 10) == IN
    for _ in range(POLICY.probation):
        assert detector.on_start(1)
        assert detector.out_until(1, 11) == math.inf
        detector.on_answer(1, 11, 0.1)
        assert detector.out_until(1, 11) == IN
    assert not detector.on_start(1)
    assert detector.out_until(1, 11) == IN
    detector.on_fault(1, 12)
    assert detector.out_until(1, 12) == IN  # forgiven


def test_a_trial_that_says_nothing_is_followed_by_another_one() -> None:
    detector = fleet()
    eject(detector, 1, 0)
    detector.on_start(1)
    detector.on_no_verdict(1)
    assert detector.out_until(1, 11) == IN


def test_who_fails_on_probation_is_ejected_for_longer_up_to_a_bound() -> None:
    detector, now = fleet(), 0.0
    eject(detector, 1, now)
    lengths = []
    for _ in range(5):
        until = detector.out_until(1, now)
        lengths.append(until - now)
        now = until
        detector.on_start(1)
        detector.on_fault(1, now)
    assert lengths == [10, 20, 40, 50, 50]


def test_time_without_an_ejection_shortens_the_next_one() -> None:
    detector = fleet()
    eject(detector, 1, 0)
    detector.on_start(1)
    detector.on_fault(1, 10)
    assert detector.out_until(1, 10) == 30
    for _ in range(POLICY.probation):
        detector.on_answer(1, 31, 0.1)
        detector.on_success(1, 31, 1.0)
    eject(detector, 1, 1000)
    assert detector.out_until(1, 1000) == 1010


def test_at_most_a_share_is_out_and_never_the_last() -> None:
    detector = fleet(4)
    for worker in range(4):
        eject(detector, worker, 0)
    assert [detector.out_until(w, 0) for w in range(4)] == [10, 10, IN, IN]
    lonely = fleet(1)
    eject(lonely, 0, 0)
    assert lonely.out_until(0, 0) == IN
    pair = fleet(2)
    eject(pair, 0, 0)
    eject(pair, 1, 0)
    assert [pair.out_until(w, 0) for w in range(2)] == [10, IN]


def test_ejections_are_ignored_while_too_few_workers_are_left() -> None:
    detector = fleet(3)
    eject(detector, 0, 0)
    detector.set_alive(1, False)
    assert detector.out_until(0, 0) == 10
    detector.set_alive(2, False)
    assert detector.panic(0)
    assert detector.out_until(0, 0) == detector.ejected_until(0, 0) == IN
    detector.set_alive(2, True)
    assert detector.out_until(0, 0) == 10


def test_no_share_ejects_nobody() -> None:
    detector = fleet(4, OutlierPolicy(max_ejected=0))
    for _ in range(100):
        detector.on_fault(1, 0)
        detector.penalize(1, 0, 0.0)
    assert detector.out_until(1, 0) == IN


def test_a_worker_that_fails_far_more_than_the_others_is_ejected() -> None:
    detector = fleet()
    for n in range(8):
        for other in (0, 2, 3):
            detector.on_success(other, n, 1.0)
        if n % 2:
            detector.on_undecided(1, n)
        else:
            detector.on_success(1, n, 1.0)
    assert detector.out_until(1, 8) > 8
    assert "failed 2 of 4 requests in 30 s" in detector.reason(1)


def test_who_fails_as_much_as_everybody_else_is_not_to_blame() -> None:
    detector = fleet()
    for n in range(40):
        for worker in range(4):
            detector.on_undecided(worker, n)
    assert [detector.out_until(w, 40) for w in range(4)] == [IN] * 4


def test_failures_of_long_ago_do_not_count() -> None:
    detector = fleet()
    for _ in range(3):
        detector.on_undecided(1, 0)
    for now in range(40, 60):
        for other in (0, 2, 3):
            detector.on_success(other, now, 1.0)
    detector.on_undecided(1, 60)
    assert detector.out_until(1, 60) == IN


def test_a_fast_failure_counts_as_load_for_as_long_as_an_answer_takes() -> None:
    detector = fleet()
    for _ in range(100):
        detector.on_success(0, 0, 2.0)
    assert detector.penalize(1, 10, 0.5)
    assert detector.out_until(1, 10) == pytest.approx(11.5)
    assert detector.ejected_until(1, 10) == IN
    assert detector.out_until(1, 11.6) == IN


def test_penalties_grow_while_nothing_succeeds_and_are_bounded() -> None:
    detector, now, lengths = fleet(), 0.0, []
    for _ in range(9):
        detector.penalize(1, now, 0.0)
        lengths.append(detector.out_until(1, now) - now)
        now += 100
    assert lengths == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])
    detector.on_success(1, now, 0.0)
    detector.penalize(1, now, 0.0)
    assert detector.out_until(1, now) - now == pytest.approx(0.1)


def test_a_request_without_an_answer_is_the_workers_fault_if_only_others_answer() -> None:
    detector = fleet()
    for now in (1, 2, 3):
        detector.on_answer(0, now, 0.1)
        detector.on_slow(1, now + 2, since=0)
    assert detector.out_until(1, 5) > 5
    for now in (1, 2, 3):
        detector.on_answer(3, now, 0.1)  # it answers others: this request alone was slow
        detector.on_slow(3, now, since=0)
    assert detector.out_until(3, 5) == IN


def test_nobody_is_blamed_for_slowness_if_nobody_answers_or_the_wait_was_short() -> None:
    detector = fleet()
    for _ in range(9):
        detector.on_slow(1, 60, since=0)
    assert detector.out_until(1, 60) == IN
    detector.on_answer(0, 60, 30.0)
    for _ in range(9):
        detector.on_slow(1, 60, since=0)  # less than three times what an answer takes
        detector.on_slow(2, 60, since=59.5)
    assert [detector.out_until(w, 60) for w in (1, 2)] == [IN, IN]


def test_a_worker_that_is_stuck_is_ejected_at_once() -> None:
    detector = fleet()
    detector.on_answer(0, 20, 0.1)
    assert detector.on_stuck(1, 30, since=0)
    assert detector.reason(1).startswith("has begun no answer for 30 s while others did")
    assert not detector.on_stuck(0, 30, since=0)


def test_strangers_and_the_dead_are_ignored() -> None:
    detector = fleet()
    detector.set_alive(1, False)
    for worker in (1, 99):
        for _ in range(9):
            assert not detector.on_fault(worker, 0)
            assert not detector.on_undecided(worker, 0)
            assert not detector.penalize(worker, 0, 0.0)
    detector.remove(1)
    assert detector.out_until(1, 0) == IN and not detector.ejections


@pytest.mark.parametrize(
    "bad", [{"failures_in_a_row": 0}, {"max_ejected": 1.5}, {"ejection_s": math.inf}]
)
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        OutlierPolicy(**bad)  # type: ignore[arg-type]


WORKERS = st.integers(0, 4)


class OutlierMachine(RuleBasedStateMachine):
    """Whatever happens, somebody who is alive gets requests."""

    def __init__(self) -> None:
        super().__init__()
        self.detector = fleet(5)
        self.alive = dict.fromkeys(range(5), True)
        self.now = 0.0

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(worker=WORKERS, alive=st.booleans())
    def probe(self, worker: int, alive: bool) -> None:
        self.alive[worker] = alive
        self.detector.set_alive(worker, alive)

    @rule(worker=WORKERS, seconds=st.floats(0, 10), kind=st.integers(0, 6))
    def request(self, worker: int, seconds: float, kind: int) -> None:
        detector, now = self.detector, self.now
        if detector.out_until(worker, now) > now:
            return
        detector.on_start(worker)
        if kind == 0:
            detector.on_answer(worker, now, seconds)
            detector.on_success(worker, now, seconds)
        elif kind == 1:
            detector.on_undecided(worker, now)
        elif kind == 2:
            detector.on_no_verdict(worker)
        elif kind == 3:
            detector.on_slow(worker, now, now - seconds)
        elif kind == 4:
            pass  # it goes on
        else:
            detector.penalize(worker, now, seconds)
            detector.on_fault(worker, now)

    @invariant()
    def somebody_is_in(self) -> None:
        alive = [worker for worker, is_alive in self.alive.items() if is_alive]
        out = [w for w in alive if self.detector.out_until(w, self.now) > self.now]
        assert not alive or len(out) <= max(1, len(alive) // 2) and len(out) < len(alive)


TestOutlierMachine = OutlierMachine.TestCase
