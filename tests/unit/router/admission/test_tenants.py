"""Shares of tenants: virtual time, recent use, and how many are remembered."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError, InvalidRequestError
from dynamo_router.router.admission.holdings import MOST_BELOW
from dynamo_router.router.admission.tenants import (
    MAX_NAME,
    RECENT_S,
    REQUEST_TOKENS,
    TenantConfig,
    TenantShares,
)

NAMES = st.sampled_from("abcd")


def shares(**settings: object) -> TenantShares:
    return TenantShares(TenantConfig(tenant_key="caller", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "expected"),
    [(None, ""), ("caller", "me"), ("cache_namespace", "7"), ("x-team", "b"), ("x-other", "")],
)
def test_whose_a_request_is(key: str | None, expected: str) -> None:
    config = TenantConfig(tenant_key=key)
    said = [("X-Team", "a"), ("x-team", "b"), ("x-dynamo-priority", "1")]
    assert config.tenant_of(said, caller="me", cache_namespace="7") == expected
    assert config.tenant_of(None) == ""
    if key == "cache_namespace":  # of a prompt with images: they are no tenants of their own
        assert config.tenant_of(None, cache_namespace="7/0a1b") == "7"
        assert config.tenant_of(None, cache_namespace="/0a1b") == ""


def test_a_name_is_text_and_so_much_of_it_counts() -> None:
    config = TenantConfig(tenant_key="x-team-bin")
    with pytest.raises(InvalidRequestError, match="x-team-bin"):
        config.tenant_of([("x-team-bin", b"a")])
    assert config.tenant_of([("x-team-bin", "a" * 9999)]) == "a" * MAX_NAME


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tenant_key", "Not A Key"),
        ("tenant_key", ""),
        ("tenant_weights", "a"),
        ("tenant_weights", "a=0"),
        ("tenant_weights", "=1"),
        ("tenant_weights", "a=1,b=nan"),
        ("tenant_weights", "a=1e17"),  # beside which others would weigh nothing
        ("tenant_weights", "a=1e-300"),
        ("max_tenants", 0),
    ],
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        TenantConfig(**{key: value})  # type: ignore[arg-type]


def test_without_a_key_nothing_is_counted() -> None:
    known = TenantShares(TenantConfig(tenant_key=None))
    known.on_given("a", 1000, 0.0)
    assert len(known) == 0 and known.virtual("a") == known.begin("a") == 0.0
    assert known.below_share("a", 0.0) == 1.0 and known.recent_use(0.0) == (0, 0, 0.0)


def test_who_comes_back_has_saved_nothing_up_and_owes_nothing() -> None:
    known = shares()
    for _ in range(100):
        known.on_given("busy", 1000, 0.0)
    assert known.begin("back") == known.virtual("busy") - 1000 - REQUEST_TOKENS


def test_weights_divide_what_a_request_costs() -> None:
    known = shares(tenant_weights="big=4, small=0.5")
    for name in ("big", "small", "other"):
        known.on_given(name, 400 - REQUEST_TOKENS, 0.0)
    assert [known.virtual(name) for name in ("big", "small", "other")] == [100, 800, 400]


def test_who_has_less_than_its_share_is_told_how_much_less() -> None:
    known = shares()
    assert known.below_share("small", 0.0) == 1.0  # nobody has any
    for place in range(9):
        known.on_given("flood", 744, 0.0)
        known.on_booked(f"flood {place}", "flood", 1000 - REQUEST_TOKENS)
    assert known.below_share("flood", 0.0) == 1.0  # alone
    assert known.below_share("small", 0.0) == MOST_BELOW
    known.on_given("small", 2744, 0.0)
    known.on_booked("small", "small", 3000 - REQUEST_TOKENS)
    assert known.below_share("small", 0.0) == pytest.approx(0.5 / 0.25)
    assert known.below_share("flood", 0.0) == 1.0
    assert known.below_share("new", 0.0) == MOST_BELOW
    assert known.recent_use(0.0) == (2, 1, 0.75)
    known.on_ends([f"flood {place}" for place in range(9)], 1.0)
    assert known.below_share("small", 1.0) == 1.0  # whatever it was before
    assert known.recent_use(60 * RECENT_S).tenants == 0


def test_use_of_late_fades_and_a_turn_is_never_free() -> None:
    known = shares(tenant_weights="a=3")
    for name, tokens, now in (("a", 0, 0.0), ("b", 744, 1.0), ("b", 744, 2.0), ("a", 9000, 100.0)):
        before = known.virtual(name)
        known.on_given(name, tokens, now)
        assert known.virtual(name) > before
    assert known.recent_use(2.0).tenants == 2
    old = 2000 * math.exp(-98 / RECENT_S)
    assert known.recent_use(100.0).largest == pytest.approx(1 - old / (9256 + old), rel=0.01)


def test_of_too_many_the_one_of_use_longest_ago_is_forgotten() -> None:
    known = shares(max_tenants=2)
    for name in "abac":
        known.on_given(name, 100, 0.0)
    assert len(known) == 2 and known.forgotten == 1
    assert known.virtual("b") == 0.0 < known.virtual("c")


@given(st.lists(st.tuples(NAMES, st.integers(0, 5000)), max_size=60))
def test_who_is_served_first_by_virtual_time_has_had_no_less_than_its_share(
    asked: list[tuple[str, int]],
) -> None:
    """All of them always wait: what two have had by weight differs by at most one request each."""
    known, weights = shares(tenant_weights="a=2,b=0.5"), {"a": 2.0, "b": 0.5}
    had = dict.fromkeys("abcd", 0.0)
    for name in had:
        known.begin(name)
    most = dict.fromkeys("abcd", 0.0)
    for _, tokens in asked:
        name = min(had, key=lambda each: (known.virtual(each), each))
        known.on_given(name, tokens, 0.0)
        cost = (tokens + REQUEST_TOKENS) / weights.get(name, 1.0)
        had[name] += cost
        most[name] = max(most[name], cost)
        for one in had:
            for other in had:
                assert had[one] - had[other] <= most[one] + 1e-6
