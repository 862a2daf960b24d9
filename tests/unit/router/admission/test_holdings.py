"""What tenants have in the engines: who has more than its share, and that names cost nothing."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamo_router.router.admission.holdings import (
    ABOUT_S,
    MORE,
    MOST_BELOW,
    OF_THE_LARGE,
    TenantHoldings,
)

WEIGHTS = {"b": 2.0, "c": 0.5}
NAMES = st.sampled_from(["a", "b", "c", "d", ""])


def test_who_is_alone_has_no_more_than_its_share() -> None:
    holdings = TenantHoldings({}, 10)
    for place in range(100):
        holdings.on_booked(str(place), "", 1000)
    assert not holdings.has_more("", 0.0) and not holdings.has_more("nobody", 0.0)


def test_who_has_asked_of_late_has_a_share_though_it_has_nothing() -> None:
    holdings = TenantHoldings({}, 10)
    holdings.on_booked("1", "flood", 1000)
    holdings.on_asked("small", 5.0)
    assert holdings.has_more("flood", 5.0)
    assert not holdings.has_more("flood", 5.0 + ABOUT_S)
    holdings.on_asked("small", 100.0)
    holdings.on_booked("2", "small", 900)
    assert not holdings.has_more("flood", 100.0)  # about as much
    holdings.on_booked("3", "flood", 500)
    assert holdings.has_more("flood", 100.0) and not holdings.has_more("small", 100.0)
    holdings.on_end("3", 101.0)
    assert not holdings.has_more("flood", 101.0)
    holdings.on_end("2", 110.0)  # counts from its end
    assert holdings.has_more("flood", 109.0 + ABOUT_S)


def test_weights_say_how_much_is_a_share() -> None:
    holdings = TenantHoldings({"big": 3.0}, 10)
    holdings.on_booked("1", "big", 2900)
    holdings.on_booked("2", "small", 1000)
    assert not holdings.has_more("big", 0.0) and not holdings.has_more("small", 0.0)
    holdings.on_booked("3", "small", 1000)
    assert holdings.has_more("small", 0.0) and not holdings.has_more("big", 0.0)


def test_thousands_of_names_thin_nobodys_share_out_and_take_no_memory() -> None:
    holdings = TenantHoldings({}, 100)
    for place in range(900):
        holdings.on_booked(f"flood {place}", "flood", 1000)
    for place in range(5):
        holdings.on_booked(f"small {place}", "small", 1000)
    for place in range(10_000):
        holdings.on_asked(f"asked {place}", 0.0)
    assert len(holdings._away) == 100
    assert holdings.has_more("flood", 0.0) and not holdings.has_more("small", 0.0)
    for place in range(1000):  # one request each: five are more than the mean then
        holdings.on_booked(f"name {place}", f"name {place}", 1000)
    assert holdings.has_more("flood", 0.0) and not holdings.has_more("small", 0.0)
    for place in range(1000):
        holdings.on_end(f"name {place}", 0.0)
    assert len(holdings._tokens) == 2 and len(holdings._away) == 100
    holdings.on_ends([*holdings._requests], 0.0)
    assert not holdings._requests and not holdings._tokens and holdings._all == 0


class Holding(RuleBasedStateMachine):
    """Held against a recount of all that is there."""

    def __init__(self) -> None:
        super().__init__()
        self.holdings = TenantHoldings(WEIGHTS, 3)
        self.requests: dict[str, tuple[str, int]] = {}
        self.away: dict[str, float] = {}  # in the order in which they were last heard of
        self.now = 0.0
        self.serial = 0

    @rule(tenant=NAMES, tokens=st.integers(1, 5000), known=st.booleans())
    def book(self, tenant: str, tokens: int, known: bool) -> None:
        request_id = str(self.serial - known)
        if request_id not in self.requests:
            self.requests[request_id] = tenant, tokens
            self.away.pop(tenant, None)
        self.serial = max(self.serial, int(request_id) + 1)
        self.holdings.on_booked(request_id, tenant, tokens)

    @rule(tenant=NAMES)
    def hear(self, tenant: str) -> None:
        self.holdings.on_asked(tenant, self.now)
        self.note(tenant)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from([*self.requests]))
        tenant, _ = self.requests.pop(request_id)
        self.holdings.on_ends([request_id, "never booked"], self.now)
        self.note(tenant)

    @rule(seconds=st.sampled_from([1.0, ABOUT_S / 2, ABOUT_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def note(self, tenant: str) -> None:
        if all(each != tenant for each, _ in self.requests.values()):
            self.away.pop(tenant, None)
            self.away[tenant] = self.now
            if len(self.away) > 3:
                del self.away[next(iter(self.away))]

    @invariant()
    def those_have_more_of_whom_a_recount_says_it(self) -> None:
        tokens: dict[str, int] = {}
        for tenant, each in self.requests.values():
            tokens[tenant] = tokens.get(tenant, 0) + each
        whole = sum(tokens.values())
        away = any(self.now - at < ABOUT_S for at in self.away.values())
        weights = sum(WEIGHTS.get(tenant, 1.0) for tenant in tokens) + away
        large = sum(each**2 / WEIGHTS.get(tenant, 1.0) for tenant, each in tokens.items())
        for tenant in "abcd":
            own = tokens.get(tenant, 0) / WEIGHTS.get(tenant, 1.0)
            part, of_large = own * weights, own * whole
            near = part == pytest.approx(MORE * whole) or of_large == pytest.approx(
                OF_THE_LARGE * large
            )
            expected_share = whole / weights / own if own else MOST_BELOW if whole else 1.0
            assert self.holdings.below_share(tenant, self.now) == pytest.approx(
                min(MOST_BELOW, max(1.0, expected_share))
            )
            if not near:
                expected = part > MORE * whole and of_large >= OF_THE_LARGE * large
                assert self.holdings.has_more(tenant, self.now) == (expected and own > 0)

    @invariant()
    def not_all_who_are_about_have_more(self) -> None:
        there = {tenant for tenant, _ in self.requests.values()}
        more = {each for each in there if self.holdings.has_more(each, self.now)}
        about = there | {each for each, at in self.away.items() if self.now - at < ABOUT_S}
        assert len(more) < max(1, len(about))


TestHolding = Holding.TestCase
