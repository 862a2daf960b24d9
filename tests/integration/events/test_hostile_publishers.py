"""Whoever can publish on NATS: strangers, junk, and others in an engine's name, while all goes on.

Over a real nats-server, with engines that announce their publishers.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack

import numpy as np
import pytest
from support.fake_engine import FakeEngine
from support.kv_events.messages import message_of
from support.kv_events.messages import stored as blocks_stored
from support.polling import until
from support.serving import BLOCK, Ports, serving

from dynamo_router import KvRouterConfig
from dynamo_router.base.clock import SystemClock
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.outbox import StoredRun
from dynamo_router.engines.publisher import KvEventPublisher
from dynamo_router.indexer.source import SourceState
from dynamo_router.indexer.wire import (
    encode_heartbeat,
)
from dynamo_router.router.proto import router_pb2
from dynamo_router.runtime.event_planes import (
    KV_EVENTS,
    KV_HEARTBEAT,
    EmbeddedNats,
    NatsPlane,
    endpoint_subject,
)

NAMES = {"namespace": "dynamo", "component": "backend", "endpoint": "generate"}
EVENTS, BEATS = (endpoint_subject(**NAMES, topic=topic) for topic in (KV_EVENTS, KV_HEARTBEAT))
ENGINES = (1, 2)
MOST_STRANGERS = 50
FOREIGN = range(10_000, 10_100)  # blocks that no engine has


class Engine:
    """A cache of unrelated blocks whose changes are published, and how it is reached."""

    def __init__(self, worker_id: int, plane: NatsPlane) -> None:
        self.worker = WorkerWithDpRank(worker_id)
        self.blocks: set[int] = set()
        self.publisher = KvEventPublisher(
            plane,
            worker_id=worker_id,
            **NAMES,
            snapshot=lambda: [StoredRun(None, [b], [b]) for b in sorted(self.blocks)],
            clock=SystemClock(),
            heartbeat_s=0.2,
        )
        self.server = FakeEngine(worker_id=worker_id)
        self.server.publisher_ids = str(self.publisher.publisher_id)

    def flip(self, block: int) -> None:
        if block in self.blocks:
            self.blocks.remove(block)
            self.publisher.removed([block])
        else:
            self.blocks.add(block)
            self.publisher.stored(None, [block], [block])


class Scene:
    def __init__(self, ports: Ports, engines: list[Engine], hostile: NatsPlane) -> None:
        self.ports, self.engines, self.hostile = ports, engines, hostile
        self.index = ports.server.router.index
        self.random = random.Random(1)

    def work(self) -> None:
        for engine in self.engines:
            engine.flip(self.random.randrange(1, 200))

    async def publish(self, subject: str, messages: Iterable[bytes]) -> None:
        """In portions, the engines' work and a client's request between them."""
        portion = []
        for message in messages:
            portion.append(message)
            if len(portion) == 500:
                await self._send(subject, portion)
                portion = []
        await self._send(subject, portion)

    async def _send(self, subject: str, portion: list[bytes]) -> None:
        for message in portion:
            await self.hostile.publish(subject, message)
        await self.hostile.flush()
        self.work()
        await self.is_served()

    async def is_served(self) -> None:
        request = router_pb2.SelectWorkerRequest(token_ids=range(3 * BLOCK))
        answer = await asyncio.wait_for(self.ports.select.SelectWorker(request), 60)
        assert answer.worker.worker_id in ENGINES

    def is_true(self) -> bool:
        """Whether the index holds of each engine what that holds, and knows it."""
        self.index.flush()
        sources = {source.worker: source for source in self.index.sources()}
        return all(
            engine.worker in sources
            and sources[engine.worker].state is SourceState.EXACT
            and sources[engine.worker].blocks == len(engine.blocks)
            and self.claims(engine.worker) == engine.blocks
            for engine in self.engines
        )

    def claims(self, worker: WorkerWithDpRank) -> set[int]:
        asked = [*range(1, 200), *FOREIGN]
        return {b for b in asked if worker in self.index.scores(np.array([b], np.uint64))}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats())
        ours, theirs = NatsPlane(nats.url), NatsPlane(nats.url, buffer_messages=1 << 16)
        stack.push_async_callback(ours.close)
        stack.push_async_callback(theirs.close)
        engines = [Engine(worker_id, ours) for worker_id in ENGINES]
        router = KvRouterConfig(block_size=BLOCK, max_unknown_workers=MOST_STRANGERS, seed=1)
        ports = await stack.enter_async_context(
            serving(*(engine.server for engine in engines), router=router, nats=nats.url)
        )
        for engine in engines:
            await engine.publisher.start()
            stack.push_async_callback(engine.publisher.close)
        made = Scene(ports, engines, theirs)
        for _ in range(100):
            made.work()
        await until(made.is_true)
        yield made


def stored(worker: WorkerWithDpRank, event_id: int, publisher: int, block: int) -> bytes:
    return message_of(worker, event_id, blocks_stored(block, scale=1), publisher)


async def strangers(scene: Scene) -> None:
    """20,000 workers that nobody registered."""
    await scene.publish(
        EVENTS,
        (stored(WorkerWithDpRank(10**6 + n, n % 4), 1, n, FOREIGN[n % 100]) for n in range(20_000)),
    )


async def beating_strangers(scene: Scene) -> None:
    await scene.publish(
        BEATS, (encode_heartbeat(WorkerWithDpRank(10**7 + n), 9, n, 8, 0) for n in range(5_000))
    )


async def others_in_an_engines_name(scene: Scene) -> None:
    """Events and heartbeats of random publishers, and events without any."""
    draw = scene.random.randrange
    workers = [engine.worker for engine in scene.engines]
    for _ in range(4):
        await scene.publish(
            BEATS,
            (
                encode_heartbeat(workers[n % 2], draw(10**6), draw(2**53), draw(9), 0)
                for n in range(500)
            ),
        )
        await scene.publish(
            EVENTS,
            (
                stored(workers[n % 2], 1 + draw(10**6), draw(2**53), FOREIGN[n % 100])
                for n in range(500)
            ),
        )
        bare = (
            b'{"worker_id":%d,"event":{"event_id":%d,"data":"cleared"}}' % (1 + n % 2, n)
            for n in range(500)
        )
        await scene.publish(EVENTS, bare)


async def junk(scene: Scene) -> None:
    for subject in (EVENTS, BEATS):
        await scene.publish(subject, (os.urandom(n % 200) for n in range(10_000)))


Attack = Callable[[Scene], Awaitable[None]]


@pytest.mark.parametrize("attack", [strangers, beating_strangers, others_in_an_engines_name, junk])
async def test_clients_are_served_and_the_index_is_the_engines_truth(
    scene: Scene, attack: Attack
) -> None:
    before = scene.index.counters()["index_bytes"]
    await attack(scene)
    await until(scene.is_true)
    assert len(scene.index.sources()) <= len(ENGINES) + MOST_STRANGERS
    assert scene.index.counters()["index_bytes"] < before + (1 << 20)
    samples = await scene.ports.metrics()
    assert len([name for name in samples if "_worker_indexed_blocks{" in name]) <= len(ENGINES) + 1
    _, page = await scene.ports.http("GET", "/metrics")
    assert len(page) < 100_000
    _, workers = await scene.ports.http("GET", "/workers")
    assert (
        len(workers["workers"] if isinstance(workers, dict) else workers)
        <= len(ENGINES) + MOST_STRANGERS
    )
    await scene.is_served()


async def test_strangers_beyond_the_limit_are_counted_and_newcomers_indexed(scene: Scene) -> None:
    await strangers(scene)
    await until(lambda: scene.ports.server.dispatcher.hits["max_unknown_workers"] > 0)
    samples = await scene.ports.metrics()
    hits = samples['dynamo_router_limits_hit_total{limit="max_unknown_workers"}']
    assert 0 < hits <= 20_000 - MOST_STRANGERS
