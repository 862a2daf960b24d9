"""Routers and engines that hear each other over ZMQ, without a broker, and find each other's
sockets in a store: schedules of faults by a seed. Each socket has a proxy before it.

While a fault is there, and after it, requests through the routers are answered, and routers book
and release requests. After each step what each index claims is what the engines hold, and each
router counts what all of them have booked. ADVERSITY_SEED=N runs that seed alone.
"""

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import pytest
from support.adversity.fault_proxy import FaultProxy, garbage
from support.adversity.proxied_outlets import ProxiedOutlets
from support.adversity.seeds import seeds_of
from support.adversity.true_index import untrue
from support.polling import until
from support.servers.child import Child
from support.servers.discovered_fleet import (
    Backend,
    all_registered,
    backend_of,
    completed,
    finding,
    registered,
)
from support.serving import BLOCK, Ports

from dynamo_router.base.errors import NoWorkersError
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.records import EventPlaneConfig
from dynamo_router.workers.registry import WorkerState

SEEDS = seeds_of(1, 2, 3, 4)
STORES, DIALECTS = ("file", "etcd"), ("trtllm", "dynamo")
"""By the seed, in turns: four seeds have each of one with each of the other."""
ENGINES, ROUTERS = 3, 2
TTL_S = 2.0
TRUE_S = 60.0
"""The longest that a step may take to heal, on a busy machine."""
FAMILIES = 6
"""Of prompts that begin alike."""
BOOKED = 12
"""Requests that stay booked for a while."""
FIRST_EVENT = 1
"""The loss of an event 0 shows with the next one only."""
CACHE = EngineConfig(block_size=BLOCK, num_gpu_blocks=64, vocab_size=1000)  # it evicts
ROUTER = KvRouterConfig(
    block_size=BLOCK, seed=1, router_replica_sync=True, router_predicted_ttl_secs=0
)
OVER_ZMQ = EventPlaneConfig(event_plane="zmq")
Fault = Callable[[Random], Awaitable[None]]


class World:
    """Who is there, and what may befall them."""

    def __init__(self, backend: Backend, outlets: ProxiedOutlets, fleet: MockFleet) -> None:
        self._backend, self._outlets, self._fleet = backend, outlets, fleet
        self._routers: list[tuple[Ports, AsyncExitStack]] = []
        self._asked = 0
        self._booked: deque[tuple[Ports, str]] = deque()
        self._prompts: deque[list[int]] = deque(maxlen=40)
        self.wrong = ""
        """what is not as it should be, by the last look"""
        self.slowest = (0.0, "")
        """the longest that it took after a step until all was, and which step"""

    @property
    def faults(self) -> list[Fault]:
        """What may happen in a step."""
        store = [self.store_loses_its_data, self.store_is_away]
        if self._backend.server is not None:
            store += [self.store_restarts, self.store_is_paused]
        return [self.cut, self.all_cut, self.refused, self.half_open, self.late, self.slow,
                self.garbled, self.lost, self.told_twice, self.out_of_order, self.all_at_once,
                self.engine_restarts, self.engine_is_gone_for_long, self.router_restarts,
                self.router_vanishes, self.cut_off_and_restarted, *store]  # fmt: skip

    async def start_router(self) -> None:
        stack = AsyncExitStack()
        ports = await stack.enter_async_context(
            finding(self._backend, plane=OVER_ZMQ, router=ROUTER)
        )
        self._routers.append((ports, stack))

    async def close(self) -> None:
        for _, stack in self._routers:
            await stack.aclose()
        self._routers.clear()

    # Connections and messages

    def _proxy(self, rng: Random) -> FaultProxy:
        return rng.choice(list(self._outlets.proxies))

    async def cut(self, rng: Random) -> None:
        self._proxy(rng).cut()

    async def all_cut(self, rng: Random) -> None:
        for proxy in self._outlets.proxies:
            proxy.cut()

    async def refused(self, rng: Random) -> None:
        for proxy in rng.sample(list(self._outlets.proxies), 3):
            await proxy.refuse()
            proxy.cut()

    async def half_open(self, rng: Random) -> None:
        self._proxy(rng).stall("up", "down")

    async def late(self, rng: Random) -> None:
        for proxy in self._outlets.proxies:
            proxy.latency_s = rng.uniform(0.0, 0.5)

    async def slow(self, rng: Random) -> None:
        self._proxy(rng).bytes_per_s = rng.uniform(5_000, 50_000)

    async def garbled(self, rng: Random) -> None:
        self._proxy(rng).inject(rng.choice(("up", "down")), garbage(rng.randrange(1000)))

    async def lost(self, rng: Random) -> None:
        self._outlets.faults.set(rng.randrange(1000), loss=rng.uniform(0.05, 0.6))

    async def told_twice(self, rng: Random) -> None:
        self._outlets.faults.set(rng.randrange(1000), twice=rng.uniform(0.1, 1.0))

    async def out_of_order(self, rng: Random) -> None:
        self._outlets.faults.set(rng.randrange(1000), late=rng.uniform(0.1, 0.5))

    async def all_at_once(self, rng: Random) -> None:
        self._outlets.faults.set(rng.randrange(1000), loss=0.2, twice=0.2, late=0.2)
        await self.late(rng)
        await self.cut(rng)

    # Processes

    async def engine_restarts(self, rng: Random) -> None:
        await self._restart(rng.choice(self._fleet.engines))

    async def engine_is_gone_for_long(self, rng: Random) -> None:
        """Until its lease has ended."""
        engine = rng.choice(self._fleet.engines)
        await engine.kill()
        self._release(0)
        monitors = [ports.server.monitor for ports, _ in self._routers]
        await until(lambda: all(len(each.ready_clients()) < ENGINES for each in monitors), TRUE_S)
        await self.ask(rng)
        await engine.restart(FIRST_EVENT)

    async def router_restarts(self, rng: Random) -> None:
        await self._stop_router()
        await self.ask(rng)
        await self.start_router()

    async def router_vanishes(self, rng: Random) -> None:
        """None of its words is heard any more, not that it leaves either."""
        self._outlets.faults.set(0, loss=1.0)
        await self._stop_router()
        self._outlets.faults.set(0)
        await self.start_router()

    async def cut_off_and_restarted(self, rng: Random) -> None:
        """Engines start anew, and a router, while nobody hears anybody."""
        for proxy in self._outlets.proxies:
            await proxy.refuse()
            proxy.cut()
        await self.ask(rng)
        await self._restart(rng.choice(self._fleet.engines))
        await self._stop_router()
        await self.start_router()

    async def _restart(self, engine: MockServer) -> None:
        await engine.restart(FIRST_EVENT)
        self._release(0)  # what was booked there has ended with it

    async def _stop_router(self) -> None:
        ports, stack = self._routers.pop(0)
        self._booked = deque(each for each in self._booked if each[0] is not ports)
        await stack.aclose()

    # The store

    async def store_restarts(self, rng: Random) -> None:
        server = self._server
        server.kill()
        await self.ask(rng)
        await server.come_back()

    async def store_is_paused(self, rng: Random) -> None:
        self._server.pause()
        try:
            await self.ask(rng)
        finally:
            self._server.resume()

    async def store_loses_its_data(self, rng: Random) -> None:
        server = self._backend.server
        if server is None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            return
        server.kill()
        server.lose_data()  # type: ignore[attr-defined]
        await server.come_back()

    async def store_is_away(self, rng: Random) -> None:
        """For longer than leases last."""
        server, until = self._backend.server, time.monotonic() + 1.5 * TTL_S
        if server is not None:
            server.kill()
        else:
            kept = self._folder.rename(self._folder.with_name("kept"))
            self._folder.write_bytes(b"")  # no folder can be made in its place
        while time.monotonic() < until:
            await self.ask(rng, 1)
        if server is not None:
            await server.come_back()
        else:
            self._folder.unlink()
            kept.rename(self._folder)

    @property
    def _server(self) -> Child:
        assert self._backend.server is not None
        return self._backend.server

    @property
    def _folder(self) -> Path:
        return Path(self._backend.environ["DYN_FILE_KV"])

    # What goes on meanwhile

    async def ask(self, rng: Random, count: int = 3) -> None:
        """Through each router: requests, each answered, and bookings made and released."""
        for ports, _ in self._routers:
            for _ in range(count):
                self._asked += 1
                first = 1 + 150 * rng.randrange(FAMILIES)  # of a vocabulary of 1000
                tokens = list(range(first, first + rng.randrange(20, 12 * BLOCK)))
                self._prompts.append(tokens)
                await completed(ports, f"r{self._asked}", tokens)
                with suppress(NoWorkersError):  # all are leaving, or come back
                    router = ports.server.router
                    router.decide(tokens[: 2 * BLOCK], f"b{self._asked}")
                    # No engine computes it, so a later prompt's first token would refute it.
                    router.mark_prefill_complete(f"b{self._asked}")
                    self._booked.append((ports, f"b{self._asked}"))
        self._release(BOOKED)

    def _release(self, left: int) -> None:
        """The oldest bookings, but so many."""
        while len(self._booked) > left:
            ports, request_id = self._booked.popleft()
            ports.server.router.free(request_id)

    async def step(self, rng: Random, fault: Fault) -> None:
        await self.ask(rng)
        await fault(rng)
        await self.ask(rng)
        await self._outlets.heal()
        await self.ask(rng)
        await self.holds(fault.__name__)

    async def holds(self, step: str) -> None:
        """Return once all is as it should be."""
        began = time.monotonic()
        try:
            await until(self._is_right, TRUE_S)
        except AssertionError:
            raise AssertionError(f"after {step}: {self.wrong}") from None
        self.slowest = max(self.slowest, (time.monotonic() - began, step))

    def _is_right(self) -> bool:
        self.wrong = self._what_is_wrong()
        return not self.wrong

    def _what_is_wrong(self) -> str:
        engines = sorted(self._fleet.worker_ids)
        for number, (ports, _) in enumerate(self._routers):
            router = ports.server.router
            known = sorted(
                entry.worker_id
                for entry in router.registry.entries()
                if entry.state is WorkerState.READY
            )  # one that is gone stays as long as something is booked there
            if known != engines:
                return f"router {number} knows {known}, there are {engines}"
            if wrong := untrue(router.index, self._fleet.engines, self._prompts, BLOCK):
                return f"router {number}: {wrong}"
        loads = [self._load(ports) for ports, _ in self._routers]
        for worker in engines:
            booked = sum(load[worker][1] for load in loads)
            counted = [(load[worker][0], load[worker][2]) for load in loads]
            if {active for active, _ in counted} != {booked} or len(set(counted)) > 1:
                return f"{booked} are booked on {worker}, counted (with blocks) {counted}"
        return "" if all_registered(self._fleet) else "an engine is not registered"

    def _load(self, ports: Ports) -> dict[int, tuple[int, int, int]]:
        """By worker what a router counts: requests of all, its own ones, and blocks."""
        return {
            view.worker.worker_id: (view.active_requests, view.own_requests, view.active_blocks)
            for view in ports.server.router.workers()
        }


@pytest.mark.parametrize("seed", SEEDS)
async def test_indexes_and_loads_are_true_after_each_step(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    async with AsyncExitStack() as stack:
        store = STORES[seed % 2]
        backend = stack.enter_context(backend_of(store, tmp_path / "store"))
        for name, value in backend.environ.items():
            monkeypatch.setenv(name, value)
        outlets = ProxiedOutlets(monkeypatch)
        stack.push_async_callback(outlets.close)
        fleet = await stack.enter_async_context(
            registered(
                backend, ENGINES, plane=OVER_ZMQ, dialect=DIALECTS[seed // 2 % 2], engine=CACHE,
                lease_ttl_s=TTL_S, heartbeat_s=0.3,
            )
        )  # fmt: skip
        world = World(backend, outlets, fleet)
        stack.push_async_callback(world.close)
        for _ in range(ROUTERS):
            await world.start_router()
        await world.holds("the start")
        for fault in rng.sample(world.faults, len(world.faults)):
            print(fault.__name__)  # type: ignore[attr-defined]
            await world.step(rng, fault)
        print(f"{store}: slowest %.1f s, after %s" % world.slowest)  # shown by -s
