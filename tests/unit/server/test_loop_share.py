"""Work that may have a share of the time: never more in the long run, also after a pause."""

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.server.loop_share import TimeShare

SHARE, BURST_S = 0.1, 0.5


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 0.3)), min_size=1, max_size=60))
def test_the_share_is_kept(turns: list[tuple[float, float]]) -> None:
    share = TimeShare(SHARE, burst_s=BURST_S)
    now = took = longest = 0.0
    refused = 0
    for wait, seconds in turns:
        now += wait
        if share.is_due(now):
            share.spent(seconds, now)
            took, longest = took + seconds, max(longest, seconds)
        else:
            refused += 1
    assert took <= BURST_S + SHARE * now + longest + 1e-9
    assert share.skipped == refused


def test_what_was_saved_up_is_enough_for_a_burst_and_no_more() -> None:
    share = TimeShare(SHARE, burst_s=BURST_S)
    done = 0
    while share.is_due(0.0):
        share.spent(0.1, 0.0)
        done += 1
    assert done == 6  # the last one on credit
    assert not share.is_due(0.9) and share.is_due(1.1)


def test_a_break_follows_however_little_it_took() -> None:
    share = TimeShare(SHARE, least_s=2.0)
    assert share.is_due(0.0)
    share.spent(0.0, 0.0)
    assert not share.is_due(1.9) and share.is_due(2.0)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 0.3)), max_size=20), st.floats(0, 2))
def test_work_is_due_after_the_wait_and_not_before(
    turns: list[tuple[float, float]], least_s: float
) -> None:
    share, now = TimeShare(SHARE, burst_s=BURST_S, least_s=least_s), 0.0
    for wait, seconds in turns:
        now += wait
        share.spent(seconds, now)
    needed = share.wait_s(now)
    assert share.is_due(now + needed + 1e-6)
    assert needed == 0 or not share.is_due(now + needed - 1e-6)
