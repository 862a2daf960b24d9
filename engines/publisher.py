"""Publishes what changes in an engine's KV cache, so that routers far away know what it holds.

The engine reports each change where it happens. What a router missed is sent again, as long as it
is kept; when it is not, or the plane was away, or too much waited, the whole cache is announced
anew. A heartbeat says now and then which event was the last, for those who missed just that one.
What is sent, and when, is decided in event_stream.py; here it is put on an event plane.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable
from secrets import randbits

from ..base.clock import Clock
from ..base.identity import as_worker
from ..indexer.wire import StorageTier
from ..runtime.event_planes import (
    KV_EVENTS,
    KV_HEARTBEAT,
    KV_RESYNC,
    EventPlane,
    PlaneState,
    Subscription,
    endpoint_subject,
)
from .event_stream import EventStream, Outgoing, PublisherLimits, PublisherStats
from .outbox import Hashes, StoredRun

HEARTBEAT_S = 5.0
HEARTBEAT_JITTER = 0.25
"""Each wait is longer or shorter by up to this share, so that a fleet does not beat as one."""
_POLL_S = 0.05
_BYTES_PER_FLUSH = 1 << 19


class KvEventPublisher:
    """Publishes the KV events of one (worker, rank), from `start` to `close`, on one event loop.

    `snapshot` gives the whole cache as runs of blocks, parents before children. It is called on
    the loop, and must agree with the changes reported until then: report a change in the same
    step that makes it.
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
        heartbeat_s: float = HEARTBEAT_S,
        limits: PublisherLimits | None = None,
    ) -> None:
        """`heartbeat_s`: 0 for none. ValueError if a bound is none. A heartbeat says 0 where there
        is no event yet, so the loss of an event 0 shows only with the next one.
        """
        if start_event_id < 0:
            raise ValueError(f"start_event_id {start_event_id} is negative")
        if not heartbeat_s >= 0:
            raise ValueError(f"heartbeat_s {heartbeat_s} is negative")
        self._plane = plane
        self._clock = clock
        self._subjects = {
            topic: endpoint_subject(namespace, component, endpoint, topic)
            for topic in (KV_EVENTS, KV_HEARTBEAT, KV_RESYNC)
        }
        self._stream = EventStream(
            as_worker((worker_id, dp_rank)),
            # Of this publisher, not of the process: (publisher_id, sequence) must name one message.
            randbits(53),
            snapshot=snapshot,
            wall_ms=_wall_ms,
            limits=limits or PublisherLimits(),
            first_event_id=start_event_id,
        )
        self._name = f"publisher {worker_id}"
        self._heartbeat_s = heartbeat_s
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._unflushed = 0  # bytes
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._unwatch: Callable[[], None] | None = None

    @property
    def stats(self) -> PublisherStats:
        return self._stream.stats

    @property
    def next_event_id(self) -> int:
        """The id that the next event to leave will carry."""
        return self._stream.next_event_id

    def kept_since(self, event_id: int) -> list[bytes] | None:
        """The messages with the events from this one on, as they left; None if not all are kept."""
        return self._stream.kept_since(event_id)

    @property
    def publisher_id(self) -> int:
        return self._stream.publisher_id

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
        self._connected_stream().stored(StoredRun(parent_hash, block_hashes, local_hashes, tier))
        self._wake.set()

    def removed(self, block_hashes: Hashes, tier: StorageTier = "device") -> None:
        """Blocks were evicted from a tier. ValueError if there is no such tier."""
        self._connected_stream().removed(block_hashes, tier)
        self._wake.set()

    def cleared(self, tier: StorageTier | None = None) -> None:
        """A tier was emptied; None: all of them. An engine that goes away for good reports it last.

        ValueError if there is no such tier.
        """
        self._connected_stream().cleared(tier)
        self._wake.set()

    async def start(self) -> None:
        """Begin to send, first what was reported before. RuntimeError on a closed plane."""
        if self._task is not None:
            return
        for topic in (KV_EVENTS, KV_HEARTBEAT):
            await self._plane.offer(self._subjects[topic], self.publisher_id)
        subject = self._subjects[KV_RESYNC]
        self._subscription = await self._plane.subscribe(subject, self._on_resync)
        self._unwatch = self._plane.on_state(self._on_plane_state)
        self._task = asyncio.create_task(self._run(), name=self._name)
        if self._heartbeat_s > 0:
            self._on_heartbeat_due()  # at once: others may believe in a publisher before us

    async def close(self) -> None:
        """Hand what still waits to the plane, then stop. The plane stays open. Idempotent."""
        if self._unwatch is not None:
            self._unwatch()
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        if self._subscription is not None:
            await self._subscription.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._send_events()
            await self._plane.withdraw(self.publisher_id)

    async def flush(self) -> bool:
        """Send what was reported, and wait until the carrier has it; False if it cannot now."""
        await self._send_events()
        return not self._stream.stale and await self._plane.flush()

    def _connected_stream(self) -> EventStream:
        """The stream, knowing whether the plane is there."""
        self._stream.connected = self._plane.state is PlaneState.CONNECTED
        return self._stream

    def _on_plane_state(self, state: PlaneState) -> None:
        if state is PlaneState.CONNECTED:
            self._wake.set()
        else:
            self._stream.connection_lost()

    def _on_resync(self, subject: str, payload: bytes) -> None:
        self._stream.on_request(subject, payload)
        self._wake.set()

    def _on_heartbeat_due(self) -> None:
        self._stream.want_heartbeat()
        self._wake.set()
        wait = self._heartbeat_s * random.uniform(1 - HEARTBEAT_JITTER, 1 + HEARTBEAT_JITTER)
        loop = asyncio.get_running_loop()
        self._heartbeat_timer = loop.call_later(wait, self._on_heartbeat_due)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            stream, now = self._connected_stream(), self._clock.now()
            message = stream.next_message(now)
            if message is not None:
                await self._publish(message)
                await asyncio.sleep(0)  # a long announcement shares the loop
                continue
            wait = stream.wait_s(now)
            # In short steps, because the clock may be moved by its owner.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait is None else min(wait, _POLL_S)):
                    await self._wake.wait()

    async def _send_events(self) -> None:
        while (message := self._stream.next_events()) is not None:
            await self._publish(message)
        if self._stream.stale:
            self._wake.set()  # an announcement is due

    async def _publish(self, message: Outgoing) -> None:
        await self._plane.publish(self._subjects[message.topic], message.payload)
        self._unflushed += len(message.payload)
        if self._unflushed >= _BYTES_PER_FLUSH:
            # Keeps an announcement of any size from filling the plane's buffer.
            self._unflushed = 0
            await self._plane.flush()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
