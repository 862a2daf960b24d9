"""KV events without a broker: engines and routers that find each other's sockets in a store."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import prompt
from support.polling import until
from support.servers.discovered_fleet import (
    Backend,
    backend_of,
    finding,
    registered,
    until_ready,
    workers_of,
)
from support.serving import BLOCK, Ports

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.indexer.source import SourceState
from dynamo_router.router.affinity import AffinityConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.config import ServeConfig
from dynamo_router.workers.records import DiscoveryConfig, EventPlaneConfig

OVER_ZMQ = EventPlaneConfig(event_plane="zmq")
AFFINITY = AffinityConfig(session_affinity_ttl_secs=60.0)


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    with backend_of("file", tmp_path) as found:
        for name, value in found.environ.items():
            monkeypatch.setenv(name, value)
        yield found


@asynccontextmanager
async def hearing(backend: Backend, **router: Any) -> AsyncIterator[Ports]:
    settings = KvRouterConfig(block_size=BLOCK, seed=1, affinity=AFFINITY, **router)
    async with finding(backend, plane=OVER_ZMQ, router=settings) as ports:
        yield ports


def held_by(fleet: MockFleet) -> dict[int, int]:
    """Blocks that each engine has cached."""
    return {
        engine.worker_id: sum(1 for _ in engine.engine.cached_blocks()) for engine in fleet.engines
    }


def is_exact(ports: Ports, fleet: MockFleet) -> bool:
    """Whether the index has just what the engines have."""
    sources = ports.server.router.index.sources()
    states = {source.state for source in sources}
    told = {source.worker.worker_id: source.blocks for source in sources}
    return states == {SourceState.EXACT} and told == held_by(fleet)


async def send(ports: Ports, first: int, count: int = 12) -> None:
    for number in range(first, first + count):
        request = prompt(f"r{number}", 0)
        request.tokenized.input_token_ids.extend((number + n) % 1000 for n in range(4 * BLOCK))
        assert len(await ports.answers(request)) > 1


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_the_index_has_what_the_engines_have(backend: Backend, dialect: str) -> None:
    more = {"dialect": dialect, "plane": OVER_ZMQ, "heartbeat_s": 0.2}
    async with registered(backend, 2, **more) as fleet:
        async with hearing(backend) as ports:
            await until_ready(ports, 2)
            await send(ports, 0)
            await until(lambda: is_exact(ports, fleet))
            assert sum(held_by(fleet).values()) >= 48
            registry = ports.server.router.registry
            await until(lambda: {each.event_source for each in registry.entries()} == {"zmq"})
            assert {worker["event_source"] for worker in await workers_of(ports)} == {"zmq"}
            metrics = await ports.metrics()
            assert metrics["dynamo_router_event_plane_garbled_total"] == 0
            assert metrics["dynamo_router_event_plane_received_total"] > 0
        # A router that comes later heard nothing of that, and asks.
        async with hearing(backend) as late:
            await until_ready(late, 2)
            await until(lambda: is_exact(late, fleet))


async def test_a_gap_is_filled_and_an_engine_that_starts_anew_is_heard(backend: Backend) -> None:
    more = {"plane": OVER_ZMQ, "heartbeat_s": 0.2, "lease_ttl_s": 5.0}
    async with registered(backend, 2, **more) as fleet, hearing(backend) as ports:
        await until_ready(ports, 2)
        await send(ports, 0)
        await until(lambda: is_exact(ports, fleet))
        events = ports.server.pool.events
        assert events is not None
        feed = events.feed
        await feed._subscriptions[0].close()  # deaf for a while
        await send(ports, 300)
        feed._subscriptions[0] = await feed._plane.subscribe_batches(
            feed._events, feed._on_messages
        )
        await send(ports, 500)
        await until(lambda: is_exact(ports, fleet))
        engine = fleet.engines[0]
        await engine.kill()
        await until_ready(ports, 1)
        await engine.restart()
        await until_ready(ports, 2)
        await send(ports, 700)
        await until(lambda: is_exact(ports, fleet))


async def test_routers_share_load_and_sessions_over_it(backend: Backend) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(registered(backend, 2, plane=OVER_ZMQ))
        one, two = [
            await stack.enter_async_context(hearing(backend, router_replica_sync=True))
            for _ in range(2)
        ]
        for ports in (one, two):
            await until_ready(ports, 2)
            replicas = ports.server.pool.replicas
            assert replicas is not None
            await until(lambda peers=replicas.replica.peers: len(peers.present()) == 1)
        router = one.server.router
        decision = router.decide(list(range(64)), "booked here")
        there = two.server.router
        await until(lambda: sum(view.active_requests for view in there.workers()) == 1)
        router.free("booked here")
        await until(lambda: sum(view.active_requests for view in there.workers()) == 0)
        call = one.channel.unary_stream("/trtllm.TrtllmService/Generate", None, None)
        body = prompt("with a session", 40).SerializeToString()
        async for _ in call(body, metadata=[("x-session-id", "s")]):
            pass
        await until(lambda: len(there.sessions) == 1)
        assert decision.worker in [view.worker for view in there.workers()]


def test_what_cannot_be_configured() -> None:
    with pytest.raises(ConfigError, match="event_plane: zmq needs a store"):
        OVER_ZMQ.open(DiscoveryConfig(), "static", "127.0.0.1")
    with pytest.raises(ConfigError, match="event_plane"):
        EventPlaneConfig(event_plane="carrier pigeons")
    for more in ({"event_sources": "nats"}, {"durable_kv_events": True}):
        with pytest.raises(ConfigError, match="zmq|nats"):
            ServeConfig(plane=OVER_ZMQ, discovery=DiscoveryConfig(discovery="file"), **more)
