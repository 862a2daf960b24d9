"""The resync planner: who is asked, how often, and when hope is given up."""

from dynamo_router.indexer.source import SourceState, SourceStatus
from dynamo_router.router.resync import ASKS_BEFORE_DEGRADED, LONGEST_WAIT_S, ResyncPlanner
from dynamo_router.runtime.identity import WorkerWithDpRank

A, B = WorkerWithDpRank(1), WorkerWithDpRank(2)


def status(worker: WorkerWithDpRank, state: SourceState) -> SourceStatus:
    return SourceStatus(worker, state, blocks=0)


def test_exact_and_unregistered_silent_sources_are_left_alone() -> None:
    planner = ResyncPlanner()
    plan = planner.plan([status(A, SourceState.EXACT), status(B, SourceState.SILENT)], [A], 0.0)
    assert plan.ask == [] and plan.degraded == []


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
