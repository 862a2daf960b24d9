"""A publisher and a listener on a real nats-server that dies again and again."""

import os
import signal
from random import Random

import msgspec
import pytest
from support.polling import until

from dynamo_router.base.backoff import Backoff
from dynamo_router.base.clock import ManualClock
from dynamo_router.engines.outbox import StoredRun
from dynamo_router.engines.publisher import KvEventPublisher
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Cleared, Removed, Stored
from dynamo_router.kv_events.resync_wire import ResyncRequest
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats
from dynamo_router.runtime.event_planes.event_plane import (
    KV_EVENTS,
    KV_RESYNC,
    PlaneState,
    endpoint_subject,
)
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane

pytestmark = pytest.mark.usefixtures("leaves_nothing")

EVENTS = endpoint_subject("ns", "backend", "generate", KV_EVENTS)
RESYNC = endpoint_subject("ns", "backend", "generate", KV_RESYNC)


class Listener:
    """What somebody makes of the events, who notices holes in their numbers."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.last_id = 0
        self.holes = 0
        self.clearings = 0

    def on_message(self, subject: str, payload: bytes) -> None:
        for event in decode_event_message(payload):
            assert event.event_id > self.last_id
            self.holes += event.event_id != self.last_id + 1
            self.last_id = event.event_id
            match event.data:
                case Cleared():
                    self.blocks.clear()
                    self.clearings += 1
                case Removed(block_hashes=hashes):
                    self.blocks.difference_update(hashes)
                case Stored(blocks=blocks):
                    self.blocks.update(block.block_hash for block in blocks)


class Engine:
    """A cache of unrelated blocks that changes at random, and says so."""

    def __init__(self, plane: NatsPlane, seed: int) -> None:
        self.random = Random(seed)
        self.blocks: set[int] = set()
        self.clock = ManualClock()
        self.publisher = KvEventPublisher(
            plane,
            worker_id=2**64 - 1,
            namespace="ns",
            component="backend",
            endpoint="generate",
            snapshot=lambda: [StoredRun(None, [block], [block]) for block in sorted(self.blocks)],
            clock=self.clock,
        )

    def change(self) -> None:
        self.clock.advance(0.05)
        if self.blocks and self.random.random() < 0.4:
            gone = self.random.sample(sorted(self.blocks), min(3, len(self.blocks)))
            self.blocks.difference_update(gone)
            self.publisher.removed(gone)
        else:
            block = self.random.getrandbits(64)
            self.blocks.add(block)
            self.publisher.stored(None, [block], [block])


def connect(server: EmbeddedNats, **options: int) -> NatsPlane:
    return NatsPlane(server.url, backoff=Backoff(0.005, 0.02), **options)


async def kill(server: EmbeddedNats) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: not server.running)


async def test_a_restart_heals_without_being_asked(nats: EmbeddedNats) -> None:
    plane = connect(nats)
    engine, listener = Engine(plane, 1), Listener()
    await until(lambda: plane.state is PlaneState.CONNECTED)
    await plane.subscribe(EVENTS, listener.on_message)
    await engine.publisher.start()
    for _ in range(20):
        engine.change()
    await until(lambda: listener.blocks == engine.blocks)
    assert listener.clearings == 0

    await kill(nats)
    await until(lambda: plane.state is PlaneState.CONNECTING)
    for _ in range(20):
        engine.change()
    await nats.start()
    # One connection carries both, so the listener is back before the announcement leaves.
    await until(lambda: listener.clearings == 1 and listener.blocks == engine.blocks)
    assert engine.publisher.stats.announcements == 1
    await engine.publisher.close()
    await plane.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_any_outages_converge_once_the_listener_asks(nats: EmbeddedNats, seed: int) -> None:
    ours, theirs = connect(nats), connect(nats)
    engine, listener = Engine(ours, seed), Listener()
    await theirs.subscribe(EVENTS, listener.on_message)
    await engine.publisher.start()
    for connects in range(1, 5):
        await until(lambda connects=connects: theirs.stats.connects >= connects)
        for _ in range(30):
            engine.change()
            if engine.random.random() < 0.3:
                await ours.flush()
        await kill(nats)
        await nats.start()
    await until(lambda: ours.stats.connects >= 2 and theirs.stats.connects == 5)
    await until(lambda: ours.state is PlaneState.CONNECTED)
    for _ in range(5):
        engine.change()
    # As the router does when it has been away or found a hole.
    request = msgspec.msgpack.encode(ResyncRequest(2**64 - 1, 0))
    await theirs.publish(RESYNC, request)
    await until(lambda: engine.publisher.stats.resync_requests == 1)
    engine.clock.advance(1.0)
    await until(lambda: listener.clearings >= 1 and listener.blocks == engine.blocks)
    await engine.publisher.close()
    await ours.close()
    await theirs.close()


async def test_a_large_cache_is_announced_without_a_loss(nats: EmbeddedNats) -> None:
    ours, theirs = connect(nats, buffer_bytes=1 << 20), connect(nats)
    engine, listener = Engine(ours, 1), Listener()
    engine.blocks = set(range(40_000))  # some 7 MB of events
    await until(lambda: ours.state is theirs.state is PlaneState.CONNECTED)
    await theirs.subscribe(EVENTS, listener.on_message)
    await engine.publisher.start()
    await theirs.publish(RESYNC, msgspec.msgpack.encode(ResyncRequest(None)))
    await until(lambda: listener.last_id == 40_001)
    assert listener.blocks == engine.blocks
    assert listener.holes == 0
    assert ours.stats.publish_dropped == theirs.stats.receive_dropped == 0
    await engine.publisher.close()
    await ours.close()
    await theirs.close()
