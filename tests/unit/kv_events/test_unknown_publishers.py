"""Publishers that nobody registered: bounded, counted, forgotten, and nobody else's concern."""

import numpy as np
import pytest
from structlog.testing import capture_logs
from support.kv_events.messages import message_of
from support.kv_events.messages import stored as blocks_stored

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.indexer.wire import (
    encode_heartbeat,
)
from dynamo_router.kv_events import EventFeed
from dynamo_router.kv_events.unknown_publishers import UnknownPublishers
from dynamo_router.runtime.components import EndpointName
from dynamo_router.runtime.event_planes import (
    KV_EVENTS,
    KV_HEARTBEAT,
    LocalPlane,
    endpoint_subject,
)

NAMES = {"namespace": "ns", "component": "backend", "endpoint": "generate"}
EVENTS = endpoint_subject(**NAMES, topic=KV_EVENTS)
BEATS = endpoint_subject(**NAMES, topic=KV_HEARTBEAT)
ENGINE = WorkerWithDpRank(2**40)


def stored(worker: WorkerWithDpRank, event_id: int, publisher: int = 1) -> bytes:
    return message_of(worker, event_id, blocks_stored(event_id, scale=1), publisher)


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.router = KvRouter(KvRouterConfig(max_unknown_workers=5), clock=self.clock)
        self.hits = LimitHits()
        self.plane = LocalPlane()
        self.feed = EventFeed(
            self.plane,
            self.router.index,
            self.router.registry,
            self.clock,
            EndpointName(**NAMES),
            unknown=UnknownPublishers(self.router.index, hits=self.hits),
        )

    def claims(self, worker: WorkerWithDpRank, block: int) -> bool:
        self.router.index.flush()
        return worker in self.router.index.scores(np.array([block], np.uint64))

    async def upkeep(self) -> None:
        self.router.index.flush()
        self.clock.advance(1.0)
        await self.feed.tick()


@pytest.fixture
async def scene():
    made = Scene()
    await made.feed.start()
    yield made
    await made.feed.close()
    made.router.close()


async def test_what_they_say_beyond_the_limit_is_counted_once(scene: Scene) -> None:
    with capture_logs() as logs:
        for worker_id in range(20):
            await scene.plane.publish(EVENTS, stored(WorkerWithDpRank(worker_id), 1))
        await scene.upkeep()
        assert scene.hits.counts() == {"max_unknown_workers": 15}
        for worker_id in range(20):
            await scene.plane.publish(
                BEATS, encode_heartbeat(WorkerWithDpRank(worker_id), 1, 1, 0, 0)
            )
        await scene.upkeep()
        await scene.upkeep()
    assert scene.hits.counts() == {"max_unknown_workers": 30}
    assert len(scene.router.workers()) == 5
    assert [line["refused"] for line in logs if "too many unregistered" in line["event"]] == [15]


async def test_a_worker_registered_amid_them_is_indexed(scene: Scene) -> None:
    for worker_id in range(20):
        await scene.plane.publish(EVENTS, stored(WorkerWithDpRank(worker_id), 1))
    scene.router.add_worker(ENGINE.worker_id)
    await scene.plane.publish(EVENTS, stored(ENGINE, 1))
    assert scene.claims(ENGINE, 1)
    for worker_id in range(30, 60):
        await scene.plane.publish(EVENTS, stored(WorkerWithDpRank(worker_id), 1))
    await scene.upkeep()
    await scene.plane.publish(EVENTS, stored(ENGINE, 2))
    assert scene.claims(ENGINE, 2)


async def test_those_that_were_forgotten_make_room(scene: Scene) -> None:
    for worker_id in range(20):
        await scene.plane.publish(EVENTS, stored(WorkerWithDpRank(worker_id), 1))
    await scene.upkeep()
    scene.clock.advance(300.0)
    await scene.upkeep()
    assert scene.router.workers() == []
    await scene.plane.publish(EVENTS, stored(WorkerWithDpRank(15), 1))
    assert scene.claims(WorkerWithDpRank(15), 1)


async def test_a_heartbeat_of_a_stranger_does_not_blind_a_worker_that_announced_another(
    scene: Scene,
) -> None:
    await scene.plane.publish(BEATS, encode_heartbeat(ENGINE, 9, 666, 8, 0))
    scene.router.add_worker(ENGINE.worker_id)
    await scene.plane.publish(EVENTS, stored(ENGINE, 1))
    scene.router.index.announce_publisher(ENGINE, 1)
    await scene.plane.publish(EVENTS, stored(ENGINE, 2))
    for publisher in range(700, 720):
        await scene.plane.publish(BEATS, encode_heartbeat(ENGINE, 9, publisher, 8, 0))
    assert scene.claims(ENGINE, 2)
    await scene.plane.publish(EVENTS, stored(ENGINE, 3))
    assert scene.claims(ENGINE, 2) and scene.claims(ENGINE, 3)


@pytest.mark.parametrize("bad", [0, -1])
def test_a_limit_below_one_is_refused(bad: int) -> None:
    with pytest.raises(ConfigError, match="max_unknown_workers"):
        KvRouterConfig(max_unknown_workers=bad)
