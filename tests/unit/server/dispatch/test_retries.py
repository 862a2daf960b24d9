"""Whether a request is tried again, and whose fault its failures were."""

import pytest

from dynamo_router.base.errors import StatusCode
from dynamo_router.server.dispatch.prefill_estimate import STEP_S, PrefillEstimate
from dynamo_router.server.dispatch.retries import FailedAttempt, FailedAttempts, RetryBudget
from dynamo_router.workers.failures import Origin, judge


def tried(*failures: tuple[int, Origin, StatusCode], most: int = 5) -> FailedAttempts:
    attempts = FailedAttempts(most)
    for worker_id, origin, code in failures:
        verdict = judge(origin, code, started=False)
        attempts.add(FailedAttempt(worker_id, origin, verdict, "because"))
    return attempts


def engine(worker_id: int, code: StatusCode) -> tuple[int, Origin, StatusCode]:
    return worker_id, Origin.ENGINE, code


def broken(worker_id: int) -> tuple[int, Origin, StatusCode]:
    return worker_id, Origin.TRANSPORT, StatusCode.UNAVAILABLE


def test_attempts_are_bounded() -> None:
    assert tried(engine(1, StatusCode.UNAVAILABLE), most=2).may_go_on
    assert not tried(
        engine(1, StatusCode.UNAVAILABLE), engine(2, StatusCode.UNAVAILABLE), most=2
    ).may_go_on
    assert not tried((1, Origin.REQUEST_SIZE, StatusCode.RESOURCE_EXHAUSTED)).may_go_on


def test_two_workers_that_fail_alike_are_enough() -> None:
    assert tried(engine(1, StatusCode.INTERNAL)).may_go_on
    assert not tried(engine(1, StatusCode.INTERNAL), engine(2, StatusCode.UNIMPLEMENTED)).may_go_on
    assert tried(engine(1, StatusCode.INVALID_ARGUMENT)).may_go_on
    assert not tried(*(engine(n, StatusCode.INVALID_ARGUMENT) for n in range(2))).may_go_on
    assert tried(engine(1, StatusCode.INTERNAL), engine(2, StatusCode.UNAVAILABLE)).may_go_on


def test_a_request_that_breaks_connections_is_not_tried_a_third_time() -> None:
    assert tried(broken(1)).may_go_on
    deadly = tried(broken(1), broken(2))
    assert deadly.is_deadly and not deadly.may_go_on
    unreached = tried(*((n, Origin.CONNECT, StatusCode.UNAVAILABLE) for n in range(3)))
    assert unreached.may_go_on and not unreached.is_deadly


def test_suspects_are_those_whom_another_workers_answer_convicts() -> None:
    attempts = tried(engine(1, StatusCode.INTERNAL), broken(2), (3, Origin.EMPTY, StatusCode.OK))
    attempts.add(tried(engine(4, StatusCode.UNAVAILABLE)).last)
    assert [a.worker_id for a in attempts.take_suspects(served=False)] == [1, 4]
    assert attempts.take_suspects(served=True) == []
    attempts.add(tried(engine(5, StatusCode.INTERNAL)).last)
    assert [a.worker_id for a in attempts.take_suspects(served=True)] == [5]
    assert tried(engine(1, StatusCode.INVALID_ARGUMENT)).take_suspects(served=False) == []
    (refused,) = tried(engine(1, StatusCode.INVALID_ARGUMENT)).take_suspects(served=True)
    assert refused.worker_id == 1


def test_it_can_be_told_in_a_line() -> None:
    attempts = tried(broken(1), engine(7, StatusCode.INTERNAL))
    assert attempts.describe() == ["1:connection_lost", "7:internal"]
    assert attempts.worker_ids == {1, 7} and len(attempts) == 2


def test_what_a_dead_worker_did_not_do_is_not_done_twice() -> None:
    assert not tried(broken(1)).repeats_work
    assert tried(engine(1, StatusCode.RESOURCE_EXHAUSTED)).repeats_work


def test_the_budget_is_a_share_of_the_requests_in_flight_and_at_least_a_few() -> None:
    budget = RetryBudget(0.2, 3)
    assert [budget.limit(n) for n in (0, 10, 100)] == [3, 3, 20]
    assert [budget.take(10) for _ in range(4)] == [True, True, True, False]
    assert budget.take(20)
    assert (budget.retrying, budget.granted, budget.refused) == (4, 4, 1)
    for _ in range(4):
        budget.give_back()
    assert budget.take(0)


def test_prefill_is_estimated_from_first_tokens() -> None:
    estimate = PrefillEstimate()
    for _ in range(200):
        estimate.observe(1, 0.1)
        estimate.observe(10_000, 2.1)
    assert estimate.seconds(0) == pytest.approx(0.1, rel=0.05)
    assert estimate.seconds(10_000) == pytest.approx(2.1, rel=0.05)
    assert estimate.release_after_s(10_000) > 5 * estimate.seconds(10_000)


def test_prefill_lasts_no_longer_than_the_whole_answer() -> None:
    estimate = PrefillEstimate()
    before = estimate.seconds(100_000)
    estimate.observe_whole(100_000, before + 1)
    assert estimate.seconds(100_000) == before
    estimate.observe_whole(100_000, before / 2)
    assert estimate.seconds(100_000) == pytest.approx(before / 2)
    estimate.observe_whole(10, STEP_S / 4)
    assert estimate.seconds(10) == pytest.approx(STEP_S / 4)
