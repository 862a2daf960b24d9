"""Series by worker: what they say, that they go with their worker, and that they are bounded."""

from collections.abc import Iterator

import pytest
from support.kv_events.messages import prompt_message
from support.observability.exposition import families, samples, values_of

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError, StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.server.metrics.page import MetricsPage
from dynamo_router.server.metrics.worker_requests import WorkerRequests
from dynamo_router.server.metrics.workers import worker_metrics
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.workers.failures import WORKER_CAUSES, Origin, judge
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.request_reports import RequestReports

BLOCK = 16


class Fleet:
    """A router with workers that nobody serves, and the page of their metrics."""

    def __init__(self, most: int = 1000) -> None:
        clock = ManualClock()
        self.router = KvRouter(KvRouterConfig(block_size=BLOCK), clock=clock)
        self.reports = RequestReports(
            clock, None, on_changed=lambda worker_id: None, on_lost=lambda worker_id: None
        )
        requests = WorkerRequests(self.router.registry)
        self.page = MetricsPage(worker_metrics(self.router, requests, self.reports, most))

    def join(self, *worker_ids: int, dp_size: int = 1) -> None:
        for worker_id in worker_ids:
            self.router.add_worker(worker_id, dp_size=dp_size)
            self.reports.set_alive(worker_id, True)

    def announce(self, worker_id: int, blocks: int) -> None:
        """A worker says what it caches."""
        tokens, worker = range(1, 1 + blocks * BLOCK), WorkerWithDpRank(worker_id)
        self.router.apply_event(prompt_message(worker, tokens, BLOCK, 0, worker_id))

    async def scrape(self, accept: str = "") -> dict[str, object]:
        page = await self.page.render(accept)
        return families(page.body.decode(), openmetrics=bool(accept))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.router.close()


@pytest.fixture
def small() -> Iterator[Fleet]:
    """One that shows two ranks by themselves."""
    fleet = Fleet(most=2)
    yield fleet
    fleet.router.close()


FAILED = judge(Origin.EMPTY, StatusCode.OK, started=False)


async def test_load_and_caches_are_told_by_rank(fleet: Fleet) -> None:
    fleet.join(5, dp_size=2)
    fleet.announce(5, 3)
    decision = fleet.router.decide(list(range(100, 140)), "r1")
    for accept in ("", "application/openmetrics-text"):
        found = await fleet.scrape(accept)
        (rank,) = [
            sample.labels
            for sample in found["dynamo_router_worker_active_requests"].samples  # type: ignore[attr-defined]
            if sample.value == 1
        ]
        assert rank == {"worker_id": "5", "dp_rank": str(decision.worker.dp_rank)}
        blocks = values_of(found["dynamo_router_worker_indexed_blocks"], "dp_rank")
        assert blocks == {"0": 3, "1": 0}
        assert values_of(found["dynamo_router_workers"], "state")["ready"] == 2


async def test_why_a_worker_is_out_is_one_of_a_few_words(fleet: Fleet) -> None:
    fleet.join(1, 2, 3, 4, 5)
    for _ in range(5):
        fleet.reports.failed(1, FAILED, 0.1, pinned=False)
    reason = fleet.reports.outliers.reason(1)
    assert "ejected" in reason
    registry = fleet.router.registry
    registry.set_state(1, WorkerState.UNHEALTHY, reason)
    registry.set_state(2, WorkerState.UNHEALTHY, "UNAVAILABLE: connection refused")
    registry.set_state(3, WorkerState.REFUSED, "its KV block size is 32")
    registry.set_state(4, WorkerState.DRAINING)
    found = await fleet.scrape()
    labels = [s.labels for s in found["dynamo_router_worker_state"].samples]  # type: ignore[attr-defined]
    assert [(x["worker_id"], x["state"], x["reason"]) for x in labels] == [
        ("1", "unhealthy", "ejected"),
        ("2", "unhealthy", "no_answer"),
        ("3", "refused", "unfit"),
        ("4", "draining", ""),
        ("5", "ready", ""),
    ]
    assert values_of(found["dynamo_router_worker_ejections"], "worker_id") == {
        "1": 1,
        **dict.fromkeys("2345", 0),
    }
    errors = samples(found["dynamo_router_worker_errors"])
    assert len(errors) == 5 * len(WORKER_CAUSES)
    assert {key: count for key, count in errors.items() if count} == {
        ("dynamo_router_worker_errors_total", (("cause", "empty"), ("worker_id", "1"))): 5
    }


async def test_series_go_with_their_worker(fleet: Fleet) -> None:
    fleet.join(1, 2)
    fleet.reports.failed(1, FAILED, 0.1, pinned=False)
    before = await fleet.scrape()
    fleet.router.remove_worker(1)
    fleet.reports.forget(1)
    after = await fleet.scrape()

    def named(found: dict[str, object]) -> set[str]:
        return {
            sample.labels["worker_id"]
            for family in found.values()
            for sample in family.samples  # type: ignore[attr-defined]
            if "worker_id" in sample.labels
        }

    assert named(before) == {"1", "2"}
    assert named(after) == {"2"}


async def test_who_is_beyond_the_bound_is_summed_up(small: Fleet) -> None:
    small.join(1, 2, 3, 4)
    for worker_id in (1, 3, 4):
        small.announce(worker_id, worker_id)
        small.reports.failed(worker_id, FAILED, 0.1, pinned=False)
    found = await small.scrape()
    blocks = values_of(found["dynamo_router_worker_indexed_blocks"], "worker_id")
    assert blocks == {"1": 1, "2": 0, "other": 7}
    errors = samples(found["dynamo_router_worker_errors"])
    assert {dict(labels)["worker_id"]: n for (_, labels), n in errors.items() if n} == {
        "1": 1,
        "other": 2,
    }
    states = values_of(found["dynamo_router_event_source_state"], "worker_id")
    assert states == {"1": 1, "2": 1, "other": 2}
    assert values_of(found["dynamo_router_workers"], "state")["ready"] == 4
    (left_out,) = found["dynamo_router_metrics_ranks_left_out"].samples  # type: ignore[attr-defined]
    assert left_out.value == 2


async def test_strangers_are_one_series_however_many_they_are(fleet: Fleet) -> None:
    fleet.join(1)
    for worker_id in range(100, 150):
        fleet.announce(worker_id, 2)
    found = await fleet.scrape()
    blocks = values_of(found["dynamo_router_worker_indexed_blocks"], "worker_id")
    assert blocks == {"1": 0, "unregistered": 100}
    states = samples(found["dynamo_router_event_source_state"])
    exact = (("state", "exact"), ("worker_id", "unregistered"))
    assert states["dynamo_router_event_source_state", exact] == 50
    assert values_of(found["dynamo_router_workers"], "state")["unregistered"] == 50


async def test_a_worker_that_leaves_while_it_is_looked_at_is_left_out(fleet: Fleet) -> None:
    fleet.join(*range(1, 200))
    steps = fleet.router.workers_in_steps()
    seen = next(steps)
    while not seen:
        seen = next(steps)
    fleet.router.remove_worker(150)
    fleet.router.add_worker(999)  # under the number of the one that left
    rest = [view.worker.worker_id for views in steps for view in views]
    assert 150 not in rest and len(rest) == 198 - len(seen)


def test_a_bound_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="metrics_max_workers"):
        ObservabilityConfig(metrics_max_workers=-1)
