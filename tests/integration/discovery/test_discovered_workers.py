"""Workers that are found in a store: they come, are called, and go, while others are given."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.engines.token_services import TokenService, VllmService, vllm_last, vllm_part
from support.fake_engine import FakeEngine
from support.polling import closed_after, until
from support.servers.discovered_fleet import (
    Backend,
    completed,
    finding,
    on_stores,
    registered,
    until_ready,
    workers_of,
)

from dynamo_router.runtime.kv_stores import open_store
from dynamo_router.workers.health_tracker import HealthPolicy

DIALECTS = ("trtllm", "dynamo")


@on_stores("file", "etcd", "nats")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_workers_are_found_called_and_go(backend: Backend, dialect: str) -> None:
    async with finding(backend) as ports, registered(backend, 2, dialect=dialect) as fleet:
        await until_ready(ports, 2)
        found = await workers_of(ports)
        assert {worker["worker_id"] for worker in found} == set(fleet.worker_ids)
        assert {worker["dialect"] for worker in found} == {dialect}
        assert {worker["origin"] for worker in found} == {backend.kind}
        outputs = [await completed(ports, f"r{n}") for n in range(4)]
        assert len({tuple(output) for output in outputs}) == 1
        async with registered(backend, 3, dialect=dialect, model_id="mock-model"):
            await until_ready(ports, 5)
        await until_ready(ports, 2)
        assert await completed(ports, "again") == outputs[0]


@on_stores("file", "etcd", "nats")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_workers_that_write_keys_as_the_first_generation_does_are_found(
    backend: Backend, dialect: str
) -> None:
    async with (
        finding(backend) as ports,
        registered(backend, 2, dialect=dialect, key_generation="seed") as fleet,
    ):
        await until_ready(ports, 2)
        async with closed_after(open_store(backend.kind, backend.environ)) as store:
            assert not (await store.bucket("v1/instances").entries("")).entries
            instances = (
                await store.bucket("/services").entries("dynamo/backend/generate/")
            ).entries
            assert len(instances) == 2
            cards = (await store.bucket("v1/mdc").entries("")).entries
            expected = {f"dynamo.backend.generate/{id:x}" for id in fleet.worker_ids}
            assert {card.key for card in cards} == expected
            # A worker may stand there twice, and a value be written by who knows only doubles.
            twin = cards[0].value
            (entry,) = (e for e in instances if e.key.endswith(cards[0].key.rpartition("/")[2]))
            value = json.loads(entry.value)
            value["instance_id"] = float(value["instance_id"])
            await store.bucket("v1/mdc").put(cards[0].key.replace(".", "/"), twin)
            await store.bucket("v1/instances").put(entry.key, json.dumps(value).encode())
            await store.bucket("/services").put("dynamo/backend/generate/+7", entry.value)
            await store.bucket("v1/mdc").put("dynamo.backend.generate/junk", twin)
            async with registered(backend, 1, dialect=dialect):
                await until_ready(ports, 3)
            await until_ready(ports, 2)
            assert len(await completed(ports, "one")) == 4


async def test_a_card_may_be_that_of_another_service(backend: Backend) -> None:
    """Which gRPC service an engine of a store has is found by asking it, as of a given one; its URL
    says there what a given one says."""

    async def says(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        yield vllm_part([11, 12, 13, 14])
        yield vllm_last([11, 12, 13, 14], "length")

    async with VllmService(says) as engine, finding(backend) as ports:
        engine.info.kv_connector = "NixlPushConnector"
        async with closed_after(open_store(backend.kind, backend.environ)) as store:
            async with registered(backend, 1, model_id="tiny") as fleet:
                await until_ready(ports, 1)
                for name in ("v1/mdc", "v1/instances"):
                    (entry,) = (await store.bucket(name).entries("")).entries
                    value = json.loads(entry.value)
                    value["instance_id"] = 77
                    if "transport" in value:
                        address = f"{engine.url}?handoff=nixl_push&handoff_port=7000"
                        value["transport"] = {"trtllm_grpc": address}
                    key = entry.key.replace(f"{fleet.worker_ids[0]:x}", f"{77:x}")
                    await store.bucket(name).put(key, json.dumps(value).encode())
                await until_ready(ports, 2)
            await until_ready(ports, 1)
            (worker,) = await workers_of(ports)
            assert (worker["worker_id"], worker["dialect"]) == (77, "vllm")
            assert await completed(ports, "one") == [11, 12, 13, 14]
            watched = ports.server.monitor.engine(77)
            assert watched is not None and watched.facts.transfer.port == 7000


async def test_a_given_worker_may_stand_beside_them(backend: Backend) -> None:
    engine = FakeEngine(worker_id=7)
    engine.model.model_id = "mock-model"
    async with engine, finding(backend) as ports, registered(backend, 1) as fleet:
        ports.server.monitor.add(engine.url)
        await until_ready(ports, 2)
        origins = {w["worker_id"]: w["origin"] for w in await workers_of(ports)}
        assert origins == {7: "static", fleet.worker_ids[0]: "file"}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_worker_that_drains_ends_what_it_has(backend: Backend, dialect: str) -> None:
    async with (
        finding(backend) as ports,
        registered(backend, 1, dialect=dialect, speedup_ratio=4.0) as slow,
    ):
        await until_ready(ports, 1)
        request = asyncio.create_task(completed(ports, "long", 64))
        await until(lambda: slow.engines[0].busy)
        async with registered(backend, 2, dialect=dialect):
            await until_ready(ports, 3)
            leaving = asyncio.create_task(slow.stop(10.0))
            await until(lambda: len(ports.server.monitor.ready_clients()) == 2)
            assert len(await request) == 4
            await leaving
            await until_ready(ports, 2)


@on_stores("file", "etcd", "nats")
async def test_an_engine_in_anothers_place_is_noticed_by_its_registration(backend: Backend) -> None:
    seldom = HealthPolicy(probe_interval_s=3600.0)
    async with finding(backend, health=seldom) as ports, registered(backend, 1) as fleet:
        await until_ready(ports, 1)
        before = fleet.worker_ids
        await fleet.engines[0].restart()  # at the same address, under the id of its new lease
        assert fleet.worker_ids != before
        registry = ports.server.router.registry
        await until(lambda: [entry.worker_id for entry in registry.entries()] == fleet.worker_ids)
        await completed(ports, "to the new one")


@on_stores("file", "etcd", "nats")
async def test_of_two_workers_with_one_id_the_later_is_called(backend: Backend) -> None:
    async with finding(backend) as ports, registered(backend, 1, worker_id=7):
        await until_ready(ports, 1)
        output = await completed(ports, "first")
        async with registered(backend, 1, worker_id=7, model_id="mock-model") as later:
            engine = later.engines[0]

            def called() -> bool:
                ready = ports.server.monitor.ready_clients()
                return [client.address for client in ready] == [engine.address]

            await until(called)
            await until_ready(ports, 1)
            assert await completed(ports, "second") == output
            assert list(engine.engine.cached_blocks()), "it was the later one that answered"


async def test_an_engine_that_lies_about_its_place_is_passed_over(backend: Backend) -> None:
    async with finding(backend) as ports, registered(backend, 1):
        await until_ready(ports, 1)
        folder = Path(backend.environ["DYN_FILE_KV"]) / "v1" / "instances"
        (folder / "dynamo%2Fbackend%2Fgenerate%2Fff").write_text('{"transport": {"x": "y"}}')
        (folder / "dynamo%2Fbackend%2Fgenerate%2Ffe").write_text("not JSON")
        address = '{"transport": {"trtllm_grpc": "nowhere://"}}'
        (folder / "dynamo%2Fbackend%2Fgenerate%2Ffd").write_text(address)
        async with registered(backend, 1):
            await until_ready(ports, 2)
