"""Engines that tell their KV events over gRPC, each behind a network with faults, by a seed.

While a fault is there the engines' caches change, by requests that take another way. After each
step the index is what the engines hold. ADVERSITY_SEED=N runs that seed alone.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from os import environ
from random import Random

import pytest
from grpc import aio
from support.adversity.fault_proxy import FaultProxy, garbage
from support.adversity.true_index import untrue
from support.calls import messages_of
from support.fake_engine import prompt
from support.polling import until
from support.serving import BLOCK, Doors, serving

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.channels import ConnectionPolicy
from dynamo_router.workers.mocker.config import EngineConfig, MockerConfig
from dynamo_router.workers.mocker.fleet import MockFleet
from dynamo_router.workers.mocker.server import MockServer
from dynamo_router.workers.trtllm_proto import SERVICE

SEEDS = (int(environ["ADVERSITY_SEED"]),) if "ADVERSITY_SEED" in environ else (1, 2)
ENGINES = 3
TRUE_S = 40.0
"""The longest that a step may take to heal, on a busy machine; 5 s on one of its own."""
CACHE = EngineConfig(block_size=BLOCK, num_gpu_blocks=64, vocab_size=10_000)  # small: it evicts
CONNECTION = ConnectionPolicy(
    connect_timeout_s=2.0, keepalive_s=1.0, keepalive_timeout_s=1.0
)  # as quick to notice a peer that stands still as a test needs


class World:
    """A router, and engines behind proxies, without an event plane."""

    def __init__(self, doors: Doors, fleet: MockFleet, proxies: list[FaultProxy]) -> None:
        self._doors, self._fleet, self._proxies = doors, fleet, proxies
        self._asked = 0
        self._prompts: list[list[int]] = []
        self.slowest_s = 0.0
        """the longest that the index took to be true after a step"""

    @property
    def faults(self) -> list[Callable[[Random, FaultProxy, MockServer], Awaitable[None]]]:
        return [self.cut, self.refused, self.half_open, self.deaf, self.late, self.slow,
                self.garbled, self.restarted]  # fmt: skip

    async def cut(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        proxy.cut()

    async def refused(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        await proxy.refuse()
        proxy.cut()

    async def half_open(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        proxy.stall(rng.choice(("up", "down")))

    async def deaf(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        proxy.stall("up", "down")
        proxy.cut()

    async def late(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        proxy.latency_s = rng.uniform(0.05, 0.5)

    async def slow(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        proxy.bytes_per_s = rng.uniform(5_000, 50_000)

    async def garbled(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        proxy.inject(rng.choice(("up", "down")), garbage(rng.randrange(1000)))

    async def restarted(self, rng: Random, proxy: FaultProxy, engine: MockServer) -> None:
        """The engine is another one, with an empty cache and numbers that begin anew."""
        await engine.restart()

    async def change_caches(self, rng: Random) -> None:
        """A few requests at each engine, past the proxies."""
        for engine in self._fleet.engines:
            async with aio.insecure_channel(engine.address) as channel:
                generate = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
                for _ in range(4):
                    self._asked += 1
                    request = prompt(f"direct {self._asked}", 0)
                    first = 1 + 1000 * rng.randrange(8)
                    tokens = range(first, first + BLOCK * rng.randint(2, 12))
                    request.tokenized.input_token_ids.extend(tokens)
                    self._prompts.append(list(tokens))
                    await messages_of(generate(request.SerializeToString()))

    def wrong(self) -> str:
        index = self._doors.server.router.index
        return untrue(index, self._fleet.engines, self._prompts[-40:], BLOCK)

    async def step(self, rng: Random, fault: Callable[..., Awaitable[None]]) -> None:
        number = rng.randrange(ENGINES)
        proxy, engine = self._proxies[number], self._fleet.engines[number]
        await self.change_caches(rng)
        await fault(rng, proxy, engine)
        await self.change_caches(rng)
        await proxy.heal()
        await self.change_caches(rng)
        began = time.monotonic()
        try:
            await until(lambda: not self.wrong(), TRUE_S)
        except AssertionError:
            raise AssertionError(f"after {fault.__name__}: {self.wrong()}") from None
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_index_is_true_after_each_step(seed: int) -> None:
    rng = Random(seed)
    config = MockerConfig(workers=ENGINES, port=0, engine=CACHE, speedup_ratio=1000.0,
                          heartbeat_s=0.3)  # fmt: skip
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(MockFleet(config))
        proxies = []
        for address in fleet.addresses:
            proxy = FaultProxy(int(address.rpartition(":")[2]))
            await proxy.start()
            stack.push_async_callback(proxy.close)
            proxies.append(proxy)
        doors = await stack.enter_async_context(
            serving(
                workers=tuple(f"grpc://{proxy.address}" for proxy in proxies),
                router=KvRouterConfig(block_size=BLOCK, seed=1, router_predicted_ttl_secs=0),
                event_sources="grpc",
                connection=CONNECTION,
            )
        )
        world = World(doors, fleet, proxies)
        for fault in rng.sample(world.faults, len(world.faults)):
            await world.step(rng, fault)
        print(f"slowest {world.slowest_s:.1f} s")  # shown by -s
