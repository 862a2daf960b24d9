"""A bound that callers share: sums, refusals, and nothing kept of callers that are gone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.base.shared_bound import SharedBound

CALLERS = st.sampled_from(["a", "b", "c"])


def test_a_caller_has_its_share_and_all_have_the_whole() -> None:
    hits = LimitHits()
    bound = SharedBound("max_things", 4, 0.5, hits)
    assert bound.take("a") is None and bound.take("a") is None
    assert bound.take("a") == "max_things: one caller may have 2"
    assert bound.take("b", 2) is None
    assert bound.take("c") == "max_things: all callers together may have 4"
    assert hits.counts() == {"max_things_per_caller": 1, "max_things": 1}
    bound.give_back("b")
    assert bound.take("c") is None and bound.used == 4


def test_a_small_share_is_never_nothing() -> None:
    assert SharedBound("few", 1, 0.01, LimitHits()).take("a") is None


@given(
    st.integers(1, 20),
    st.floats(0.05, 1),
    st.lists(st.tuples(CALLERS, st.integers(1, 6), st.booleans())),
)
def test_what_is_in_use_is_what_was_taken_and_not_given_back(most, share, steps) -> None:  # type: ignore[no-untyped-def]
    bound = SharedBound("x", most, share, LimitHits())
    held: dict[str, list[int]] = {}
    for caller, amount, give in steps:
        if give and held.get(caller):
            bound.give_back(caller, held[caller].pop())
        elif bound.take(caller, amount) is None:
            held.setdefault(caller, []).append(amount)
        used = Counter({who: sum(amounts) for who, amounts in held.items()})
        assert bound.used == used.total() <= most
        for amount in used.values():
            assert amount <= bound.most_each
        fits = bound.used < most and used["new"] < bound.most_each
        refusal = bound.take("new")
        assert (refusal is None) == fits
        if refusal is None:
            bound.give_back("new")
