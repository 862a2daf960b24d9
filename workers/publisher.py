"""Publishes what changes in an engine's KV cache, so that routers far away know what it holds.

The engine tells each change where it happens. Whenever routers may have missed something (the
plane was away, too much waited, a router asks) the whole cache is announced anew.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from secrets import randbits

import msgspec
from structlog import get_logger

from ..indexer.wire import EventWriter
from ..runtime.clock import Clock
from ..runtime.event_plane import (
    KV_EVENTS,
    KV_RESYNC,
    EventPlane,
    PlaneState,
    Subscription,
    endpoint_subject,
)
from ..runtime.identity import as_worker
from .outbox import Hashes, Outbox, StoredRun

MIN_HEAL_INTERVAL_S = 1.0
"""Announcements start at least this far apart; requests in between become one."""
_POLL_S = 0.05
_BYTES_PER_FLUSH = 1 << 19

log = get_logger(__name__)


class ResyncRequest(msgspec.Struct, frozen=True):
    """A router asks a worker to announce its cache. None: any rank, or any worker."""

    worker_id: int | None
    dp_rank: int | None = None

    def names(self, worker_id: int, dp_rank: int) -> bool:
        return self.worker_id in (None, worker_id) and self.dp_rank in (None, dp_rank)


@dataclass(slots=True)
class PublisherStats:
    """Counters of one publisher; they only grow."""

    messages: int = 0
    events: int = 0
    announcements: int = 0
    """times the whole cache was announced"""
    resync_requests: int = 0
    """requests for this worker"""
    given_up: int = 0
    """times that changes were given up, for an announcement to say it all"""
    errors: int = 0
    """requests that were junk, snapshots that failed"""


class KvEventPublisher:
    """The voice of one (worker, rank). Works from `start` to `close`, on one event loop.

    `snapshot` gives the whole cache as runs of blocks, parents before children. It is called on
    the loop, and must agree with the changes told until then: tell a change in the same step
    that makes it.
    """

    def __init__(
        self,
        plane: EventPlane,
        *,
        worker_id: int,
        dp_rank: int = 0,
        namespace: str,
        component: str,
        endpoint: str,
        snapshot: Callable[[], Iterable[StoredRun]],
        clock: Clock,
        start_event_id: int = 1,
        max_events_per_message: int = 128,
        max_blocks_per_message: int = 8192,
        max_queued_blocks: int = 1 << 20,
    ) -> None:
        self._plane = plane
        self._worker = as_worker((worker_id, dp_rank))
        self._subject = endpoint_subject(namespace, component, endpoint, KV_EVENTS)
        self._resync_subject = endpoint_subject(namespace, component, endpoint, KV_RESYNC)
        self._snapshot = snapshot
        self._clock = clock
        self._outbox = Outbox(
            self._worker,
            first_event_id=start_event_id,
            max_events=max_events_per_message,
            max_blocks=max_blocks_per_message,
            max_queued_blocks=max_queued_blocks,
        )
        # Of this publisher, not of the process: (publisher_id, sequence) must name one message.
        self._publisher_id = randbits(53)
        self._sequence = 0
        self._writer = EventWriter()
        self._heal_wanted = False
        self._last_heal = float("-inf")
        self._unflushed = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._unwatch: Callable[[], None] | None = None
        self._stats = PublisherStats()

    @property
    def stats(self) -> PublisherStats:
        return replace(self._stats, given_up=self._outbox.given_up)

    @property
    def next_event_id(self) -> int:
        """The id that the next event to leave will carry."""
        return self._outbox.next_event_id

    @property
    def publisher_id(self) -> int:
        return self._publisher_id

    def stored(self, parent_hash: int | None, block_hashes: Hashes, local_hashes: Hashes) -> None:
        """Blocks were cached behind `parent_hash`. ValueError if the arrays differ in length."""
        self._check_plane()
        self._outbox.put_stored(StoredRun(parent_hash, block_hashes, local_hashes))
        self._wake.set()

    def removed(self, block_hashes: Hashes) -> None:
        """Blocks were evicted."""
        self._check_plane()
        self._outbox.put_removed(block_hashes)
        self._wake.set()

    def cleared(self) -> None:
        """The whole cache was emptied. An engine that goes away for good says it last."""
        self._check_plane()
        self._outbox.put_cleared()
        self._wake.set()

    async def start(self) -> None:
        """Begin to send. What was told before is sent first. RuntimeError on a closed plane."""
        if self._task is not None:
            return
        self._subscription = await self._plane.subscribe(self._resync_subject, self._on_resync)
        self._unwatch = self._plane.on_state(self._on_plane_state)
        self._task = asyncio.create_task(self._run(), name=f"publisher {self._worker.worker_id}")

    async def close(self) -> None:
        """Hand what still waits to the plane, then stop. The plane stays open. Idempotent."""
        if self._unwatch is not None:
            self._unwatch()
        if self._subscription is not None:
            await self._subscription.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            while await self._send_message():
                pass

    async def flush(self) -> bool:
        """Send what was told, and wait until the carrier has it; False if it cannot now."""
        while await self._send_message():
            pass
        return not self._outbox.stale and await self._plane.flush()

    def _check_plane(self) -> None:
        if self._plane.state is not PlaneState.CONNECTED:
            self._outbox.invalidate()

    def _on_plane_state(self, state: PlaneState) -> None:
        if state is PlaneState.CONNECTED:
            self._wake.set()
        else:
            # Also with nothing waiting: what had left may not have arrived.
            self._outbox.invalidate()

    def _on_resync(self, subject: str, payload: bytes) -> None:
        try:
            request = msgspec.msgpack.decode(payload, type=ResyncRequest)
        except msgspec.DecodeError as error:
            self._stats.errors += 1
            log.warning("not a resync request", subject=subject, error=str(error))
            return
        if request.names(*self._worker):
            self._stats.resync_requests += 1
            self._heal_wanted = True
            self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait = self._heal_when_due()
            if await self._send_message():
                self._wake.set()
                await asyncio.sleep(0)  # a long announcement shares the loop
            elif wait is None:
                await self._wake.wait()
            else:
                # In short steps, because the clock may be one that somebody else moves.
                await asyncio.sleep(min(wait, _POLL_S))

    def _heal_when_due(self) -> float | None:
        """Start the announcement that is wanted; if it has to wait, for how many seconds."""
        if not (self._heal_wanted or self._outbox.stale):
            return None
        if self._outbox.announcing or self._plane.state is not PlaneState.CONNECTED:
            return None  # its end, or the plane, wakes us
        now = self._clock.now()
        wait = self._last_heal + MIN_HEAL_INTERVAL_S - now
        if wait > 0:
            return wait
        self._last_heal = now
        self._heal_wanted = False
        try:
            self._outbox.announce(self._snapshot())
        except Exception:
            # Silence until the next try is better than events on top of an unknown state.
            self._stats.errors += 1
            self._outbox.invalidate()
            log.exception("no snapshot of the cache to announce", worker=tuple(self._worker))
            return MIN_HEAL_INTERVAL_S
        self._stats.announcements += 1
        return None

    async def _send_message(self) -> bool:
        """Send one message, if there is anything to send."""
        try:
            events = self._outbox.write_message(self._writer)
        except (ValueError, TypeError, OverflowError):
            self._stats.errors += 1
            log.exception("a cache event cannot be encoded", worker=tuple(self._worker))
            self._wake.set()  # the outbox is stale now
            events = self._writer.events
        if not events:
            return False
        message = self._writer.message(
            self._publisher_id, self._sequence, time.time_ns() // 1_000_000, KV_EVENTS
        )
        self._sequence += 1
        self._stats.messages += 1
        self._stats.events += events
        await self._plane.publish(self._subject, message)
        self._unflushed += len(message)
        if self._unflushed >= _BYTES_PER_FLUSH:
            # Keeps an announcement of any size from filling the plane's buffer.
            self._unflushed = 0
            await self._plane.flush()
        return True
