"""The health monitor against engines that come, go, lie and hang."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from support.fake_engine import FakeEngine
from support.polling import until

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import ConfigError, StatusCode, WorkerError
from dynamo_router.base.identity import WorkerWithDpRank, address_worker_id
from dynamo_router.workers.failures import EngineCallError, Origin, judge
from dynamo_router.workers.health import HealthMonitor
from dynamo_router.workers.health_tracker import HealthPolicy
from dynamo_router.workers.registry import WorkerEntry, WorkerRegistry, WorkerState

EAGER = HealthPolicy(
    probe_interval_s=0.02, probe_timeout_s=10.0, retry_first_s=0.02, retry_most_s=0.05
)
IMPATIENT = replace(EAGER, probe_timeout_s=0.3)


@asynccontextmanager
async def monitoring(*urls: str, **more: Any) -> AsyncIterator[HealthMonitor]:
    more.setdefault("policy", EAGER)
    monitor = HealthMonitor(WorkerRegistry(), SystemClock(), block_size=64, **more)
    for url in urls:
        monitor.add(url)
    try:
        yield monitor
    finally:
        await monitor.close()


def entry(monitor: HealthMonitor) -> WorkerEntry:
    (only,) = monitor._registry.entries()
    return only


async def until_state(monitor: HealthMonitor, state: WorkerState) -> WorkerEntry:
    await until(lambda: len(monitor._registry) == 1 and entry(monitor).state is state)
    return entry(monitor)


async def test_an_engine_gets_its_announced_id_ranks_and_facts() -> None:
    engine = FakeEngine(worker_id=2**64 - 1)
    engine.dp_size = 4
    engine.model.supported_features.extend(
        ["kv_block_size=64", "total_kv_blocks=100", "max_num_batched_tokens=2048"]
    )
    async with engine, monitoring(engine.url) as monitor:
        found = await until_state(monitor, WorkerState.READY)
        assert (found.worker_id, found.dp_size, found.address) == (2**64 - 1, 4, engine.address)
        assert (found.total_kv_blocks, found.max_num_batched_tokens) == (100, 2048)
        assert len(monitor._registry.numbered()) == 4
        assert monitor.facts.model_id == "fake"
        assert monitor.client(2**64 - 1) is not None


async def test_an_engine_that_says_nothing_of_ranks_has_those_of_its_url() -> None:
    async with FakeEngine() as engine, monitoring(f"{engine.url}?dp_size=2&dp_start=6") as monitor:
        found = await until_state(monitor, WorkerState.READY)
        assert [rank.dp_rank for rank in found.ranks] == [6, 7]


async def test_ranks_follow_an_engine_that_has_others_now() -> None:
    engine = FakeEngine(worker_id=5)
    engine.dp_size = 2
    async with engine, monitoring(engine.url) as monitor:
        assert (await until_state(monitor, WorkerState.READY)).dp_size == 2
        engine.dp_size = 3
        await until(lambda: entry(monitor).dp_size == 3)
        assert len(monitor._registry.numbered()) == 3


@pytest.mark.parametrize("ranks", [0, 4097, 2**63])
async def test_an_engine_with_an_impossible_number_of_ranks_is_not_taken_in(ranks: int) -> None:
    engine = FakeEngine(worker_id=5)
    engine.dp_size = ranks
    async with engine, monitoring(engine.url) as monitor:
        said = f"engine sends x-dynamo-dp-size: '{ranks}', which is not in 1..4096"
        await until(lambda: len(monitor._registry) == 1 and entry(monitor).reason == said)
        assert entry(monitor).state is WorkerState.CONNECTING
        engine.dp_size = 2
        assert (await until_state(monitor, WorkerState.READY)).dp_size == 2


async def test_without_an_announced_id_the_url_decides_and_then_the_address() -> None:
    async with FakeEngine() as engine:
        async with monitoring(f"{engine.url}?id=5") as monitor:
            assert (await until_state(monitor, WorkerState.READY)).worker_id == 5
        async with monitoring(engine.url) as monitor:
            found = await until_state(monitor, WorkerState.READY)
            assert found.worker_id == address_worker_id(engine.address)


async def test_an_engine_that_describes_nothing_is_welcome() -> None:
    engine = FakeEngine()
    engine.unimplemented = {"GetModelInfo", "GetServerInfo"}
    async with engine, monitoring(engine.url) as monitor:
        await until_state(monitor, WorkerState.READY)
        assert monitor.facts.model_id == "" and monitor.facts.check_prompt(10**6, 10**6) is None


async def test_an_engine_that_is_not_there_yet_is_connecting_until_it_is() -> None:
    engine = await FakeEngine().start()
    await engine.stop()
    async with monitoring(engine.url) as monitor:
        await until(lambda: "UNAVAILABLE" in entry(monitor).reason)
        assert entry(monitor).state is WorkerState.CONNECTING
        async with engine:
            await until_state(monitor, WorkerState.READY)
        await until_state(monitor, WorkerState.UNHEALTHY)
        assert monitor.ready_clients() == [] and monitor.facts.model_id == ""


@pytest.mark.parametrize("status", ["ok", " OK\n", "Ok"])
async def test_ok_is_ok_in_any_case(status: str) -> None:
    engine = FakeEngine()
    engine.status = status
    async with engine, monitoring(engine.url) as monitor:
        await until_state(monitor, WorkerState.READY)


async def test_an_engine_that_says_it_is_ill_is_believed() -> None:
    engine = FakeEngine()
    async with engine, monitoring(engine.url) as monitor:
        await until_state(monitor, WorkerState.READY)
        engine.status = "out of memory"
        found = await until_state(monitor, WorkerState.UNHEALTHY)
        assert "'out of memory'" in found.reason
        engine.status = "OK"
        await until_state(monitor, WorkerState.READY)


async def test_an_engine_that_hangs_is_unhealthy() -> None:
    engine = FakeEngine()
    async with engine, monitoring(engine.url, policy=IMPATIENT) as monitor:
        await until_state(monitor, WorkerState.READY)
        engine.deaf = asyncio.Event()
        found = await until_state(monitor, WorkerState.UNHEALTHY)
        assert "DEADLINE_EXCEEDED" in found.reason
        engine.deaf.set()
        await until_state(monitor, WorkerState.READY)


async def test_another_block_size_is_refused_until_it_is_mended() -> None:
    engine = FakeEngine()
    engine.model.supported_features.append("kv_block_size=32")
    async with engine, monitoring(engine.url) as monitor:
        found = await until_state(monitor, WorkerState.REFUSED)
        assert found.reason == "its KV block size is 32, the router's is 64"
        assert monitor.ready_clients() == []
        engine.model.supported_features[0] = "kv_block_size=64"
        await until_state(monitor, WorkerState.READY)


async def test_two_engines_of_one_id_are_not_mixed_up() -> None:
    async with FakeEngine(worker_id=5) as one, FakeEngine(worker_id=5) as two:
        async with monitoring(one.url) as monitor:
            await until_state(monitor, WorkerState.READY)
            monitor.add(two.url)
            registry = monitor._registry
            two_id = address_worker_id(two.address)
            await until(lambda: registry.entry(two_id).state is WorkerState.REFUSED)  # type: ignore[union-attr]
            refused = registry.entry(two_id)
            assert refused is not None and f"held by {one.address}" in refused.reason
            assert registry.entry(5).address == one.address  # type: ignore[union-attr]
            # Once the first is taken away, the second may have the id.
            await monitor.remove(one.url)
            found = await until_state(monitor, WorkerState.READY)
            assert (found.worker_id, found.address) == (5, two.address)


async def test_a_successor_may_have_the_id_of_an_engine_that_is_gone() -> None:
    one, two = FakeEngine(worker_id=5), FakeEngine(worker_id=5)
    async with one, two, monitoring(one.url) as monitor:
        await until_state(monitor, WorkerState.READY)
        registry = monitor._registry
        await one.stop()
        monitor.add(two.url)
        await until(lambda: registry.entry(5).address == two.address)  # type: ignore[union-attr]
        await until(lambda: registry.entry(5).state is WorkerState.READY)  # type: ignore[union-attr]
        one_id = address_worker_id(one.address)
        assert registry.entry(one_id).address == one.address  # type: ignore[union-attr]
        # Back again, it finds its id taken.
        await one.start()
        await until(lambda: registry.entry(one_id).state is WorkerState.REFUSED)  # type: ignore[union-attr]
        assert monitor.client(5).address == two.address  # type: ignore[union-attr]


async def test_the_odd_model_is_refused_even_if_it_came_first() -> None:
    odd, *usual = engines = [FakeEngine() for _ in range(3)]
    odd.model.model_id = "other"
    for engine in engines:
        await engine.start()
    try:
        async with monitoring(odd.url) as monitor:
            await until_state(monitor, WorkerState.READY)
            for engine in usual:
                monitor.add(engine.url)
            refused = address_worker_id(odd.address)
            registry = monitor._registry
            await until(lambda: len(monitor.ready_clients()) == 2)
            # What is known of it is asked again now and then.
            await until(lambda: registry.entry(refused).state is WorkerState.REFUSED)  # type: ignore[union-attr]
            assert registry.entry(refused).reason == "its model is 'other', others' 'fake'"  # type: ignore[union-attr]
            assert {c.address for c in monitor.ready_clients()} == {e.address for e in usual}
            assert monitor.facts.model_id == "fake"
    finally:
        for engine in engines:
            await engine.stop()


async def test_models_may_be_mixed_if_one_says_so() -> None:
    one, two = FakeEngine(), FakeEngine()
    two.model.model_id = "other"
    async with one, two, monitoring(one.url, two.url, mixed_models=True) as monitor:
        await until(lambda: len(monitor.ready_clients()) == 2)


async def test_an_engine_that_no_longer_describes_itself_goes_on() -> None:
    async with FakeEngine() as engine, monitoring(engine.url) as monitor:
        await until_state(monitor, WorkerState.READY)
        engine.described = 0
        engine.undescribed = grpc.StatusCode.INTERNAL
        heard: list[WorkerState] = []
        monitor.listeners.append(lambda: heard.append(entry(monitor).state))
        await until(lambda: engine.described > 2)
        assert not heard and entry(monitor).state is WorkerState.READY


async def test_connecting_may_take_longer_than_a_probe() -> None:
    handlers = set[asyncio.Task[None] | None]()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        await asyncio.sleep(0.8)  # the fault itself: an engine that is slow to greet
        there, here = await asyncio.open_connection("127.0.0.1", engine.port)
        pumps = [
            asyncio.create_task(_pump(reader, here)),
            asyncio.create_task(_pump(there, writer)),
        ]
        await asyncio.wait(pumps)
        handlers.remove(asyncio.current_task())

    async with FakeEngine() as engine:
        proxy = await asyncio.start_server(late, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        async with monitoring(f"127.0.0.1:{port}", policy=IMPATIENT) as monitor:
            await until_state(monitor, WorkerState.READY)
        proxy.close()
        await proxy.wait_closed()
        await until(lambda: not handlers)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
    sink.close()


async def test_an_engine_that_comes_back_as_another_is_taken_as_that() -> None:
    engine = FakeEngine(worker_id=5)
    async with engine, monitoring(engine.url) as monitor:
        await until_state(monitor, WorkerState.READY)
        engine.worker_id = 6
        await until(lambda: entry(monitor).worker_id == 6)
        await until_state(monitor, WorkerState.READY)
        assert monitor.client(5) is None and monitor.client(6) is not None
        assert [worker for _, worker in monitor._registry.numbered()] == [WorkerWithDpRank(6)]


async def test_a_nonsensical_id_is_not_taken() -> None:
    engine = FakeEngine()
    engine.worker_id = "-3"  # type: ignore[assignment]
    async with engine, monitoring(engine.url) as monitor:
        await until(lambda: "which is no number" in entry(monitor).reason)
        assert entry(monitor).state is WorkerState.CONNECTING


async def test_listeners_hear_of_changes_only() -> None:
    engine = FakeEngine()
    async with engine, monitoring() as monitor:
        heard: list[WorkerState] = []
        monitor.listeners.append(lambda: heard.append(entry(monitor).state))
        monitor.add(engine.url)
        await until_state(monitor, WorkerState.READY)
        before = len(heard)
        probes = engine.probes
        await until(lambda: engine.probes > probes + 20)
        assert len(heard) == before


async def test_the_same_address_twice_is_an_error() -> None:
    async with monitoring("grpc://127.0.0.1:1") as monitor:
        with pytest.raises(ConfigError, match="twice"):
            monitor.add("127.0.0.1:1?id=4")


async def test_reports_about_strangers_are_ignored() -> None:
    async with monitoring() as monitor:
        reports = monitor.reports
        reports.sent(404)
        for origin in Origin:
            verdict = judge(origin, StatusCode.UNAVAILABLE, started=False)
            reports.failed(404, verdict, 1.0)
            reports.convicted(404, verdict)
        for end in (reports.undecided, reports.given_up):
            end(404)
        reports.answered(404, 1.0)
        reports.succeeded(404, 1.0)
        monitor.suspect(404, 5.0)
        assert monitor.client(404) is None and not reports.errors


async def test_closing_leaves_no_task() -> None:
    async with FakeEngine() as engine:
        async with monitoring(engine.url, "grpc://127.0.0.1:1") as monitor:
            await until(monitor.ready_clients)
        left = {task.get_name() for task in asyncio.all_tasks()}
        assert not [name for name in left if name.startswith("health")]


class StalledClock(SystemClock):
    stalled_s = 0.0

    def now(self) -> float:
        return super().now() + self.stalled_s


LATE = StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    "error",
    [
        EngineCallError(Origin.DEADLINE, LATE, "no answer"),
        EngineCallError(Origin.ENGINE, LATE, "Deadline Exceeded"),  # over gRPC
        WorkerError("no answer in time"),  # over HTTP
        WorkerError("it does not answer a canary"),  # of Dynamo's
    ],
    ids=["deadline", "grpc", "http", "dynamo"],
)
@pytest.mark.parametrize("stall_s, ends", [(0.0, WorkerState.UNHEALTHY), (1.0, WorkerState.READY)])
async def test_a_stall_of_the_router_is_no_failed_probe(
    stall_s: float, ends: WorkerState, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StalledClock()
    monitor = HealthMonitor(WorkerRegistry(), clock, block_size=64, policy=EAGER)
    async with FakeEngine(worker_id=5) as engine:
        monitor.add(engine.url)
        await until_state(monitor, WorkerState.READY)
        client = monitor.client(5)
        assert client is not None
        states: list[WorkerState] = []
        monitor.listeners.append(lambda: states.append(entry(monitor).state))
        answers = client.check_health
        probes = 0

        async def check_health(*, timeout: float) -> Any:
            nonlocal probes
            probes += 1
            if probes > 1:
                return await answers(timeout=timeout)
            clock.stalled_s += timeout + stall_s
            raise error

        monkeypatch.setattr(client, "check_health", check_health)
        await until(lambda: probes >= 3)
        await monitor.close()
    assert (WorkerState.UNHEALTHY in states) == (ends is WorkerState.UNHEALTHY)
