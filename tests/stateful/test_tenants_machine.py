"""What tenants have in the engines is what the router has booked there, whatever became of it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import RouterError
from dynamo_router.router.admission.tenants import REQUEST_TOKENS

EXPIRY_S = 100.0
IDS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
WORKERS = st.sampled_from([1, 2, 3])


class Tenants(RuleBasedStateMachine):
    """Requests begin, and end in any way, while workers come and go."""

    @initialize(peers=st.booleans())
    def begin(self, peers: bool) -> None:
        self.clock = ManualClock()
        config = KvRouterConfig(
            block_size=16, active_request_expiry_secs=EXPIRY_S, router_replica_sync=peers
        )
        self.router = KvRouter(config, clock=self.clock, seed=1)
        for worker_id in (1, 2):
            self.router.add_worker(worker_id, total_kv_blocks=200)
        self.booked: dict[str, tuple[str, int]] = {}

    @rule(
        request_id=IDS,
        tenant=st.sampled_from(["", "x", "y", "z"]),
        tokens=st.integers(1, 400),
        pinned=st.none() | WORKERS,
    )
    def book(self, request_id: str, tenant: str, tokens: int, pinned: int | None) -> None:
        """A new one, a retry elsewhere, or an id that is in use."""
        enabled = bool(tenant) or self.router.limits.tenants.enabled
        try:
            decision = self.router.decide(
                [tokens] * tokens, request_id, pinned_worker=pinned, tenant=tenant
            )
        except RouterError:
            return
        if decision.request_id is not None and enabled:
            self.booked[request_id] = tenant, tokens + REQUEST_TOKENS

    @rule(request_id=IDS, times=st.integers(1, 2))
    def free(self, request_id: str, times: int) -> None:
        for _ in range(times):
            self.router.free(request_id, output_tokens=3)

    @rule(request_id=IDS, seen=st.booleans())
    def first_token(self, request_id: str, seen: bool) -> None:
        if seen:
            self.router.mark_prefill_complete(request_id)
        else:
            self.router.release_prefill(request_id)

    @rule(request_id=IDS)
    def touch(self, request_id: str) -> None:
        self.router.touch(request_id)

    @rule(seconds=st.sampled_from([1.0, EXPIRY_S / 2, 2 * EXPIRY_S]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.router.workers()

    @rule(worker_id=WORKERS)
    def remove(self, worker_id: int) -> None:
        self.router.remove_worker(worker_id)

    @rule(worker_id=WORKERS)
    def come(self, worker_id: int) -> None:
        self.router.add_worker(worker_id, total_kv_blocks=200)

    @invariant()
    def holdings_are_bookings(self) -> None:
        holdings = self.router.limits.tenants._holdings
        slots = self.router.slots
        expected = {
            key: kept for key, kept in self.booked.items() if slots.worker_of(key) is not None
        }
        self.booked = expected
        assert holdings._requests == expected
        by_tenant: Counter[str] = Counter()
        for tenant, tokens in expected.values():
            by_tenant[tenant] += tokens
        assert holdings._tokens == by_tenant and holdings._all == by_tenant.total()
        assert holdings._weight == len(by_tenant)
        assert holdings._squares == pytest.approx(sum(each**2 for each in by_tenant.values()))

    def teardown(self) -> None:
        if hasattr(self, "router"):
            self.router.close()


TestTenants = Tenants.TestCase
