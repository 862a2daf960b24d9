"""The event feed: carries KV events from the event plane into the index.

Events and heartbeats go straight to the index's mailbox. A tick sends the requests of the event
recovery (recovery.py); a slower one also looks after event sources and unknown publishers.
"""

import asyncio
from collections.abc import Callable

import structlog

from ..base.clock import Clock
from ..indexer.event_index import EventIndex
from ..indexer.source import SourceStatus
from ..process.supervised import stopped, supervise
from ..runtime.components import EndpointName
from ..runtime.event_planes import (
    KV_EVENTS,
    KV_HEARTBEAT,
    KV_RESYNC,
    EventPlane,
    PlaneState,
    Subscription,
    endpoint_subject,
)
from ..workers.registry import WorkerEntry, WorkerRegistry
from .event_sources import EventSources, believe_announced
from .feed_schedule import FeedSchedule
from .recovery import EventRecovery, RecoveryActions
from .resync_wire import ResyncRequest, encode_request
from .unknown_publishers import UnknownPublishers

log = structlog.get_logger(__name__)


class EventFeed:
    """Feeds one endpoint's KV events into an index, from `start` until `close`."""

    def __init__(
        self,
        plane: EventPlane,
        index: EventIndex,
        registry: WorkerRegistry,
        clock: Clock,
        endpoint: EndpointName,
        *,
        unknown: UnknownPublishers | None = None,
        ask_worker: Callable[[ResyncRequest], bool] | None = None,
        sources: EventSources | None = None,
        caught_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`ask_worker` may take over a request that would be published, and returns whether it
        does. `sources` finds workers' own streams; None: all publish on the plane. Nothing is asked
        for unless `caught_up`: what is missed may be on its way."""
        self._plane, self._index, self._registry, self._clock = plane, index, registry, clock
        place = (endpoint.namespace, endpoint.component, endpoint.endpoint)
        self._events, self._heartbeats, self._resync = (
            endpoint_subject(*place, topic) for topic in (KV_EVENTS, KV_HEARTBEAT, KV_RESYNC)
        )
        self._recovery = EventRecovery(index)
        self._schedule = FeedSchedule(clock, self._recovery)
        self._unknown = unknown or UnknownPublishers(index)
        self._ask_worker, self._sources, self._caught_up = ask_worker, sources, caught_up
        self._subscriptions: list[Subscription] = []
        self._ticker: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._lapses = plane.stats.lapses
        self.refused = 0  # messages the full mailbox did not take
        self.replays_asked = 0
        self.announcements_asked = 0

    @property
    def connected(self) -> bool:
        return self._plane.state is PlaneState.CONNECTED

    @property
    def _asks(self) -> bool:
        return self.connected and self._caught_up()

    async def start(self) -> None:
        self._unwatch = self._plane.on_state(self._on_plane_state)
        self._index.await_replays()
        self._registry.on_update.append(self._on_worker)
        for entry in self._registry.entries():
            self._on_worker(entry)
        await self._plane.offer(self._resync)
        for subject in (self._events, self._heartbeats):
            self._subscriptions.append(
                await self._plane.subscribe_batches(subject, self._on_messages)
            )
        self._ticker = supervise("event feed", self._run)

    async def close(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._registry.on_update.remove(self._on_worker)
        await stopped(self._ticker)
        if self._sources is not None:
            await self._sources.close()
        for subscription in self._subscriptions:
            await subscription.close()
        self._schedule.cancel()

    async def tick(self) -> None:
        """One round at the clock's now: gaps each time, upkeep every `TICK_S`."""
        now = self._clock.now()
        if self._schedule.upkeep_due(now):
            await self._keep_up(now)
        if self._asks and (self._recovery.gap_noticed or self._recovery.waiting):
            await self._carry_out(self._recovery.fill_gaps(now))

    async def _keep_up(self, now: float) -> None:
        self._unknown.count_refused(now)
        if asked := self._index.relearn():
            log.info("room for dropped blocks again", sources=asked)
        sources: list[SourceStatus] = []
        for some in self._index.sources_in_steps():
            sources += some
            await asyncio.sleep(0)  # a large fleet's take a while
        registered = {worker for _, worker in self._registry.numbered()}
        self._unknown.forget({source.worker for source in sources} - registered, now)
        if self._sources is not None:
            self._sources.look(sources, self.connected)
            sources = [source for source in sources if self._sources.asks(source.worker)]
            registered = {worker for worker in registered if self._sources.asks(worker)}
        self._unknown.report_unannounced(sources, registered)
        if not self._asks:
            return
        await self._carry_out(self._recovery.keep_up(sources, registered, now))

    async def _carry_out(self, actions: RecoveryActions) -> None:
        for worker in actions.given_up:
            log.info("missing events did not come, asking for all", worker=tuple(worker))
        for worker in actions.degraded:
            log.warning("event source does not announce itself", worker=tuple(worker))
        for request in actions.ask:
            if request.from_event_id is None:
                self.announcements_asked += 1
            else:
                self.replays_asked += 1
            if self._ask_worker is None or not self._ask_worker(request):
                await self._plane.publish(self._resync, encode_request(request))

    def _on_worker(self, entry: WorkerEntry) -> None:
        """Believe the right publisher of a worker."""
        if self._sources is not None:
            self._sources.on_worker(entry)
        else:
            believe_announced(self._index, entry)

    def _on_messages(self, payloads: list[bytes]) -> None:
        self.refused += self._index.post_all(payloads)
        self._schedule.on_message()

    def _on_plane_state(self, state: PlaneState) -> None:
        if state is PlaneState.CONNECTED and self._plane.stats.lapses > self._lapses:
            self._lapses = self._plane.stats.lapses
            self._index.mark_suspect()
            self._recovery.forget_gaps()
            if self._sources is not None:
                self._sources.on_reconnected()

    async def _run(self) -> None:
        while True:
            self._schedule.begin_round()
            await self.tick()
            await self._schedule.wait()
