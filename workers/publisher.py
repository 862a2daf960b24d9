"""Publishes what changes in an engine's KV cache, so that routers far away know what it holds.

The engine tells each change where it happens. What a router missed is sent again, as long as it is
kept; when it is not, or the plane was away, or too much waited, the whole cache is announced anew.
A heartbeat says now and then which event was the last, for those who missed just that one.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from secrets import randbits

import msgspec
from structlog import get_logger

from ..indexer.wire import EventWriter, StorageTier, encode_heartbeat
from ..runtime.clock import Clock
from ..runtime.event_plane import (
    KV_EVENTS,
    KV_HEARTBEAT,
    KV_RESYNC,
    EventPlane,
    PlaneState,
    Subscription,
    endpoint_subject,
)
from ..runtime.identity import as_worker
from .outbox import Hashes, Outbox, StoredRun
from .replay_log import ReplayLog
from .resync_wire import decode_request

MIN_HEAL_INTERVAL_S = 1.0
"""Announcements start at least this far apart; requests in between become one."""
HEARTBEAT_S = 5.0
HEARTBEAT_JITTER = 0.25
"""Each wait is longer or shorter by up to this share, so that a fleet does not beat as one."""
_POLL_S = 0.05
_BYTES_PER_FLUSH = 1 << 19

log = get_logger(__name__)


@dataclass(slots=True)
class PublisherStats:
    """Counters of one publisher; they only grow."""

    messages: int = 0
    events: int = 0
    announcements: int = 0
    """times the whole cache was announced"""
    resync_requests: int = 0
    """requests for this worker"""
    replays: int = 0
    """of those, or of several at once, answered by what was sent before"""
    replayed_messages: int = 0
    heartbeats: int = 0
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
        max_replay_events: int = 1 << 16,
        max_replay_bytes: int = 1 << 24,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """`max_replay_*` bound what is kept to be sent again: at best a whole announcement.
        `heartbeat_s`: 0 for none. ValueError if a bound is none. A heartbeat says 0 where there is
        no event yet, so the loss of an event 0 shows only with the next one.
        """
        if start_event_id < 0:
            raise ValueError(f"start_event_id {start_event_id} is negative")
        if not heartbeat_s >= 0:
            raise ValueError(f"heartbeat_s {heartbeat_s} is negative")
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
        self._log = ReplayLog(
            next_event_id=start_event_id,
            max_events=max_replay_events,
            max_bytes=max_replay_bytes,
        )
        self._resends: deque[bytes] = deque()
        self._heartbeat_s = heartbeat_s
        self._heartbeat_subject = endpoint_subject(namespace, component, endpoint, KV_HEARTBEAT)
        self._beat_wanted = heartbeat_s > 0  # at once: others may believe in one before us
        self._beater: asyncio.TimerHandle | None = None
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

    def stored(
        self,
        parent_hash: int | None,
        block_hashes: Hashes,
        local_hashes: Hashes,
        tier: StorageTier = "device",
    ) -> None:
        """Blocks were cached in a tier behind `parent_hash`, which may be in any tier.

        A block that moves is stored where it is now, then removed where it was. ValueError if the
        arrays differ in length, or there is no such tier.
        """
        self._check_plane()
        self._outbox.put_stored(StoredRun(parent_hash, block_hashes, local_hashes, tier))
        self._wake.set()

    def removed(self, block_hashes: Hashes, tier: StorageTier = "device") -> None:
        """Blocks were evicted from a tier. ValueError if there is no such tier."""
        self._check_plane()
        self._outbox.put_removed(block_hashes, tier)
        self._wake.set()

    def cleared(self, tier: StorageTier | None = None) -> None:
        """A tier was emptied; None: all of them. An engine that goes away for good says it last.

        ValueError if there is no such tier.
        """
        self._check_plane()
        self._outbox.put_cleared(tier)
        self._wake.set()

    async def start(self) -> None:
        """Begin to send. What was told before is sent first. RuntimeError on a closed plane."""
        if self._task is not None:
            return
        self._subscription = await self._plane.subscribe(self._resync_subject, self._on_resync)
        self._unwatch = self._plane.on_state(self._on_plane_state)
        self._task = asyncio.create_task(self._run(), name=f"publisher {self._worker.worker_id}")
        self._beat_later()

    async def close(self) -> None:
        """Hand what still waits to the plane, then stop. The plane stays open. Idempotent."""
        if self._unwatch is not None:
            self._unwatch()
        if self._beater is not None:
            self._beater.cancel()
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
            request = decode_request(payload)
        except msgspec.DecodeError as error:
            self._stats.errors += 1
            log.warning("not a resync request", subject=subject, error=str(error))
            return
        if not request.names(*self._worker):
            return
        self._stats.resync_requests += 1
        if request.from_event_id is None or request.publisher_id != self._publisher_id:
            self._heal_wanted = True
        else:
            self._log.want(request.from_event_id, request.until_event_id)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            waits = [self._heal_when_due(), self._replay_when_due()]
            if await self._resend() or await self._send_message() or await self._beat():
                self._wake.set()
                await asyncio.sleep(0)  # a long announcement shares the loop
                continue
            # In short steps, because the clock may be one that somebody else moves.
            due = [min(wait, _POLL_S) for wait in waits if wait is not None]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(due, default=None)):
                    await self._wake.wait()

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

    def _replay_when_due(self) -> float | None:
        """Start the replay that is wanted; if it has to wait, for how many seconds."""
        now = self._clock.now()
        wait = self._log.wait_s(now)
        if wait is None or self._resends or self._plane.state is not PlaneState.CONNECTED:
            return None  # its end, or the plane, wakes us
        if wait > 0:
            return wait
        messages = self._log.take(now)
        if messages is None:
            self._heal_wanted = True
            return 0.0
        self._stats.replays += 1
        self._resends.extend(messages)
        self._beat_wanted = True  # tells the asker that this was all
        return None

    async def _resend(self) -> bool:
        """Send one message again, if one is wanted."""
        if not self._resends:
            return False
        self._stats.replayed_messages += 1
        await self._publish(self._subject, self._resends.popleft())
        return True

    def _beat_later(self) -> None:
        if self._heartbeat_s > 0:
            wait = self._heartbeat_s * random.uniform(1 - HEARTBEAT_JITTER, 1 + HEARTBEAT_JITTER)
            self._beater = asyncio.get_running_loop().call_later(wait, self._on_beat_due)

    def _on_beat_due(self) -> None:
        self._beat_wanted = True
        self._wake.set()
        self._beat_later()

    async def _beat(self) -> bool:
        """Say which event was the last, if it is time to."""
        if not self._beat_wanted or self._plane.state is not PlaneState.CONNECTED:
            return False
        self._beat_wanted = False
        self._stats.heartbeats += 1
        await self._publish(
            self._heartbeat_subject,
            encode_heartbeat(
                self._worker,
                max(0, self._outbox.next_event_id - 1),
                self._publisher_id,
                max(0, self._sequence - 1),
                _wall_ms(),
            ),
        )
        return True

    async def _send_message(self) -> bool:
        """Send one message, if there is anything to send."""
        first_id = self._outbox.next_event_id
        try:
            events = self._outbox.write_message(self._writer)
        except (ValueError, TypeError, OverflowError):
            self._stats.errors += 1
            log.exception("a cache event cannot be encoded", worker=tuple(self._worker))
            self._wake.set()  # the outbox is stale now
            events = self._writer.events
        if not events:
            return False
        message = self._writer.message(self._publisher_id, self._sequence, _wall_ms(), KV_EVENTS)
        clear_id = self._outbox.clear_id
        self._log.append(
            first_id,
            first_id + events - 1,
            message,
            clear_id if clear_id >= first_id else None,
        )
        self._sequence += 1
        self._stats.messages += 1
        self._stats.events += events
        await self._publish(self._subject, message)
        return True

    async def _publish(self, subject: str, message: bytes) -> None:
        await self._plane.publish(subject, message)
        self._unflushed += len(message)
        if self._unflushed >= _BYTES_PER_FLUSH:
            # Keeps an announcement of any size from filling the plane's buffer.
            self._unflushed = 0
            await self._plane.flush()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
