"""Two routers and eight engines that meet in etcd, KV events over NATS: seeded schedules of faults.

After each step requests through both routers are answered. In the end, both know the same workers,
all engines are registered, and what both indexes claim is what the engines hold.
ADVERSITY_SEED=N runs that seed alone.
"""

from contextlib import AsyncExitStack
from os import environ
from pathlib import Path
from random import Random

import pytest
from support.polling import until
from support.servers.discovered_fleet import (
    ENGINE,
    Backend,
    backend_of,
    completed,
    finding,
    registered,
)
from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer
from support.serving import Doors

from dynamo_router.indexer.source import SourceState
from dynamo_router.workers.mocker.fleet import MockFleet

SEEDS = (int(environ["ADVERSITY_SEED"]),) if "ADVERSITY_SEED" in environ else (1, 2, 3)
STEPS = 8
ENGINES, ROUTERS = 8, 2
TTL_S = 2.0
CONVERGED_S = 60.0


class World:
    """Who is there, and what may befall them."""

    def __init__(
        self, etcd: EtcdServer, nats: JetStreamServer, routers: list[Doors], fleet: MockFleet
    ) -> None:
        self._etcd, self._nats, self._routers, self._fleet = etcd, nats, routers, fleet
        self._asked = 0

    async def etcd_restarts(self, rng: Random) -> None:
        self._etcd.kill()
        await self.ask(rng)
        await self._etcd.come_back()

    async def etcd_loses_its_data(self, rng: Random) -> None:
        self._etcd.kill()
        self._etcd.lose_data()
        await self._etcd.come_back()

    async def etcd_is_paused(self, rng: Random) -> None:
        self._etcd.pause()
        try:
            await self.ask(rng)
        finally:
            self._etcd.resume()

    async def nats_restarts(self, rng: Random) -> None:
        self._nats.kill()
        await self.ask(rng)
        await self._nats.come_back()

    async def nats_is_paused(self, rng: Random) -> None:
        self._nats.pause()
        try:
            await self.ask(rng)
        finally:
            self._nats.resume()

    async def an_engine_crashes_and_comes_back(self, rng: Random) -> None:
        engine = rng.choice(self._fleet.engines)
        await engine.kill()
        await self.ask(rng)
        await engine.restart()

    async def ask(self, rng: Random, count: int = 6) -> None:
        """Requests through both routers: each is answered, whole."""
        for router in self._routers:
            for _ in range(count):
                self._asked += 1
                await completed(router, f"r{self._asked}", rng.randrange(20, 120))

    def converged(self) -> bool:
        """Whether all is as if nothing had happened."""
        ids = sorted(self._fleet.worker_ids)
        for router in self._routers:
            registry = router.server.router.registry
            if sorted(entry.worker_id for entry in registry.entries()) != ids:
                return False
            if len(router.server.monitor.ready_clients()) != len(ids):
                return False
            sources = {s.worker.worker_id: s for s in router.server.router.index.sources()}
            for engine in self._fleet.engines:
                source = sources.get(engine.worker_id)
                if source is None or source.state is not SourceState.EXACT:
                    return False
                if source.blocks != len(list(engine.engine.cached_blocks())):
                    return False
        known = [engine.registration for engine in self._fleet.engines]
        return all(each is not None and each.complete for each in known)


@pytest.mark.parametrize("seed", SEEDS)
async def test_requests_go_on_and_all_converges(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    async with AsyncExitStack() as stack:
        backend: Backend = stack.enter_context(backend_of("etcd", tmp_path / "etcd"))
        monkeypatch.setenv("ETCD_ENDPOINTS", backend.environ["ETCD_ENDPOINTS"])
        nats = JetStreamServer(tmp_path / "nats")
        stack.callback(nats.kill)
        nats.start()
        routers = [
            await stack.enter_async_context(finding(backend, nats=nats.url)) for _ in range(ROUTERS)
        ]
        fleet = await stack.enter_async_context(
            registered(
                backend, ENGINES, nats=nats.url, lease_ttl_s=TTL_S, engine=ENGINE, heartbeat_s=0.5
            )
        )
        etcd = backend.server
        assert isinstance(etcd, EtcdServer)
        world = World(etcd, nats, routers, fleet)
        await until(world.converged, CONVERGED_S)
        faults = [
            world.etcd_restarts,
            world.etcd_loses_its_data,
            world.etcd_is_paused,
            world.nats_restarts,
            world.nats_is_paused,
            world.an_engine_crashes_and_comes_back,
        ]
        steps = rng.sample(faults, len(faults)) + rng.choices(faults, k=STEPS - len(faults))
        for step in steps:
            print(step.__name__)
            await step(rng)
            await world.ask(rng)
        await until(world.converged, CONVERGED_S)
        await world.ask(rng)
