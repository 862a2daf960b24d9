"""Several frontends in front of the same models: each of their pools knows what its twins do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from support.free_port import free_port
from support.polling import until
from support.servers.discovered_fleet import Backend, registered
from support.servers.model_serving import TINY, ModelClient, model_serving

from dynamo_router.router.affinity import AffinityConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.runtime.event_planes import EmbeddedNats

COARSE = replace(TINY, block_size=32)
IN_FLIGHT = 6


@asynccontextmanager
async def twins(
    backend: Backend, count: int = 2, **router: Any
) -> AsyncIterator[list[ModelClient]]:
    """Two frontends that sync, over a NATS server."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats(free_port()))
        settings = KvRouterConfig(seed=1, router_replica_sync=True, **router)
        yield [
            await stack.enter_async_context(
                model_serving(backend, nats=nats.url, router=settings, router_id=f"f{number}")
            )
            for number in range(2)
        ]


async def peers(client: ModelClient, name: str) -> dict[str, float]:
    """A metric of the peers of each pool, by its model and block size."""
    async with client.session.get(f"{client.url}/metrics") as answer:
        page = await answer.text()
    return {
        sample.labels["model"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"dynamo_router_{name}"
    }


async def until_peers(client: ModelClient, name: str, **wanted: float) -> None:
    async def right() -> bool:
        return await peers(client, name) == wanted

    await until(right)


async def test_a_pool_counts_what_its_twin_booked_and_not_what_other_pools_did(
    backend: Backend,
) -> None:
    slow = {"speedup_ratio": 0.01}
    async with (
        registered(backend, 1, model_id="a", engine=TINY, **slow) as fleet,
        registered(backend, 1, model_id="b", engine=COARSE),
        twins(backend) as (one, two),
    ):
        for client in (one, two):
            await client.until_shares(a=1, b=1)
            await until_peers(client, "peers", a=1, b=1)
        requests = [
            asyncio.create_task(one.complete("a", f"request {number}", max_tokens=100))
            for number in range(IN_FLIGHT)
        ]
        try:
            await until_peers(two, "peers_bookings", a=IN_FLIGHT, b=0)
            _, state = await two.get(f"/dashboard/state?pool={pool_key(two, 'a')}")
            (row,) = state["workers"]["rows"]
            assert row["worker"].startswith(f"{fleet.worker_ids[0]}")
            assert row["requests"] == IN_FLIGHT
        finally:
            for request in requests:
                request.cancel()
                with suppress(asyncio.CancelledError):
                    await request
        await until_peers(two, "peers_bookings", a=0, b=0)


async def test_a_session_stays_with_its_worker_at_each_twin(backend: Backend) -> None:
    affinity = AffinityConfig(session_affinity_ttl_secs=60.0)
    session = {"nvext": {"session_control": {"session_id": "s"}, "extra_fields": ["worker_id"]}}
    async with (
        registered(backend, 3, model_id="a", engine=TINY),
        registered(backend, 1, model_id="b", engine=COARSE),
        twins(backend, mode="round-robin", affinity=affinity, use_kv_events=False) as (one, two),
    ):
        for client in (one, two):
            await client.until_shares(a=3, b=1)
            await until_peers(client, "peers", a=1, b=1)
        first = await one.worker_of("a", **session)
        assert {await one.worker_of("a", **session) for _ in range(6)} == {first}
        await until_peers(two, "sessions", a=1, b=0)
        assert {await two.worker_of("a", **session) for _ in range(6)} == {first}


def pool_key(client: ModelClient, model: str) -> str:
    (pool,) = [pool for pool in client.server.models.pools if pool.name.model == model]
    return f"{model} {pool.label}"
