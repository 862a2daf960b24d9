"""Routers that share their load over a real NATS server, with requests through both of them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from support.fake_engine import FakeEngine, prompt, stall
from support.free_port import free_port
from support.polling import until
from support.serving import BLOCK, Ports, serving

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.runtime.event_planes import EmbeddedNats
from dynamo_router.workers.handoffs.meetings import SHARE_BITS, share_of

SHARED = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1, router_replica_sync=True)


@asynccontextmanager
async def two_routers() -> AsyncIterator[tuple[EmbeddedNats, FakeEngine, Ports, Ports]]:
    """A NATS server, one engine that keeps its requests, and two routers in front of it."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats(free_port()))
        engine = await stack.enter_async_context(FakeEngine(stall))
        routers = [
            await stack.enter_async_context(
                serving(nats=nats.url, workers=(engine.url,), router=SHARED, router_id="same")
            )
            for _ in range(2)
        ]
        for ports in routers:
            await until(lambda ports=ports: len(peers_of(ports)) == 1)
        yield nats, engine, routers[0], routers[1]


def peers_of(ports: Ports) -> dict[int, str]:
    assert ports.server.pool.replicas is not None
    return ports.server.pool.replicas.replica.peers.present()


async def rows(ports: Ports) -> Any:
    status, answer = await ports.http("GET", "/workers")
    assert status == 200
    [row] = answer["workers"] if isinstance(answer, dict) else answer
    return {key: row[key] for key in ("active_requests", "own_requests", "active_prefill_tokens")}


async def shows(ports: Ports, active: int, own: int, prefill: int) -> None:
    wanted = {"active_requests": active, "own_requests": own, "active_prefill_tokens": prefill}

    async def right() -> bool:
        return bool(await rows(ports) == wanted)

    await until(right)


async def test_load_is_shared_and_heals_after_the_way_was_cut() -> None:
    async with two_routers() as (nats, engine, one, two):
        asked = [asyncio.ensure_future(one.answers(prompt("a", 64)))]
        await shows(one, 1, 1, 0)  # its first token is out
        await shows(two, 1, 0, 0)
        assert nats.pid is not None
        os.kill(nats.pid, signal.SIGKILL)
        await until(lambda: not nats.running)
        asked += [asyncio.ensure_future(two.answers(prompt(name, 64))) for name in ("a", "c")]
        await shows(two, 2, 2, 0)  # its own; the other one is not heard of any more
        assert peers_of(two) == {}
        await nats.start()
        await shows(one, 3, 1, 0)
        await shows(two, 3, 2, 0)
        engine.go.set()
        await asyncio.gather(*asked)
        await shows(one, 0, 0, 0)
        await shows(two, 0, 0, 0)
        metrics = await one.metrics()
        assert metrics["dynamo_router_peers"] == 1
        assert metrics["dynamo_router_peer_undecodable_total"] == 0


async def test_a_router_that_leaves_takes_its_bookings_along() -> None:
    async with two_routers() as (nats, engine, one, two):
        asked = asyncio.ensure_future(two.answers(prompt("a", 64)))
        await shows(one, 1, 0, 0)
        await two.server.close()
        await shows(one, 0, 0, 0)
        assert peers_of(one) == {}
        await asyncio.gather(asked, return_exceptions=True)


async def test_rubbish_on_the_topic_is_counted() -> None:
    async with two_routers() as (_, _, one, two):
        sync = two.server.pool.replicas
        assert sync is not None
        for subject in (sync._subject, sync._dynamo_subject):
            await sync._plane.publish(subject, b"\xc1rubbish")
        counted = one.server.pool.replicas
        assert counted is not None
        await until(lambda: counted.undecodable == 2)


async def test_their_engines_meet_under_numbers_of_shares_of_their_own() -> None:
    async with two_routers() as (_, _, *routers):
        found = []
        for ports in routers:
            pool: Any = ports.server.pool
            numbers = (pool.handoffs.meetings.new(0, 1, (1, 1), 31).number for _ in range(9))
            shares = {number >> 31 - SHARE_BITS for number in numbers}
            assert shares == {share_of(pool.replicas.replica.own.router_id, peers_of(ports))}
            found.append(shares)
        assert found[0] != found[1]
