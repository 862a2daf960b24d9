"""Requests wait, in their order, until a decode worker has capacity for their prompts."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from support.fake_engine import prompt
from support.polling import until

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.router.pairs import NoCapacityError, PairDecision
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy import Decision
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.handoff import Handoffs, SharedRequest, sharing
from dynamo_router.server.request_limits import HandoffLimits
from dynamo_router.workers.handoffs import Fit
from dynamo_router.workers.handoffs.connectors import PARCELS

BODY = prompt("r1", 32).SerializeToString()
ALWAYS = DisaggConfig(disagg="always")


class OneAtATime:
    """In place of a Decider: a fleet with capacity for `free` more requests."""

    def __init__(self, limit: int = 8) -> None:
        self.free = self.polls = 0
        self.leg: Decision | None = None
        self.decided: list[str] = []
        self.on_load_fell: list[Any] = []
        self.elsewhere: list[Any] = []
        config = AdmissionConfig(queue_limit=limit)
        self.router = SimpleNamespace(block_size=16, limits=SimpleNamespace(config=config))

    def decide_pair(self, placement: Placement, prefill: Any, rule: Any) -> PairDecision:
        if not self.free:
            raise NoCapacityError("none", overloaded=True)
        self.free -= 1
        self.decided.append(placement.request_id)
        return PairDecision(Decision(WorkerWithDpRank(1, 0), 0, 0, 2, 0), self.leg, "always")

    def poll(self) -> None:
        self.polls += 1

    def release(self, count: int = 1) -> None:
        self.free += count
        for heard in self.on_load_fell:
            heard()


def handoffs_of(decider: OneAtATime) -> Handoffs:
    limits = SimpleNamespace(check=lambda isl, largest: (frozenset(), None))
    monitor = SimpleNamespace(engines=(), limits=limits, listeners=[])
    pool: Any = type("Pool", (), {"router": None, "monitor": monitor, "prefills": 0})()
    made: Any = decider
    return Handoffs(made, pool.monitor, SystemClock(), ALWAYS, partners=lambda _: pool)


async def awaited(handoffs: Handoffs, request_id: str, within_s: float | None = None) -> Any:
    placement = Placement(Prompt(range(32), 16), request_id)
    pool = handoffs.pool_for(placement, SharedRequest(BODY))
    assert pool is not None
    return await handoffs.await_capacity(lambda: handoffs.decide_pair(placement, pool), within_s)


async def test_they_go_in_the_order_in_which_they_came() -> None:
    decider = OneAtATime()
    handoffs = handoffs_of(decider)
    waiting = []
    for number in range(4):
        name = f"r{number}"
        waiting.append(asyncio.create_task(awaited(handoffs, name, 30.0)))
        await until(lambda expected=number + 1: handoffs.waiting == expected)
    waiting[1].cancel()
    await until(lambda: handoffs.waiting == 3)
    decider.release()
    await until(lambda: decider.decided == ["r0"])
    decider.release(2)
    await asyncio.gather(waiting[0], waiting[2], waiting[3])
    assert decider.decided == ["r0", "r2", "r3"] and handoffs.waiting == 0


async def test_one_that_waits_for_too_long_is_turned_away() -> None:
    handoffs = handoffs_of(OneAtATime())
    with pytest.raises(NoWorkersError, match="no decode worker had capacity") as told:
        await awaited(handoffs, "r1", 0.01)
    assert told.value.overloaded and handoffs.waiting == 0


async def test_no_more_wait_than_may() -> None:
    decider = OneAtATime(limit=1)
    handoffs = handoffs_of(decider)
    first = asyncio.create_task(awaited(handoffs, "r1"))
    await until(lambda: handoffs.waiting == 1)
    with pytest.raises(NoWorkersError, match="1 requests wait") as told:
        await awaited(handoffs, "r2")
    assert told.value.overloaded
    decider.release()
    await first


def test_who_waits_is_asked_once_a_prefill_worker_has_computed_a_prompt() -> None:
    """It may be free for the next one long before a decode worker begins."""
    decider = OneAtATime(limit=1)
    decider.release()
    decider.leg = Decision(WorkerWithDpRank(9, 0), 0, 0, 2, 0)
    handoffs = handoffs_of(decider)
    ignored = lambda *args, **more: None  # noqa: E731
    reports = SimpleNamespace(answered=ignored, succeeded=ignored)
    router = SimpleNamespace(mark_prefill_complete=ignored, free=ignored)
    monitor = SimpleNamespace(engine=ignored, reports=reports, engines=(), listeners=[])
    pool: Any = type("Pool", (), {"router": router, "monitor": monitor, "prefills": 0})()
    _, leg = handoffs.decide_pair(Placement(Prompt(range(32), 16), "r1"), pool)
    assert leg is not None and not decider.polls
    leg.on_computed(0)
    assert decider.polls == 1


@pytest.mark.parametrize("fails", ["note", "leg"])
def test_what_fails_behind_a_pairs_booking_leaves_none(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider = OneAtATime()
    decider.release()
    decider.leg = Decision(WorkerWithDpRank(9, 0), 0, 0, 2, 0)
    handoffs = handoffs_of(decider)
    freed: list[tuple[str, str]] = []
    landed: list[object] = []

    def fail(*args: object) -> None:
        raise MemoryError

    def free_at(role: str) -> Any:
        return lambda request_id, **more: freed.append((role, request_id))

    decider.router.free = free_at("decode")
    reports = SimpleNamespace(given_up=lambda worker_id: None)
    monitor = SimpleNamespace(engine=lambda worker_id: None, reports=reports)
    router = SimpleNamespace(free=free_at("prefill"))
    pool: Any = type("Pool", (), {"router": router, "monitor": monitor, "prefills": 0})()
    monkeypatch.setattr(handoffs, "_runs_whole", lambda pool: True)
    monkeypatch.setattr(handoffs.rule, "on_landed", landed.append)
    decide = decider.decide_pair
    landing = lambda *how: replace(decide(*how), landing="there")  # noqa: E731
    monkeypatch.setattr(decider, "decide_pair", landing)
    if fails == "note":
        handoffs.outcomes.on_pair.append(fail)
    else:
        monitor.engine = fail
    with pytest.raises(MemoryError):
        handoffs.decide_pair(Placement(Prompt(range(32), 16), "r1"), pool)
    assert sorted(freed) == [("decode", "r1"), ("prefill", "r1")]
    assert landed == ["there"] and pool.prefills == 0


@pytest.mark.parametrize(
    ("mode", "policy", "fits", "expected"),
    [
        ("conditional", "forecast", True, 0.2),
        ("conditional", "forecast", False, math.inf),
        ("conditional", "isl_bounding", True, math.inf),  # lengths alone decide, not who is free
        ("always", "forecast", True, math.inf),
    ],
)
def test_no_request_is_held_while_a_prefill_worker_that_fits_is_free(
    mode: str, policy: str, fits: bool, expected: float
) -> None:
    decider = OneAtATime()
    handoffs = handoffs_of(decider)
    handoffs.change(DisaggConfig(disagg=mode, disagg_policy=policy), HandoffLimits())
    router = SimpleNamespace(seconds_until_free=lambda: 0.2, takes_any=True)
    pool: Any = type("Pool", (), {"router": router})()
    handoffs._fits[pool] = Fit(PARCELS if fits else None)
    (elsewhere,) = decider.elsewhere
    assert elsewhere() == expected


def test_a_request_is_read_once_however_often_it_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[bytes] = []
    monkeypatch.setattr(sharing, "split_tokens", lambda body: reads.append(body) or (body,))
    handoffs, shared = handoffs_of(OneAtATime()), SharedRequest(BODY)
    assert not reads
    for _ in range(3):
        assert handoffs.pool_for(Placement(Prompt(range(32), 16), "r1"), shared) is not None
        assert shared.goes_on
    assert reads == [BODY]
