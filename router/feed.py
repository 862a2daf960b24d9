"""The event feed: carries KV events from the event plane into the index, and keeps sources honest.

Events go straight to the index's mailbox. Beside that, a slow tick asks sources that lost events
to announce themselves, and forgets workers that only ever published.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from ..indexer.actor import EventIndex
from ..runtime.clock import Clock
from ..runtime.event_plane import (
    KV_EVENTS,
    KV_RESYNC,
    EventPlane,
    PlaneState,
    Subscription,
    endpoint_subject,
)
from ..runtime.identity import WorkerWithDpRank
from ..workers.publisher import ResyncRequest
from ..workers.registry import WorkerRegistry
from .resync import ResyncPlanner

TICK_S = 0.25

log = structlog.get_logger(__name__)


class EventFeed:
    """Feeds one endpoint's KV events into an index, from `start` until `close`.

    Events of workers nobody registered are indexed too, for at most `unknown_worker_ttl_s`
    seconds after they were first seen, so that a worker which publishes before it is discovered
    loses nothing.
    """

    def __init__(
        self,
        plane: EventPlane,
        index: EventIndex,
        registry: WorkerRegistry,
        clock: Clock,
        *,
        namespace: str,
        component: str,
        endpoint: str,
        unknown_worker_ttl_s: float = 300.0,
    ) -> None:
        self._plane = plane
        self._index = index
        self._registry = registry
        self._clock = clock
        self._ttl = unknown_worker_ttl_s
        self._events = endpoint_subject(namespace, component, endpoint, KV_EVENTS)
        self._resync = endpoint_subject(namespace, component, endpoint, KV_RESYNC)
        self._planner = ResyncPlanner()
        self._first_seen: dict[WorkerWithDpRank, float] = {}
        self._subscription: Subscription | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self.refused = 0  # messages the full mailbox did not take

    @property
    def connected(self) -> bool:
        return self._plane.state is PlaneState.CONNECTED

    async def start(self) -> None:
        self._unwatch = self._plane.on_state(self._on_plane_state)
        self._subscription = await self._plane.subscribe(self._events, self._on_message)
        self._ticker = asyncio.create_task(self._run(), name="event-feed")

    async def close(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        if self._subscription is not None:
            await self._subscription.close()

    async def tick(self) -> None:
        """One round of upkeep at the clock's now."""
        now = self._clock.now()
        if asked := self._index.relearn():
            log.info("room for dropped blocks again", sources=asked)
        sources = self._index.sources()
        registered = {worker for _, worker in self._registry.numbered()}
        self._forget_strangers({source.worker for source in sources} - registered, now)
        if not self.connected:
            return
        plan = self._planner.plan(sources, registered, now)
        for worker in plan.degraded:
            self._index.mark_degraded(worker)
            log.warning("event source does not announce itself", worker=tuple(worker))
        for worker in plan.ask:
            request = ResyncRequest(worker.worker_id, worker.dp_rank)
            await self._plane.publish(self._resync, msgspec.msgpack.encode(request))

    def _forget_strangers(self, strangers: set[WorkerWithDpRank], now: float) -> None:
        for worker in self._first_seen.keys() - strangers:
            del self._first_seen[worker]
        for worker in strangers:
            if now - self._first_seen.setdefault(worker, now) >= self._ttl:
                del self._first_seen[worker]
                self._index.unbind(worker)

    def _on_message(self, subject: str, payload: bytes) -> None:
        if not self._index.post(payload):
            self.refused += 1

    def _on_plane_state(self, state: PlaneState) -> None:
        if state is PlaneState.CONNECTED and self._plane.stats.connects > 1:
            # The plane keeps nothing for us while we are away.
            self._index.mark_suspect()

    async def _run(self) -> None:
        while True:
            try:
                await self.tick()
            except Exception:
                log.exception("event feed tick failed")
            await asyncio.sleep(TICK_S)
