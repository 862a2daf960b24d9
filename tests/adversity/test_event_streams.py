"""Engines that tell their KV events by a stream of their own (gRPC, ZMQ with a replay, HTTP), each
behind a network with faults, and the routers that read them: schedules by a seed.

While a fault is there the engines' caches change, by requests that take another way. After each
step every router's index is what the engines hold. Where events were lost that nobody can have
again it claims no more than that, and is what they hold once their caches were turned over.
ADVERSITY_SEED=N runs that seed alone.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from random import Random

import pytest
from grpc import aio
from support.adversity.event_ways import OWN_CONNECTION, WAYS, EventWay, Fault
from support.adversity.seeds import seeds_of
from support.adversity.true_index import overclaimed, untrue
from support.calls import messages_of
from support.fake_engine import prompt
from support.polling import until
from support.serving import BLOCK, Ports, serving

from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.channels import ConnectionPolicy
from dynamo_router.workers.trtllm_proto import SERVICE

SEEDS = seeds_of(1)  # each has all faults
ENGINES = 3
ROUTERS = {"http": 1}
"""Else two; each event over HTTP is told to one."""
TRUE_S = 40.0
"""The longest that a step may take to heal, on a busy machine; 5 s on one of its own."""
BLOCKS = 64
CACHE = EngineConfig(block_size=BLOCK, num_gpu_blocks=BLOCKS, vocab_size=10_000)  # it evicts
LONGEST = 12
"""Blocks of a prompt."""
CONNECTION = ConnectionPolicy(
    connect_timeout_s=2.0, keepalive_s=1.0, keepalive_timeout_s=1.0
)  # as quick to notice a peer that stands still as a test needs


class World:
    """Routers, and engines whose events come by `ways`, without an event plane."""

    def __init__(self, kind: str, fleet: MockFleet, ways: list[EventWay]) -> None:
        self._kind, self._fleet, self._ways = kind, fleet, ways
        self._routers: list[tuple[Ports, AsyncExitStack]] = []
        self._asked = 0
        self._prompts: deque[list[int]] = deque(maxlen=40)
        self.slowest_s = 0.0
        """the longest that the indexes took to be true after a step"""

    async def start_router(self) -> None:
        stack = AsyncExitStack()
        ports = await stack.enter_async_context(
            serving(
                workers=tuple(way.url for way in self._ways),
                router=KvRouterConfig(block_size=BLOCK, seed=1, router_predicted_ttl_secs=0),
                event_sources=self._kind,
                connection=CONNECTION,
            )
        )
        self._routers.append((ports, stack))

    async def close(self) -> None:
        for _, stack in self._routers:
            await stack.aclose()
        self._routers.clear()

    def faults(self, rng: Random) -> list[tuple[EventWay, Fault]]:
        """All that may befall an engine, each at one of them, in an order of the seed's."""
        drawn = [rng.choice(self._ways) for _ in self._ways[0].faults]
        faults = [(way, way.faults[number]) for number, way in enumerate(drawn)]
        faults.append((self._ways[0], self.router_restarted))
        return rng.sample(faults, len(faults))

    async def router_restarted(self, rng: Random) -> None:
        _, stack = self._routers.pop(0)
        await stack.aclose()
        await self.start_router()

    async def change_caches(self, rng: Random, requests: int = 4, *, anew: bool = False) -> None:
        """A few requests at each engine, past the proxies; `anew`: prompts that none has cached."""
        for engine in self._fleet.engines:
            async with aio.insecure_channel(engine.address, options=OWN_CONNECTION) as channel:
                generate = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
                for _ in range(requests):
                    self._asked += 1
                    request = prompt(f"direct {self._asked}", 0)
                    first = rng.randrange(9000) if anew else 1 + 1000 * rng.randrange(8)
                    blocks = LONGEST if anew else rng.randint(2, LONGEST)
                    tokens = range(first, first + BLOCK * blocks)
                    request.tokenized.input_token_ids.extend(tokens)
                    self._prompts.append(list(tokens))
                    await messages_of(generate(request.SerializeToString(), wait_for_ready=True))

    async def step(self, rng: Random, way: EventWay, fault: Fault) -> None:
        await self.change_caches(rng)
        await fault(rng)
        await self.change_caches(rng)
        await way.heal()
        await self.change_caches(rng)
        if not any(each.loses for each in self._ways):
            await self._holds(fault.__name__, untrue, TRUE_S)
            return
        await self._holds(fault.__name__, overclaimed, TRUE_S)
        for _ in range(int(TRUE_S)):
            await self.change_caches(rng, 2 * BLOCKS // LONGEST, anew=True)
            with suppress(AssertionError):
                await self._holds(fault.__name__, not_held, 1.0)
                return
        await self._holds(fault.__name__, not_held, 1.0)

    async def _holds(self, name: str, wrong: Callable[..., str], deadline_s: float) -> None:
        """Whether nothing is `wrong` with any router's index, before long."""
        indexes: list[EventIndex] = [ports.server.router.index for ports, _ in self._routers]

        def word() -> str:
            words = (wrong(index, self._fleet.engines, self._prompts, BLOCK) for index in indexes)
            return next(filter(None, words), "")

        began = time.monotonic()
        try:
            await until(lambda: not word(), deadline_s)
        except AssertionError:
            raise AssertionError(f"after {name}: {word()}") from None
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


not_held = partial(untrue, exact=False)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", WAYS)
async def test_indexes_are_true_after_each_step(way: str, seed: int) -> None:
    rng = Random(seed)
    config = MockerConfig(workers=ENGINES, port=0, engine=CACHE, speedup_ratio=1000.0,
                          heartbeat_s=0.3)  # fmt: skip
    kind = way.partition(",")[0]
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(MockFleet(config))
        ways = [WAYS[way](engine) for engine in fleet.engines]
        for each in ways:
            stack.push_async_callback(each.close)
            await each.start()
        world = World(kind, fleet, ways)
        stack.push_async_callback(world.close)
        for _ in range(ROUTERS.get(kind, 2)):
            await world.start_router()
        for engines_way, fault in world.faults(rng):
            await world.step(rng, engines_way, fault)
        print(f"{way}: slowest {world.slowest_s:.1f} s")  # shown by -s
