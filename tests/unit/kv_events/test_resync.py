"""Whom the planners ask, how often, and when they give up."""

import pytest

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.source import Missing, SourceState, SourceStatus
from dynamo_router.kv_events.resync import (
    ASKS_BEFORE_DEGRADED,
    GAP_TIMEOUT_S,
    LIVELY_WAIT_S,
    LONGEST_WAIT_S,
    REPLAY_WAIT_S,
    RESTORED_GAP_TIMEOUT_S,
    ReplayPlanner,
    ResyncPlanner,
)
from dynamo_router.kv_events.resync_wire import ResyncRequest

A, B = WorkerWithDpRank(1), WorkerWithDpRank(2, 3)


def status(worker: WorkerWithDpRank, state: SourceState, **more: int) -> SourceStatus:
    return SourceStatus(worker, state, blocks=0, **more)


def test_exact_and_unregistered_silent_sources_are_left_alone() -> None:
    planner = ResyncPlanner()
    plan = planner.plan([status(A, SourceState.EXACT), status(B, SourceState.SILENT)], [A], 0.0)
    assert plan.ask == [] and plan.degraded == []


def test_a_recovering_source_is_not_asked_for_everything() -> None:
    assert ResyncPlanner().plan([status(A, SourceState.RECOVERING)], [A], 0.0).ask == []


def test_a_registered_worker_never_heard_of_is_asked() -> None:
    assert ResyncPlanner().plan([], [B, A], 0.0).ask == [A, B]


def test_rebuilding_source_is_asked_ever_more_slowly_and_then_called_degraded() -> None:
    planner, asked, degraded_at = ResyncPlanner(), [], []
    for tenth in range(2000):
        now = tenth / 10
        plan = planner.plan([status(A, SourceState.REBUILDING)], [A], now)
        asked += [now for _ in plan.ask]
        degraded_at += [now for _ in plan.degraded]
    waits = [later - sooner for sooner, later in zip(asked, asked[1:], strict=False)]
    assert waits[0] == 0.5 and waits == sorted(waits) and max(waits) <= LONGEST_WAIT_S + 0.2
    assert degraded_at and degraded_at[0] == asked[ASKS_BEFORE_DEGRADED]


def test_a_source_that_healed_starts_afresh() -> None:
    planner = ResyncPlanner()
    assert planner.plan([status(A, SourceState.REBUILDING)], [], 0.0).ask == [A]
    assert planner.plan([status(A, SourceState.EXACT)], [], 0.1).ask == []
    assert planner.plan([status(A, SourceState.REBUILDING)], [], 0.2).ask == [A]


@pytest.mark.parametrize("state", [SourceState.REBUILDING, SourceState.DEGRADED])
@pytest.mark.parametrize(("beats", "longest"), [(1, LIVELY_WAIT_S), (0, LONGEST_WAIT_S)])
def test_a_source_whose_messages_pass_again_is_asked_soon(
    state: SourceState, beats: int, longest: float
) -> None:
    """However long nothing passed, once it is heard again it is asked within the lively wait."""
    planner, tick = ResyncPlanner(), 0.25
    for turn in range(400):  # 100 s of silence: waits are at their longest
        planner.plan([status(A, state, beats=beats)], [A], turn * tick)
    asked = [
        turn * tick
        for turn in range(400, 800)
        if planner.plan([status(A, state, beats=beats, messages=turn)], [A], turn * tick).ask
    ]
    waits = [asked[0] - 100.0, *(b - a for a, b in zip(asked, asked[1:], strict=False))]
    assert max(waits) <= longest + tick and (beats or max(waits) > LIVELY_WAIT_S)


def gap(
    first: int, last: int | None, *, publisher: int = 9, restored: bool = False
) -> SourceStatus:
    missing = Missing(publisher, first, last)
    return status(B, SourceState.RECOVERING)._replace(missing=missing, restored=restored)


def ask(planner: ReplayPlanner, source: SourceStatus, now: float) -> list[ResyncRequest]:
    return planner.plan([source], now).ask


def test_a_gap_is_asked_for_at_once_and_again_until_it_is_given_up() -> None:
    planner, asked = ReplayPlanner(), []
    for turn in range(200):
        now = turn / 100
        plan = planner.plan([gap(5, 7)], now)
        if plan.give_up:
            break
        asked += [(now, request) for request in plan.ask]
    assert plan.give_up == [B] and now == GAP_TIMEOUT_S
    assert {request for _, request in asked} == {ResyncRequest(2, 3, 9, 5, 7)}
    assert [at for at, _ in asked] == pytest.approx([k * REPLAY_WAIT_S for k in range(5)], abs=0.02)
    assert not planner.waiting


@pytest.mark.parametrize("closer", [gap(6, 7), gap(5, 7, publisher=10)])
def test_progress_is_asked_on_at_once_and_buys_time(closer: SourceStatus) -> None:
    planner = ReplayPlanner()
    assert ask(planner, gap(5, 7), 0.0) and not ask(planner, gap(5, 7), 0.1)
    assert ask(planner, closer, 0.11)
    assert not planner.plan([closer], 0.1 + GAP_TIMEOUT_S).give_up
    assert planner.plan([closer], 0.12 + GAP_TIMEOUT_S).give_up == [B]


def test_a_gap_that_closed_is_forgotten() -> None:
    planner = ReplayPlanner()
    assert ask(planner, gap(5, 7), 0.0) and planner.waiting
    assert planner.plan([], 0.05).ask == [] and not planner.waiting
    assert ask(planner, gap(5, 7), 0.1)


def test_a_doubt_is_asked_about_ever_more_slowly_and_never_given_up() -> None:
    planner, asked = ReplayPlanner(), []
    for turn in range(4000):
        plan = planner.plan([gap(5, None)], turn / 20)
        assert not plan.give_up
        asked += [turn / 20] * len(plan.ask)
    waits = [b - a for a, b in zip(asked, asked[1:], strict=False)]
    assert waits[0] == pytest.approx(REPLAY_WAIT_S) and max(waits) <= LONGEST_WAIT_S + 0.05
    assert len(asked) < 20


@pytest.mark.parametrize("last", [None, 9])
def test_what_a_file_said_is_believed_longer_but_not_for_ever(last: int | None) -> None:
    planner = ReplayPlanner()
    source = gap(5, last, restored=True)
    assert ask(planner, source, 0.0)
    assert not planner.plan([source], RESTORED_GAP_TIMEOUT_S - 0.01).give_up
    assert planner.plan([source], RESTORED_GAP_TIMEOUT_S).give_up == [B]
