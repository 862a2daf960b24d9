"""POST /clear_kv_blocks: engines of every dialect empty their caches, and the index hears of it."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from support.fake_engine import FakeEngine, prompt
from support.polling import until
from support.servers.discovered_fleet import (
    ENGINE,
    Backend,
    completed,
    finding,
    registered,
    until_ready,
)
from support.servers.jetstream import JetStreamServer
from support.servers.model_serving import TINY, many, model_serving
from support.serving import BLOCK, Ports, serving

from dynamo_router.engines.mocker.config import MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.mocker.tiers import TierConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.components import beside
from dynamo_router.runtime.kv_stores import open_store
from dynamo_router.workers.trtllm_proto import SERVICE

TOKENS = list(range(1, 1 + 2 * BLOCK))


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[JetStreamServer]:
    with JetStreamServer(tmp_path / "nats") as server:
        yield server


async def cleared(ports: Ports, query: str = "") -> dict[str, Any]:
    status, body = await ports.http("POST", f"/clear_kv_blocks{query}", json={})
    assert status == 200
    found: dict[str, Any] = body
    return found


async def overlaps(ports: Ports) -> dict[str, int]:
    _, body = await ports.http("POST", "/overlaps", json={"token_ids": TOKENS})
    return {worker: blocks for worker, blocks in body.items() if blocks}


async def _nothing_indexed(ports: Ports) -> bool:
    return not await overlaps(ports)


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_all_workers_are_cleared_and_their_events_tell_so(
    backend: Backend, nats: JetStreamServer, dialect: str
) -> None:
    async with (
        registered(backend, 3, dialect=dialect, nats=nats.url) as fleet,
        finding(backend, nats=nats.url) as ports,
    ):
        await until_ready(ports, 3)
        for number in range(6):
            await completed(ports, f"r{number}", TOKENS)
        held = {id for id, e in zip(fleet.worker_ids, fleet.engines, strict=True)
                if e.engine.inactive_blocks}  # fmt: skip
        await until(lambda: _is(ports, {str(id) for id in held}))
        found = await cleared(ports)
        assert {row["worker_id"] for row in found["cleared_workers"]} == set(fleet.worker_ids)
        assert not found["failed_workers"]
        assert not any(engine.engine.inactive_blocks for engine in fleet.engines)
        assert not any(list(engine.engine.cached_blocks()) for engine in fleet.engines)
        await until(lambda: _nothing_indexed(ports))
        # It is filled anew, and told of.
        await completed(ports, "again", TOKENS)
        await until(lambda: _some_indexed(ports))


async def _is(ports: Ports, workers: set[str]) -> bool:
    return (await overlaps(ports)).keys() == workers


async def _some_indexed(ports: Ports) -> bool:
    return bool(await overlaps(ports))


async def test_lower_tiers_and_ranks_are_cleared_too(backend: Backend) -> None:
    small = replace(
        ENGINE, num_gpu_blocks=8, dp_size=2, tiers=TierConfig(host_blocks=64, disk_blocks=64)
    )
    async with (
        registered(backend, 1, engine=small) as fleet,
        finding(backend, router=KvRouterConfig(block_size=BLOCK, seed=1)) as ports,
    ):
        await until_ready(ports, 1)
        for number in range(12):
            await completed(ports, f"r{number}", range(1 + number * 60, 61 + number * 60))
        engines = fleet.engines[0].ranks.engines
        assert any(list(engine.cached_blocks("host_pinned")) for engine in engines)
        assert len((await cleared(ports))["cleared_workers"]) == 1
        for engine in engines:
            assert not any(list(engine.cached_blocks(tier)) for tier in ("device", "host_pinned"))
        for number in range(12):
            await completed(ports, f"a{number}", range(1 + number * 60, 61 + number * 60))


async def test_each_worker_that_did_not_is_told_of_with_the_reason(backend: Backend) -> None:
    config = MockerConfig(workers=1, port=0, engine=ENGINE, speedup_ratio=4.0, model_id="fake")
    stranger, dead = FakeEngine(worker_id=7), FakeEngine(worker_id=8)
    for engine in (stranger, dead):
        engine.model.model_id = "fake"
    async with AsyncExitStack() as stack:
        busy = await stack.enter_async_context(MockFleet(config))
        ports = await stack.enter_async_context(
            serving(stranger, dead, workers=[f"grpc://{busy.addresses[0]}"])
        )
        await dead.stop()
        (worker_id,) = busy.worker_ids
        channel = await stack.enter_async_context(aio.insecure_channel(busy.addresses[0]))
        long = prompt("long", 40)
        long.max_tokens = 400
        call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)(long.SerializeToString())
        await until(lambda: busy.engines[0].engine.running)
        found = await cleared(ports)
        assert not found["cleared_workers"]
        reasons = {row["worker_id"]: row["error"] for row in found["failed_workers"]}
        assert reasons.keys() == {7, 8, worker_id}
        assert reasons[7] == "the engine does not implement this call"
        assert "in use" in reasons[worker_id] and reasons[8]
        call.cancel()
        await until(lambda: not busy.engines[0].busy)
        await until(lambda: _clears(ports, worker_id))


async def _clears(ports: Ports, worker_id: int) -> bool:
    return worker_id in {row["worker_id"] for row in (await cleared(ports))["cleared_workers"]}


async def test_what_was_predicted_of_a_cleared_worker_is_forgotten() -> None:
    config = MockerConfig(workers=2, port=0, engine=ENGINE, speedup_ratio=1000.0)
    async with MockFleet(config) as fleet:
        async with serving(workers=[f"grpc://{address}" for address in fleet.addresses]) as ports:
            await completed(ports, "one", TOKENS)
            assert len(await overlaps(ports)) == 1
            assert len((await cleared(ports))["cleared_workers"]) == 2
            assert await overlaps(ports) == {}
            await completed(ports, "two", TOKENS)
            assert len(await overlaps(ports)) == 1


async def test_a_model_may_be_cleared_alone(backend: Backend) -> None:
    async with (
        registered(backend, 2, model_id="a", engine=TINY, dialect="dynamo") as ours,
        registered(backend, 1, model_id="b", engine=TINY) as theirs,
        model_serving(backend) as client,
    ):
        await client.until_shares(a=2, b=1)
        await many(client, "a", 10)
        await many(client, "b", 10)
        for query, status, ids in (
            ("?model=a", 200, set(ours.worker_ids)),
            ("?model=nobody", 404, set()),
            ("", 200, {*ours.worker_ids, *theirs.worker_ids}),
        ):
            url = f"{client.url}/clear_kv_blocks{query}"
            async with client.session.post(url, json={}) as response:
                assert response.status == status
                body = await response.json()
            rows = body.get("cleared_workers", [])
            assert {row["worker_id"] for row in rows} == ids
            assert not body.get("failed_workers")
            assert all(row["model"] in ("a", "b") for row in rows)


async def test_dynamos_callers_find_the_endpoint_and_get_its_words(backend: Backend) -> None:
    """As its frontend does it: by the instances of `clear_kv_blocks`, with no body."""
    async with (
        registered(backend, 2, dialect="dynamo") as fleet,
        DistributedRuntime(open_store(backend.kind, backend.environ)) as runtime,
    ):
        client = await runtime.client("dynamo.backend.clear_kv_blocks")
        await until(lambda: len(client.instances) == 2)
        for worker_id in fleet.worker_ids:
            for body in (None, {}, {"junk": [1]}, "text"):
                answer = [part async for part in client.direct(body, worker_id)]
                assert answer == [{"status": "success", "message": "KV cache cleared"}]
        await fleet.engines[0].stop()
        await until(lambda: set(client.instances) == {fleet.worker_ids[1]})


@pytest.mark.parametrize(
    ("transport", "address", "expected"),
    [
        ("tcp", "h:1/7f/ns/comp/generate", "h:1/7f/ns/comp/clear"),
        ("tcp", "[::1]:1/7f/ns/comp/generate", "[::1]:1/7f/ns/comp/clear"),
        ("nats_tcp", "ns_comp.generate-7f", "ns_comp.clear-7f"),
        ("nats_tcp", "ns_comp.my-generate-7f", "ns_comp.clear-7f"),
        ("nats_tcp", "nothing", None),
        ("tcp", "h:1", None),
        ("http", "h:1/a", None),
    ],
)
def test_the_address_of_another_endpoint(
    transport: str, address: str, expected: str | None
) -> None:
    assert beside(transport, address, "clear") == expected


async def test_a_worker_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamo_router.server.admin.cache_clearing.CLEAR_TIMEOUT_S", 0.2)
    config = MockerConfig(workers=2, port=0, engine=ENGINE)
    async with MockFleet(config) as fleet:
        async with serving(workers=[f"grpc://{address}" for address in fleet.addresses]) as ports:
            fleet.engines[0].ranks.hang(True)
            found = await cleared(ports)
            assert [r["worker_id"] for r in found["cleared_workers"]] == fleet.worker_ids[1:]
            assert [r["worker_id"] for r in found["failed_workers"]] == fleet.worker_ids[:1]
            fleet.engines[0].ranks.hang(False)
            answers = await asyncio.gather(*(cleared(ports) for _ in range(5)))
            assert all(len(found["cleared_workers"]) == 2 for found in answers)
