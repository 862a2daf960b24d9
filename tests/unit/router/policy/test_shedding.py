"""Requests that would make answers miss their objective wherever they went are refused if asked."""

import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter

BLOCK = 16
TOKENS = list(range(10 * BLOCK))


def taught(*, sheds: bool, itl_s: float, answers: int = 60) -> tuple[KvRouter, ManualClock]:
    """A router that has seen so many answers of a worker, one at a time, at this pace."""
    clock = ManualClock(0.0)
    admission = AdmissionConfig(shed=sheds, slo_itl_ms=25.0)
    config = KvRouterConfig(block_size=BLOCK, seed=1, use_kv_events=False, admission=admission)
    router = KvRouter(config, clock=clock)
    router.add_worker(0)
    for turn in range(answers):
        router.decide(TOKENS, f"answer {turn}")
        clock.advance(0.02)
        router.mark_prefill_complete(f"answer {turn}")
        clock.advance(10 * itl_s)
        router.free(f"answer {turn}", output_tokens=11)
        clock.advance(0.1)
    return router, clock


def test_what_would_be_too_slow_is_refused_and_counted() -> None:
    router, _ = taught(sheds=True, itl_s=0.04)
    router.decide(TOKENS, "first")  # nobody is there
    for _ in range(2):
        with pytest.raises(NoWorkersError) as raised:
            router.decide(TOKENS, "second")
        assert raised.value.overloaded
    assert router.limits.requests_shed == 2
    assert router.slots.worker_of("second") is None
    router.free("first")
    router.decide(TOKENS, "second")


@pytest.mark.parametrize(
    ("sheds", "itl_s", "answers"), [(False, 0.04, 60), (True, 0.01, 60), (True, 0.04, 20)]
)
def test_nobody_is_refused_unasked_or_in_time_or_before_much_was_seen(
    sheds: bool, itl_s: float, answers: int
) -> None:
    router, _ = taught(sheds=sheds, itl_s=itl_s, answers=answers)
    for turn in range(2):
        router.decide(TOKENS, str(turn))
    assert router.limits.requests_shed == 0


def test_explanations_refuse_nobody() -> None:
    router, _ = taught(sheds=True, itl_s=0.04)
    router.decide(TOKENS, "first")
    (candidate,) = router.explain(TOKENS).candidates
    assert candidate.policy_terms["missed"] > 0.7
    assert router.limits.requests_shed == 0
