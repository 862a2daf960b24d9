"""A KV-event publisher on a plane that the test controls, and what a router would hear of it."""

import asyncio
from collections.abc import Iterable

import msgspec
from support.polling import until

from dynamo_router.base.clock import ManualClock
from dynamo_router.engines.event_stream import PublisherLimits
from dynamo_router.engines.outbox import StoredRun
from dynamo_router.engines.publisher import KvEventPublisher
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import RouterEvent, Stored, StoredBlock
from dynamo_router.kv_events.resync_wire import ResyncRequest, encode_request
from dynamo_router.runtime.event_planes.event_plane import (
    KV_EVENTS,
    KV_HEARTBEAT,
    KV_RESYNC,
    PlaneState,
    StateCallback,
    endpoint_subject,
)
from dynamo_router.runtime.event_planes.local_plane import LocalPlane

EVENTS = endpoint_subject("ns", "backend", "generate", KV_EVENTS)
HEARTBEAT = endpoint_subject("ns", "backend", "generate", KV_HEARTBEAT)
RESYNC = endpoint_subject("ns", "backend", "generate", KV_RESYNC)


class SwitchedPlane(LocalPlane):
    """A plane in process whose carrier can be taken away."""

    def __init__(self, connected: bool = True) -> None:
        super().__init__()
        if not connected:
            self._state = PlaneState.CONNECTING
        self.lost = 0

    def switch(self, connected: bool) -> None:
        self._set_state(PlaneState.CONNECTED if connected else PlaneState.CONNECTING)

    async def publish(self, subject: str, payload: bytes) -> None:
        if self._state is PlaneState.CONNECTED:
            await super().publish(subject, payload)
        else:
            self.lost += 1

    @property
    def watchers(self) -> list[StateCallback]:
        return self._callbacks


class Cache:
    """One chain of blocks: what the engine tells about, and announces."""

    def __init__(self, blocks: Iterable[int] = ()) -> None:
        self.blocks = list(blocks)
        self.snapshots = 0
        self.broken = False
        self.runs: list[StoredRun] = []  # in place of that chain

    def snapshot(self) -> list[StoredRun]:
        self.snapshots += 1
        if self.broken:
            raise LookupError("the engine's own fault")
        if self.runs:
            return self.runs
        return [StoredRun(None, list(self.blocks), list(self.blocks))] if self.blocks else []


class Scene:
    """A publisher, its cache and clock, and everything a router would hear."""

    def __init__(
        self,
        plane: SwitchedPlane,
        *,
        start_event_id: int = 1,
        heartbeat_s: float = 0.0,
        **limits: int,
    ) -> None:
        self.plane = plane
        self.clock = ManualClock(100.0)
        self.cache = Cache()
        self.messages: list[bytes] = []
        self.beats: list[bytes] = []
        self.publisher = KvEventPublisher(
            plane,
            worker_id=7,
            dp_rank=2,
            namespace="ns",
            component="backend",
            endpoint="generate",
            snapshot=self.cache.snapshot,
            clock=self.clock,
            start_event_id=start_event_id,
            heartbeat_s=heartbeat_s,
            limits=PublisherLimits(**limits),
        )

    async def start(self) -> None:
        await self.plane.subscribe(EVENTS, lambda _, payload: self.messages.append(payload))
        await self.plane.subscribe(HEARTBEAT, lambda _, payload: self.beats.append(payload))
        await self.publisher.start()

    async def ask(self, first: int, last: int | None = None, *, publisher: int = 0) -> None:
        """Ask for missed events, of this publisher unless told otherwise."""
        request = ResyncRequest(7, 2, publisher or self.publisher.publisher_id, first, last)
        await self.plane.publish(RESYNC, encode_request(request))

    async def tell(self, *blocks: int) -> None:
        """One message per block."""
        for block in blocks:
            heard = len(self.messages)
            self.publisher.stored(None, [block], [block])
            await until(lambda heard=heard: len(self.messages) > heard)

    async def resync(self, worker_id: int | None = 7, dp_rank: int | None = None) -> None:
        request = ResyncRequest(worker_id, dp_rank)
        await self.plane.publish(RESYNC, msgspec.msgpack.encode(request))

    async def idle(self) -> None:
        """Many turns of the loop: time for what must not happen."""
        for _ in range(50):
            await asyncio.sleep(0)

    @property
    def events(self) -> list[RouterEvent]:
        return [event for message in self.messages for event in decode_event_message(message)]

    @property
    def data(self) -> list[object]:
        return [event.data for event in self.events]


def stored(*blocks: int) -> Stored:
    return Stored(None, tuple(StoredBlock(block, block) for block in blocks))
