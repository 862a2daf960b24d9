"""Publisher, feed and index on a plane that loses what the test wants lost."""

from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from support.polling import until

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.outbox import StoredRun
from dynamo_router.engines.publisher import KvEventPublisher
from dynamo_router.indexer.event_index import SnapshotHead, dump_index, restore_index
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.source import SourceState, SourceStatus
from dynamo_router.kv_events.feed import EventFeed
from dynamo_router.kv_events.recovery import REPLAY_TICK_S
from dynamo_router.kv_events.resync_wire import ResyncRequest, decode_request, encode_request
from dynamo_router.runtime.components import EndpointName
from dynamo_router.runtime.event_planes.event_plane import (
    KV_EVENTS,
    KV_HEARTBEAT,
    KV_RESYNC,
    endpoint_subject,
)
from dynamo_router.runtime.event_planes.local_plane import LocalPlane
from dynamo_router.workers.registry import WorkerRegistry

NAMES = {"namespace": "ns", "component": "backend", "endpoint": "generate"}
EVENTS, BEATS, ASKS = (
    endpoint_subject(**NAMES, topic=topic) for topic in (KV_EVENTS, KV_HEARTBEAT, KV_RESYNC)
)
W = WorkerWithDpRank(7, 2)


class LossyPlane(LocalPlane):
    """Loses a message if `loses` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.loses: Callable[[str], bool] = lambda _: False
        self.lost: list[str] = []
        self.asked: list[ResyncRequest] = []

    async def publish(self, subject: str, payload: bytes) -> None:
        if subject == ASKS:
            self.asked.append(decode_request(payload))
        if self.loses(subject):
            self.lost.append(subject)
        else:
            await super().publish(subject, payload)

    def lose(self, count: int, subject: str) -> None:
        """Lose the next messages on a subject."""
        end = len(self.lost) + count
        self.loses = lambda at: at == subject and len(self.lost) < end


class UnhurriedClock(SystemClock):
    """One that takes no note of a machine that stands still: what waits is given its turns."""

    def __init__(self) -> None:
        self._told, self._seen = 0.0, super().now()

    def now(self) -> float:
        seen = super().now()
        self._told += min(seen - self._seen, REPLAY_TICK_S)
        self._seen = seen
        return self._told


class Scene:
    """A worker with a cache of unrelated blocks, and a router that listens."""

    def __init__(self) -> None:
        self.plane, self.clock = LossyPlane(), UnhurriedClock()
        self.blocks: set[int] = set()
        self.index = EventIndex()
        self.feed = self.new_feed()
        self.publisher = self.new_publisher()

    def new_feed(self) -> EventFeed:
        return EventFeed(
            self.plane, self.index, WorkerRegistry(), self.clock, EndpointName(**NAMES)
        )

    def new_publisher(self, heartbeat_s: float = 0.0) -> KvEventPublisher:
        return KvEventPublisher(
            self.plane,
            worker_id=W.worker_id,
            dp_rank=W.dp_rank,
            **NAMES,
            snapshot=lambda: [StoredRun(None, [b], [b]) for b in sorted(self.blocks)],
            clock=self.clock,
            heartbeat_s=heartbeat_s,
        )

    async def tell(self, *changes: int) -> None:
        """One message per change: a block that came or, negative, went."""
        for change in changes:
            if change > 0:
                self.blocks.add(change)
                self.publisher.stored(None, [change], [change])
            else:
                self.blocks.remove(-change)
                self.publisher.removed([-change])
            await self.publisher.flush()

    @property
    def source(self) -> SourceStatus:
        (source,) = self.index.sources()
        return source

    @property
    def claims(self) -> set[int]:
        return {b for b in range(1, 30) if self.index.scores(np.array([b], np.uint64))}

    def is_true(self) -> bool:
        self.index.flush()
        return bool(
            self.index.sources()
            and self.source.state is SourceState.EXACT
            and self.claims == self.blocks
        )


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.feed.start()
    await made.publisher.start()
    yield made
    await made.publisher.close()
    await made.feed.close()
    made.index.close()


async def test_what_is_lost_in_the_middle_is_replayed(scene: Scene) -> None:
    await scene.tell(1, 2, 3)
    scene.plane.lose(2, EVENTS)
    await scene.tell(-2, 4)
    await scene.tell(5)
    await until(scene.is_true)
    assert scene.plane.asked == [ResyncRequest(*W, scene.publisher.publisher_id, 4, 5)]
    assert scene.publisher.stats.announcements == 0
    assert (scene.source.gaps, scene.source.given_up) == (1, 0)


async def test_a_lost_request_is_repeated(scene: Scene) -> None:
    await scene.tell(1)
    scene.plane.lose(1, EVENTS)
    await scene.tell(-1)
    scene.plane.lose(2, ASKS)
    await scene.tell(2)
    await until(scene.is_true)
    assert len(scene.plane.asked) == 3 and len(set(scene.plane.asked)) == 1
    assert scene.publisher.stats.replays == 1


async def test_a_lost_answer_is_asked_for_again(scene: Scene) -> None:
    await scene.tell(1)
    scene.plane.lose(1, EVENTS)
    await scene.tell(-1)
    scene.plane.lose(2, EVENTS)
    scene.plane.loses, lossy = (lambda _: False), scene.plane.loses
    await scene.tell(3)
    scene.plane.loses = lossy  # from here on: the answers
    await until(scene.is_true)
    assert len(scene.plane.asked) >= 2 and scene.source.given_up == 0


async def test_a_lost_last_message_is_noticed_by_the_heartbeat(scene: Scene) -> None:
    await scene.publisher.close()
    scene.publisher = scene.new_publisher(heartbeat_s=0.05)
    await scene.publisher.start()
    await scene.tell(1, 2)
    scene.plane.lose(1, EVENTS)
    await scene.tell(-1)
    await until(scene.is_true)
    assert scene.claims == {2} and scene.publisher.stats.announcements == 0


async def test_after_deafness_an_idle_source_confirms(scene: Scene) -> None:
    await scene.tell(1)
    await until(scene.is_true)
    scene.index.mark_suspect()  # as after a connection that was lost
    assert scene.source.state is SourceState.RECOVERING and scene.claims == {1}
    await until(scene.is_true)
    assert scene.publisher.stats.announcements == 0
    assert ResyncRequest(*W, scene.publisher.publisher_id, 2) in scene.plane.asked


async def test_what_a_snapshot_said_is_asked_for_and_confirmed_by_a_source_that_is_idle(
    scene: Scene,
) -> None:
    await scene.tell(1)
    await until(scene.is_true)
    head = SnapshotHead(block_size=16, subject=EVENTS)
    saved = list(dump_index(scene.index, head))
    await scene.feed.close()
    scene.index.close()
    scene.index = EventIndex()
    restore_index(scene.index, saved, head)
    scene.feed = scene.new_feed()
    assert scene.source.state is SourceState.RECOVERING and scene.claims == {1}
    await scene.feed.start()
    await until(scene.is_true)
    assert set(scene.plane.asked) == {ResyncRequest(*W, scene.publisher.publisher_id, 2)}
    assert scene.feed.replays_asked == len(scene.plane.asked) and scene.source.given_up == 0
    assert scene.publisher.stats.announcements == 0


async def test_an_engine_that_restarts_takes_its_ghosts_with_it_at_its_first_heartbeat(
    scene: Scene,
) -> None:
    await scene.tell(1, 2)
    await until(scene.is_true)
    await scene.publisher.close()
    scene.blocks.clear()
    scene.publisher = scene.new_publisher(heartbeat_s=60.0)
    await scene.publisher.start()
    await until(lambda: scene.claims == set())
    assert scene.source.restarts == 1 and scene.source.state is SourceState.EXACT


async def test_a_publisher_that_knows_nothing_of_replays_still_heals(scene: Scene) -> None:
    """It reads a request as one for an announcement, as publishers did before."""
    old = scene.publisher._on_resync

    def forgetful(subject: str, payload: bytes) -> None:
        request = decode_request(payload)
        old(subject, encode_request(ResyncRequest(request.worker_id, request.dp_rank)))

    await scene.tell(1)
    subscription = scene.publisher._subscription
    assert subscription is not None
    await subscription.close()
    scene.publisher._subscription = await scene.plane.subscribe(ASKS, forgetful)
    scene.plane.lose(1, EVENTS)
    await scene.tell(-1)
    await scene.tell(3)
    await until(scene.is_true)
    assert scene.publisher.stats.announcements >= 1


async def test_a_source_that_never_answers_is_given_up_and_goes_on(scene: Scene) -> None:
    await scene.tell(1)
    scene.plane.loses = lambda at: at == ASKS
    await scene.tell(2)
    scene.plane.loses = lambda at: at in (ASKS, EVENTS)
    await scene.tell(-1)
    scene.plane.loses = lambda at: at == ASKS
    await scene.tell(3)
    scene.index.flush()
    assert scene.claims == {1, 2} and scene.source.state is SourceState.RECOVERING
    await until(lambda: scene.source.state is SourceState.REBUILDING)
    assert scene.claims == {3} and scene.source.given_up == 1
    scene.plane.loses = lambda _: False
    await until(scene.is_true)
