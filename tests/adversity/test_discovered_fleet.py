"""Two routers and eight engines that meet in etcd, or in NATS, KV events over NATS: schedules of
faults by a seed.

While a fault is there, and after each step, requests through both routers are answered. After each
step both know the same workers, all engines are registered, and what both indexes claim is what
the engines hold. ADVERSITY_SEED=N runs that seed alone.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from support.adversity.seeds import seeds_of
from support.adversity.true_index import untrue
from support.polling import until
from support.servers.child import Child
from support.servers.discovered_fleet import (
    ENGINE,
    Backend,
    all_registered,
    backend_of,
    completed,
    finding,
    registered,
)
from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer
from support.serving import BLOCK, Ports

from dynamo_router.engines.mocker.fleet import MockFleet

SEEDS = seeds_of(1, 2, 3)
STORES = ("nats", "etcd")
"""Seeds in turn: an even one meets in NATS."""
STEPS = 8
FAMILIES = 6
"""Of prompts that begin alike."""
ENGINES, ROUTERS = 8, 2
TTL_S = 2.0
CONVERGED_S = 60.0


class World:
    """Who is there, and what may befall them."""

    def __init__(
        self,
        etcd: EtcdServer | None,
        nats: JetStreamServer,
        routers: list[Ports],
        fleet: MockFleet,
    ) -> None:
        """Without an etcd they meet in NATS."""
        self._etcd, self._nats, self._routers, self._fleet = etcd, nats, routers, fleet
        self._asked = 0
        self._prompts: deque[list[int]] = deque(maxlen=40)
        self.wrong = ""
        """what has not converged, by the last look"""

    @property
    def faults(self) -> list[Callable[[Random], Awaitable[None]]]:
        """What may happen in a step."""
        of_etcd = [self.etcd_restarts, self.etcd_loses_its_data, self.etcd_is_paused]
        return [
            *(of_etcd if self._etcd is not None else (self.nats_loses_its_data,)),
            self.nats_restarts,
            self.nats_is_paused,
            self.an_engine_crashes_and_comes_back,
        ]

    async def etcd_restarts(self, rng: Random) -> None:
        await self._restart(self._etcd, rng)

    async def etcd_loses_its_data(self, rng: Random) -> None:
        assert self._etcd is not None
        self._etcd.kill()
        self._etcd.lose_data()
        await self._etcd.come_back()

    async def etcd_is_paused(self, rng: Random) -> None:
        await self._pause(self._etcd, rng)

    async def nats_restarts(self, rng: Random) -> None:
        await self._restart(self._nats, rng)

    async def nats_loses_its_data(self, rng: Random) -> None:
        self._nats.kill()
        self._nats.lose_data()
        await self._nats.come_back()

    async def nats_is_paused(self, rng: Random) -> None:
        await self._pause(self._nats, rng)

    async def an_engine_crashes_and_comes_back(self, rng: Random) -> None:
        engine = rng.choice(self._fleet.engines)
        await engine.kill()
        await self.ask(rng)
        await engine.restart()

    async def _restart(self, server: Child | None, rng: Random) -> None:
        assert server is not None
        server.kill()
        await self.ask(rng)
        await server.come_back()

    async def _pause(self, server: Child | None, rng: Random) -> None:
        assert server is not None
        server.pause()
        try:
            await self.ask(rng)
        finally:
            server.resume()

    async def ask(self, rng: Random, count: int = 6) -> None:
        """Requests through both routers: each is answered, whole."""
        for router in self._routers:
            for _ in range(count):
                self._asked += 1
                first = 1 + 150 * rng.randrange(FAMILIES)  # of a vocabulary of 1000
                tokens = list(range(first, first + rng.randrange(20, 120)))
                self._prompts.append(tokens)
                await completed(router, f"r{self._asked}", tokens)

    def converged(self) -> bool:
        """Whether all is as if nothing had happened; else `wrong` says what is not."""
        self.wrong = self._what_is_wrong()
        return not self.wrong

    def _what_is_wrong(self) -> str:
        ids = sorted(self._fleet.worker_ids)
        for number, router in enumerate(self._routers):
            server = router.server
            known = sorted(entry.worker_id for entry in server.router.registry.entries())
            if known != ids:
                return f"router {number} knows {known}, there are {ids}"
            if len(server.monitor.ready_clients()) != len(ids):
                return f"router {number} sends requests to {len(server.monitor.ready_clients())}"
            if wrong := untrue(server.router.index, self._fleet.engines, self._prompts, BLOCK):
                return f"router {number}: {wrong}"
        return "" if all_registered(self._fleet) else "an engine is not registered"

    async def checked(self, step: str) -> None:
        """Return once all has converged."""
        try:
            await until(self.converged, CONVERGED_S)
        except AssertionError:
            raise AssertionError(f"after {step}: {self.wrong}") from None


@pytest.mark.parametrize("seed", SEEDS)
async def test_requests_go_on_and_all_converges_after_each_step(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    async with AsyncExitStack() as stack:
        nats = stack.enter_context(JetStreamServer(tmp_path / "nats"))
        backend = Backend("nats", {"NATS_SERVER": nats.url}, nats)
        if STORES[seed % 2] == "etcd":
            backend = stack.enter_context(backend_of("etcd", tmp_path / "etcd"))
        for name, value in backend.environ.items():
            monkeypatch.setenv(name, value)
        routers = [
            await stack.enter_async_context(finding(backend, nats=nats.url)) for _ in range(ROUTERS)
        ]
        fleet = await stack.enter_async_context(
            registered(
                backend, ENGINES, nats=nats.url, lease_ttl_s=TTL_S, engine=ENGINE, heartbeat_s=0.5
            )
        )
        etcd = backend.server if isinstance(backend.server, EtcdServer) else None
        world = World(etcd, nats, routers, fleet)
        await world.checked("the start")
        faults = world.faults
        steps = rng.sample(faults, len(faults)) + rng.choices(faults, k=STEPS - len(faults))
        for step in steps:
            print(step.__name__)  # type: ignore[attr-defined]
            await step(rng)
            await world.ask(rng)
            await world.checked(step.__name__)  # type: ignore[attr-defined]
        await world.ask(rng)
