"""A tenant with more in the engines than its share leaves some to others, and nobody starves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.policy.taught_router import STEP_S, TOKEN_S, teach

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission.limits import AdmissionConfig
from dynamo_router.router.admission.queue import AdmissionQueue
from dynamo_router.router.admission.tenants import KEPT_PART, TenantConfig, TenantShares
from dynamo_router.router.admission.ticket import Lane, Ticket, Urgency
from dynamo_router.router.admission.turns import LOOKED_AT
from dynamo_router.router.decider import Decider, new_queue
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy.forecast import ForecastParams, ForecastPolicy

BLOCK = 16
ONE = WorkerWithDpRank(1, 0)


def router_with(clock: ManualClock, **settings: Any) -> KvRouter:
    """Two workers of 100 blocks, and a router that knows how fast they are."""
    strategy = ForecastPolicy(params=ForecastParams(lead_s=0.1))
    router = KvRouter(
        KvRouterConfig(block_size=BLOCK, **settings), clock=clock, seed=1, strategy=strategy
    )
    return teach(router, clock)


@pytest.fixture
def router(clock: ManualClock) -> Iterator[KvRouter]:
    with router_with(clock) as made:
        yield made


def occupy(router: KvRouter, worker_id: int, tokens: int, tenant: str) -> str:
    name = f"{tenant} on {worker_id}, {tokens}"
    prompt = [1000 + 10 * tokens + worker_id] * tokens
    router.decide(prompt, name, pinned_worker=worker_id, tenant=tenant)
    return name


def ticket(name: str, arrived: float = 0.0, **more: Any) -> Ticket:
    return Ticket(name, arrived, tenant=name.partition(" ")[0], **more)


def test_who_has_more_than_its_share_leaves_part_of_the_caches_to_others(
    router: KvRouter, clock: ManualClock
) -> None:
    queue = new_queue(router)
    on = [occupy(router, worker_id, 88 * BLOCK, "flood") for worker_id in (1, 2)]
    clock.advance(10.0)
    for name in on:
        router.mark_prefill_complete(name)
    assert queue.is_open(None, "flood")  # nobody else is about
    assert queue.is_open(None, "small")
    assert not queue.is_open(None, "flood") and queue.deferred == 1
    assert router.seconds_until_free(has_more=True) == math.inf
    assert router.seconds_until_free(ONE, has_more=True) == math.inf
    assert not queue.is_open(ONE, "flood")  # nor by naming a worker
    router.free(on[0])
    assert queue.is_open(None, "flood") and queue.is_open(None, "small")
    assert not queue.is_open(ONE, "flood") or router.seconds_until_free(ONE, has_more=True) == 0
    assert queue.is_open(None, "small")
    clock.advance(60.0)  # and nobody has heard of the small one since
    occupy(router, 1, 88 * BLOCK, "flood")
    clock.advance(10.0)
    assert queue.is_open(None, "flood")


def test_the_fleet_is_asked_once_for_its_wait(
    router: KvRouter, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = new_queue(router)
    for worker_id in (1, 2):
        router.mark_prefill_complete(occupy(router, worker_id, 50 * BLOCK, "flood"))
    clock.advance(10.0)
    assert queue.is_open(None, "small")
    asked = Counter[str]()

    def counted(name: str) -> Callable[..., float]:
        ask: Callable[..., float] = getattr(ForecastPolicy, name)

        def hold(*args: Any) -> float:
            asked[name] += 1
            return ask(*args)

        return hold

    for name in ("hold", "hold_over_share"):
        monkeypatch.setattr(ForecastPolicy, name, counted(name))
    assert queue.is_open(None, "flood")
    assert asked == {"hold": 1, "hold_over_share": 1}


def test_it_has_no_prompts_computed_that_others_would_wait_behind(
    router: KvRouter, clock: ManualClock
) -> None:
    queue = new_queue(router)
    for worker_id in (1, 2):
        occupy(router, worker_id, 500, "flood")
    clock.advance(0.001)
    assert queue.is_open(None, "small")
    assert not queue.is_open(None, "flood")
    wait = router.seconds_until_free(has_more=True)
    assert queue.ask_again_s == wait == pytest.approx(STEP_S + 500 * TOKEN_S - 0.001, abs=0.005)
    clock.advance(wait)
    assert queue.is_open(None, "flood")


@pytest.mark.parametrize("key", [None, "cache_namespace"])
def test_where_nobody_names_a_tenant_nothing_is_counted(
    clock: ManualClock, key: str | None
) -> None:
    admission = AdmissionConfig(tenants=TenantConfig(tenant_key=key))
    with router_with(clock, admission=admission) as router:
        queue = new_queue(router)
        for worker_id in (1, 2):
            occupy(router, worker_id, 8 * BLOCK, "")
        shares = router.limits.tenants
        assert queue.is_open(None) and not shares.enabled and len(shares) == 0
        assert not shares._holdings._requests
        if key is None:
            assert not shares.on_asked("named", 0.0) and not shares.enabled


def test_requests_that_expire_or_go_with_their_worker_are_no_longer_counted(
    router: KvRouter, clock: ManualClock
) -> None:
    holdings = router.limits.tenants._holdings
    occupy(router, 1, 100, "a")
    occupy(router, 2, 100, "b")
    router.remove_worker(1)
    assert [*holdings._requests] == ["b on 2, 100"]
    clock.advance(2 * router.config.active_request_expiry_secs)
    router.workers()
    assert not holdings._requests and not holdings._tokens


def test_those_who_have_more_go_behind_all_others_but_not_for_ever() -> None:
    shares = TenantShares(TenantConfig(tenant_key="x-team"))
    wait = [math.inf]
    queue = AdmissionQueue(
        lambda lane: 0.0, shares=shares, now=lambda: 0.0, over_share_wait_s=lambda lane: wait[0]
    )
    assert shares.counts("flood") and not shares.on_asked("small", 0.0)
    shares.on_booked("before", "flood", 10_000)
    for name, priority in (("flood 1", 5), ("flood 2", 0), ("small 1", 0), ("other 1", -3)):
        made = ticket(name, urgency=Urgency(priority))
        assert shares.on_asked(made.tenant, 0.0) == (made.tenant == "flood")
        queue.enter(lambda made=made: made, made.tenant)  # type: ignore[misc]
    went = [queue.next(), queue.next()]
    assert [each.request_id for each in went if each] == ["small 1", "other 1"]
    assert queue.next() is None and len(queue) == 2
    assert queue.is_open(None, "small")  # past those who wait for its sake
    assert not queue.is_open(None, "flood")
    wait[0] = 0.0
    went = [queue.next(), queue.next()]
    assert [each.request_id for each in went if each] == ["flood 1", "flood 2"]


def test_the_last_places_of_a_queue_are_for_tenants_of_whom_fewer_wait() -> None:
    shares = TenantShares(TenantConfig(tenant_key="x-team"))
    queue = AdmissionQueue(lambda lane: math.inf, limit=8 * KEPT_PART, shares=shares)
    assert shares.counts("flood")
    with pytest.raises(NoWorkersError, match="wait"):
        for _ in range(100):
            queue.enter(lambda: ticket(f"flood {len(queue)}"), "flood")
    assert len(queue) == 7 * KEPT_PART  # though nobody else waits yet
    queue.enter(lambda: ticket("small 1"), "small")
    with pytest.raises(NoWorkersError) as found:
        queue.enter(lambda: ticket("flood more"), "flood")
    assert found.value.overloaded and queue.refused == 2
    for place in range(2, KEPT_PART + 1):
        queue.enter(lambda place=place: ticket(f"small {place}"), "small")  # type: ignore[misc]
    with pytest.raises(NoWorkersError):
        queue.enter(lambda: ticket("small more"), "small")
    for request_id in [*queue._waiting]:
        queue.discard(request_id)
    assert not queue._by_tenant


def test_to_ask_about_another_tenant_is_not_to_hear_of_one_that_names_none(
    router: KvRouter, clock: ManualClock
) -> None:
    decider = Decider(router)
    hedge = Placement(router.prompt([1]), "hedge", tenant="alone")
    for worker_id in (1, 2):
        occupy(router, worker_id, 500, "alone")
    clock.advance(0.001)
    decider.is_open(hedge)
    assert not router.limits.tenants.has_more("alone", clock.now())


@pytest.mark.parametrize("names", [1, 600])
@pytest.mark.parametrize("priorities", [1, 600])
def test_who_waits_under_many_names_or_priorities_makes_no_question_long(
    names: int, priorities: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = TenantShares(TenantConfig(tenant_key="x-team"))
    queue = AdmissionQueue(
        lambda lane: 0.0, shares=shares, now=lambda: 0.0, over_share_wait_s=lambda lane: math.inf
    )
    assert shares.counts("many")
    asked: list[str] = []
    monkeypatch.setattr(
        shares, "has_more", lambda tenant, now: asked.append(tenant) or tenant in more
    )
    more = {f"{place}" for place in range(names)}
    for place in range(600):
        name = f"{place % names} {place}"
        made = ticket(name, urgency=Urgency(place % priorities))
        queue.enter(lambda made=made: made, made.tenant)  # type: ignore[misc]
    for _ in range(50):
        assert queue.next() is None
    asked.clear()
    for _ in range(50):
        assert queue.next() is None and queue.is_open(None, "other")
    assert len(asked) < 100 * 4 * LOOKED_AT
    small = ticket("small 1", urgency=Urgency(priorities // 2))
    queue.enter(lambda: small, "small")
    assert queue.next() is small  # found at once, whatever stands beside it
    more.remove("0")  # and who has no more soon enough
    went = [queue.next() for _ in range(600 // LOOKED_AT * 2)]
    assert any(each is not None and each.tenant == "0" for each in went)


class Sharing(RuleBasedStateMachine):
    """A fleet of some places, whose tenants always have more to send.

    No turn goes to one that has more than its share while another one waits; who has nothing in the
    engines waits for no more turns of others than there are tenants.
    """

    @initialize(places=st.integers(1, 12), kept=st.integers(0, 3))
    def begin(self, places: int, kept: int) -> None:
        self.places, self.kept = places, min(kept, places - 1)
        self.now = 0.0
        self.shares = TenantShares(TenantConfig(tenant_key="x-team", max_tenants=4))
        self.queue = AdmissionQueue(
            lambda lane: 0.0 if len(self.running) < self.places else math.inf,
            now=lambda: self.now,
            shares=self.shares,
            over_share_wait_s=self.over_share_wait_s,
        )
        self.running: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.passed: dict[str, int] = {}  # turns of others, since it has nothing there
        self.serial = 0

    def over_share_wait_s(self, lane: Lane) -> float:
        return 0.0 if len(self.running) < self.places - self.kept else math.inf

    @rule(tenant=st.sampled_from(["", "a", "b", "c"]), count=st.integers(1, 10))
    def arrive(self, tenant: str, count: int) -> None:
        for _ in range(count):
            self.serial += 1
            name = f"{tenant} {self.serial}"
            if self.queue.is_open(None, tenant):
                self.on_gone(name, tenant)
            else:
                made = Ticket(name, self.now, tenant=tenant)
                self.queue.enter(lambda made=made: made, tenant)  # type: ignore[misc]
                self.waiting[name] = tenant

    @rule(data=st.data(), seconds=st.sampled_from([0.0, 1.0, 40.0]))
    def end(self, data: st.DataObject, seconds: float) -> None:
        self.now += seconds
        if self.running:
            name = data.draw(st.sampled_from([*self.running]))
            del self.running[name]
            self.shares.on_ends((name,), self.now)
        while (gone := self.queue.next()) is not None:
            tenant = self.waiting.pop(gone.request_id)
            if self.has_more(tenant):
                assert all(self.has_more(each) for each in self.waiting.values())
            self.on_gone(gone.request_id, tenant)

    def has_more(self, tenant: str) -> bool:
        return self.shares.has_more(tenant, self.now)

    def on_gone(self, name: str, tenant: str) -> None:
        self.running[name] = tenant
        self.shares.on_given(tenant, 0, self.now)
        if self.shares.counts(tenant):
            self.shares.on_booked(name, tenant, 0)
        self.passed.pop(tenant, None)
        for other in {*self.waiting.values()} - {tenant}:
            self.passed[other] = self.passed.get(other, 0) + 1

    @invariant()
    def nobody_without_anything_is_passed_over(self) -> None:
        for tenant in {*self.waiting.values()} - {*self.running.values()}:
            assert self.passed.get(tenant, 0) <= 8 * len({*self.waiting.values()})

    @invariant()
    def nobody_waits_for_places_that_anybody_may_have(self) -> None:
        assert not self.waiting or len(self.running) >= self.places - self.kept


TestSharing = Sharing.TestCase
