"""The table of workers: who looks again is told what changed, and reading is not done too often."""

from collections.abc import Iterator

import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.server.dashboard.worker_table import LEAST_S, WorkerTable
from dynamo_router.workers.registry import WorkerState

LARGE = 2**63 + 1  # a browser's numbers would round it


@pytest.fixture
def router(clock: ManualClock) -> Iterator[KvRouter]:
    with KvRouter(KvRouterConfig(block_size=4, seed=1), clock=clock) as router:
        router.add_worker(LARGE, total_kv_blocks=100)
        router.add_worker(2)
        yield router


async def look(table: WorkerTable, clock: ManualClock, version: int) -> dict[str, object]:
    clock.advance(60)
    return await table.since(version)


async def test_changes_alone_are_told(router: KvRouter, clock: ManualClock) -> None:
    table = WorkerTable(router, clock)
    first = await look(table, clock, 0)
    rows = {row["worker"]: row for row in first["rows"]}  # type: ignore[attr-defined]
    assert rows.keys() == {str(LARGE), "2"} and first["all"] and first["count"] == 2
    assert rows[str(LARGE)]["total_blocks"] == 100 and rows["2"]["requests"] == 0
    version = first["version"]
    assert isinstance(version, int)
    second = await look(table, clock, version)
    assert (second["rows"], second["gone"], second["all"]) == ([], [], False)
    router.decide(list(range(8)), "r1", pinned_worker=2)
    router.remove_worker(LARGE)
    third = await look(table, clock, version)
    (row,) = third["rows"]  # type: ignore[misc]
    assert row["worker"] == "2" and row["requests"] == 1 and row["prefill_tokens"] == 8
    assert third["gone"] == [str(LARGE)]
    router.add_worker(LARGE)
    assert (await look(table, clock, version))["gone"] == []


async def test_a_version_of_another_process_gets_all(router: KvRouter, clock: ManualClock) -> None:
    found = await WorkerTable(router, clock).since(10**6)
    assert found["all"] and len(found["rows"]) == 2


async def test_many_pages_read_once(router: KvRouter, clock: ManualClock) -> None:
    table = WorkerTable(router, clock)
    version = (await table.since(0))["version"]
    router.decide(list(range(8)), "r1")
    clock.advance(LEAST_S / 2)
    for _ in range(20):
        assert (await table.since(version))["rows"] == []
    assert (await table.since(0))["version"] == version


async def test_a_dead_worker_is_not_trusted(router: KvRouter, clock: ManualClock) -> None:
    table = WorkerTable(router, clock)
    trusts = {}
    for state in WorkerState:
        router.registry.set_state(2, state)
        rows = {row["worker"]: row for row in (await look(table, clock, 0))["rows"]}  # type: ignore[attr-defined]
        trusts[state] = rows["2"]["trust"]
        assert rows["2"]["number"] == 1 and rows[str(LARGE)]["trust"] == "silent"
    trusted = {state for state, trust in trusts.items() if trust != "unknown"}
    assert trusted == {WorkerState.READY, WorkerState.DRAINING}
