"""The event feed: carries KV events from the event plane into the index.

Events and heartbeats go straight to the index's mailbox. A tick sends the requests of the event
recovery (recovery.py); a slower one also forgets workers that publish but were never registered.
"""

import asyncio
from collections.abc import Callable

import structlog

from ..base.clock import Clock
from ..base.identity import WorkerWithDpRank
from ..base.limit_hits import LimitHits
from ..indexer.event_index import EventIndex
from ..indexer.source import SourceStatus
from ..process.supervised import stopped, supervise
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
from .recovery import REPLAY_TICK_S, TICK_S, EventRecovery, RecoveryActions
from .resync_wire import ResyncRequest, encode_request

REPEAT_S = 60.0
"""Between two lines in the log about strangers."""

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
        on_unannounced: Callable[[int], None] | None = None,
        hits: LimitHits | None = None,
        ask_worker: Callable[[ResyncRequest], bool] | None = None,
        sources: EventSources | None = None,
        caught_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`ask_worker` may take a request over that would be published, and says whether it does.
        `on_unannounced` hears of a registered worker (its id) in whose name somebody else
        publishes than it announced: perhaps because it was started anew. `hits` counts what is
        refused because too many workers publish that nobody registered. `sources` finds out who
        tells events elsewhere; None: all publish on the plane. Nothing is asked for unless
        `caught_up`: what is missed may be on its way."""
        self._plane = plane
        self._index = index
        self._registry = registry
        self._clock = clock
        self._ttl = unknown_worker_ttl_s
        self._events = endpoint_subject(namespace, component, endpoint, KV_EVENTS)
        self._heartbeats = endpoint_subject(namespace, component, endpoint, KV_HEARTBEAT)
        self._resync = endpoint_subject(namespace, component, endpoint, KV_RESYNC)
        self._recovery = EventRecovery(index)
        self._next_upkeep = float("-inf")
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # for when to look at the latest
        self._posted = False  # something came since the last look
        self._on_unannounced = on_unannounced
        self._ask_worker = ask_worker
        self._hits = LimitHits() if hits is None else hits
        self._sources, self._caught_up = sources, caught_up
        self._strangers_refused = 0
        self._strangers_said = float("-inf")  # when that was last logged
        self._unannounced: dict[WorkerWithDpRank, int] = {}
        self._first_seen: dict[WorkerWithDpRank, float] = {}
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
            self._subscriptions.append(await self._plane.subscribe(subject, self._on_message))
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
        self._let_sleep()

    async def tick(self) -> None:
        """One round at the clock's now: gaps each time, upkeep every `TICK_S`."""
        now = self._clock.now()
        if now >= self._next_upkeep:
            self._next_upkeep = now + TICK_S
            await self._keep_up(now)
        if self._asks and (self._recovery.gap_noticed or self._recovery.waiting):
            await self._carry_out(self._recovery.fill_gaps(now))

    async def _keep_up(self, now: float) -> None:
        self._notice_refused(now)
        if asked := self._index.relearn():
            log.info("room for dropped blocks again", sources=asked)
        sources: list[SourceStatus] = []
        for some in self._index.sources_in_steps():
            sources += some
            await asyncio.sleep(0)  # a large fleet's take a while
        registered = {worker for _, worker in self._registry.numbered()}
        self._forget_strangers({source.worker for source in sources} - registered, now)
        if self._sources is not None:
            self._sources.look(sources, self.connected)
            sources = [source for source in sources if self._sources.asks(source.worker)]
            registered = {worker for worker in registered if self._sources.asks(worker)}
        self._notice_unannounced(sources, registered)
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

    def _notice_unannounced(
        self, sources: list[SourceStatus], registered: set[WorkerWithDpRank]
    ) -> None:
        """Tell of workers in whose name others publish, if there was more of that."""
        seen, self._unannounced = self._unannounced, {}
        for source in sources:
            if source.unannounced and source.worker in registered:
                self._unannounced[source.worker] = source.unannounced
                if source.unannounced > seen.get(source.worker, 0) and self._on_unannounced:
                    self._on_unannounced(source.worker.worker_id)

    def _notice_refused(self, now: float) -> None:
        """Count what strangers said beyond `max_unknown_workers`, and say so now and then."""
        seen, self._strangers_refused = self._strangers_refused, self._index.refused
        if self._strangers_refused == seen:
            return
        self._hits.hit("max_unknown_workers", self._strangers_refused - seen)
        if now - self._strangers_said >= REPEAT_S:
            self._strangers_said = now
            log.warning(
                "too many workers publish events that nobody registered",
                refused=self._strangers_refused,
            )

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
        if self._recovery.gap_noticed:
            self._wake.set()  # the index noticed a gap, perhaps by an earlier message
        elif not self._posted:
            self._posted = True
            self._look_in(REPLAY_TICK_S)  # or notices one a moment later

    def _on_plane_state(self, state: PlaneState) -> None:
        if state is PlaneState.CONNECTED and self._plane.stats.lapses > self._lapses:
            self._lapses = self._plane.stats.lapses
            self._index.mark_suspect()
            self._recovery.forget_gaps()
            if self._sources is not None:
                self._sources.on_reconnected()

    async def _run(self) -> None:
        while True:
            self._posted = False
            await self.tick()
            self._wake.clear()
            self._sleep()
            try:
                await self._wake.wait()
            finally:
                self._let_sleep()

    def _sleep(self) -> None:
        """Look again in time, which mostly finds nothing to do."""
        restless = self._posted or self._recovery.gap_noticed or self._recovery.waiting
        self._look_in(REPLAY_TICK_S if restless else self._next_upkeep - self._clock.now())

    def _look_in(self, seconds: float) -> None:
        self._let_sleep()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._posted = False
        due = self._clock.now() >= self._next_upkeep
        if due or self._recovery.gap_noticed or self._recovery.waiting:
            self._wake.set()
        else:
            self._sleep()

    def _let_sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
