"""The event plane on NATS core: at-most-once, reconnecting for ever, never in the way."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from nats.errors import Error as NatsError
from structlog import get_logger

from ...base.backoff import Backoff
from ...base.urls import DEFAULT_NATS_URL, redact_url, split_nats_url
from ...transport.nats import MAX_UNSENT_BYTES, NatsLink
from ...transport.security import NatsAuth
from .event_plane import (
    BatchHandler,
    Handler,
    PlaneBase,
    PlaneState,
    check_subject,
    one_by_one,
)
from .outgoing_buffer import OutgoingBuffer

log = get_logger(__name__)

STABLE_AFTER_S = 1.0
"""A connection that lasted this long lets the next backoff start from the beginning."""
CLOSE_TIMEOUT_S = 5.0
"""The longest that close() waits for the server to take what is still to be sent."""


class NatsPlane(PlaneBase):
    """Connects in the background from the moment it is made, on the running loop.

    CONNECTED means that the server knows all subscriptions. What was published while it was
    away is sent on its return; what it had not read when it went away is lost.
    """

    def __init__(
        self,
        url: str = DEFAULT_NATS_URL,
        *,
        auth: NatsAuth | None = None,
        buffer_messages: int = 16384,
        buffer_bytes: int = 64 << 20,
        pending_messages: int = 65536,
        pending_bytes: int = 64 << 20,
        heartbeat_s: float = 5.0,
        backoff: Backoff | None = None,
    ) -> None:
        """`buffer_*` bound what waits to be sent, `pending_*` what waits for one handler.

        ConfigError if `url` is no address; several may be given with commas, and are tried in
        turn.
        """
        super().__init__(PlaneState.CONNECTING)
        self.url = redact_url(url)
        """for people: without credentials"""
        self._urls = [part.strip() for part in url.split(",")]
        for part in self._urls:
            split_nats_url(part)
        if auth is not None:
            auth.check_url(url)
        self._auth = auth
        self._pending = (pending_messages, pending_bytes)
        self._heartbeat_s = heartbeat_s
        self._backoff = backoff or Backoff()
        self._buffer = OutgoingBuffer(buffer_messages, buffer_bytes)
        self._subscriptions: dict[NatsSubscription, None] = {}
        self._link: NatsLink | None = None
        self._wake = asyncio.Event()
        self._closing = False
        self._dropping_link = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"plane {self.url}")

    @property
    def buffered_messages(self) -> int:
        return len(self._buffer)

    async def publish(self, subject: str, payload: bytes) -> None:
        check_subject(subject, wildcards=False)
        link = self._link
        if link is not None and not self._buffer and self._can_send(link):
            try:
                self._count(subject, await link.publish(subject, payload))
                return
            except (NatsError, OSError):
                pass  # lost a moment ago: keep the message for the next connection
        if self._closing:
            self._stats.publish_dropped += 1
            return
        self._stats.publish_dropped += self._buffer.push(subject, payload)
        self._wake.set()
        if link is not None:
            # One turn of the loop, no wait: else a caller that publishes in a row keeps the very
            # task that would send from running, and fills the buffer in front of a fast server.
            await asyncio.sleep(0)

    async def subscribe(self, subject: str, handler: Handler) -> "NatsSubscription":
        return await self.subscribe_group(subject, "", handler)

    async def subscribe_group(
        self, subject: str, group: str, handler: Handler
    ) -> "NatsSubscription":
        """As `subscribe`, but of those that subscribe as the same group one gets each message."""
        check_subject(subject, wildcards=True)
        if group:
            check_subject(group, wildcards=False)
        if self._closing:
            raise RuntimeError("the event plane is closed")
        deliver = partial(self._deliver, handler)
        return await self._add(NatsSubscription(subject, deliver, self._remove, group))

    async def subscribe_batches(self, subject: str, handler: BatchHandler) -> "NatsSubscription":
        check_subject(subject, wildcards=True)
        if self._closing:
            raise RuntimeError("the event plane is closed")
        deliver = partial(self._deliver, one_by_one(handler))
        subscription = NatsSubscription(subject, deliver, self._remove)
        same = (each.sink for each in self._subscriptions if each.batches == handler)
        subscription.batches = handler
        subscription.sink = next(same, None) or partial(self._deliver_batch, handler)
        return await self._add(subscription)

    async def _add(self, subscription: "NatsSubscription") -> "NatsSubscription":
        self._subscriptions[subscription] = None
        link = self._link
        if link is not None:
            try:
                await self._attach(link, subscription)
                await link.flush()
            except (NatsError, OSError):
                pass  # the next connection attaches it
        return subscription

    async def flush(self) -> bool:
        link = self._link
        while link is not None and await link.flush():
            if not self._buffer:
                return True
        return False

    async def close(self) -> None:
        if self._state is PlaneState.CONNECTED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self.flush()
        self._closing = True
        while not self._task.done():
            # Again and again, because a cancellation can get lost: asyncio.wait_for of Python
            # 3.11, deep in nats-py, swallows one that comes together with its result.
            if not self._dropping_link:
                self._task.cancel()
            await asyncio.wait({self._task}, timeout=0.05)
        self._subscriptions.clear()
        self._stats.publish_dropped += self._buffer.clear()
        self._set_state(PlaneState.CLOSED)

    # The life of the connection, all of it in one task.

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        assert me is not None
        attempt = 0
        reported = False
        while not me.cancelling():
            link = NatsLink(self._wake.set, self._on_slow)
            url = self._urls[attempt % len(self._urls)]
            attempt += 1
            since = loop.time()
            error: BaseException | None
            try:
                await link.open(url, self._auth)
                await self._attach_all(link)
                if me.cancelling():
                    break
                since = loop.time()
                log.info("the event plane is connected", url=redact_url(url))
                reported = False
                self._set_state(PlaneState.CONNECTED)
                await self._serve(link)
                error = link.error
            except (Exception, asyncio.CancelledError) as caught:
                if me.cancelling():
                    break
                # Whatever it was, trying again is all that can be done: also when it was
                # something inside nats-py that was cancelled.
                error = caught
            finally:
                self._link = None
                self._dropping_link = True
                await link.close()
                self._dropping_link = False
            if loop.time() - since > STABLE_AFTER_S:
                self._backoff.reset()
            if not reported:
                reported = True
                log.warning(
                    "the event plane is not reachable, will keep trying",
                    url=redact_url(url),
                    error=str(error) or type(error).__name__,
                )
            self._set_state(PlaneState.CONNECTING)
            await asyncio.sleep(self._backoff.next())

    async def _attach_all(self, link: NatsLink) -> None:
        """Every subscription onto the new link, then make it the link."""
        while missing := [s for s in self._subscriptions if s.link is not link]:
            for subscription in missing:
                await self._attach(link, subscription)
            if not await link.flush():
                raise link.error or ConnectionError("lost while subscribing")
        # No await since the check: a subscription made from now on sees the link itself.
        self._link = link

    async def _attach(self, link: NatsLink, subscription: "NatsSubscription") -> None:
        # Marked first: subscribe() and _attach_all() must not both do it.
        subscription.link = link
        subscription.end = await link.subscribe(
            subscription.subject,
            subscription.receive,
            *self._pending,
            group=subscription.group,
            sink=subscription.sink,
        )
        if subscription not in self._subscriptions:  # closed in the meantime
            await subscription.end()

    async def _serve(self, link: NatsLink) -> None:
        """Send what was buffered and keep an eye on the link, until it is lost."""
        while link.alive:
            self._wake.clear()
            await self._send_buffered(link)
            if self._buffer:
                await link.flush()  # wait until the server has taken some
                continue
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._wake.wait()
            except TimeoutError:
                await link.flush()

    async def _send_buffered(self, link: NatsLink) -> None:
        while self._buffer and self._can_send(link):
            subject, payload = self._buffer.pop()
            try:
                self._count(subject, await link.publish(subject, payload))
            except (NatsError, OSError):
                self._buffer.put_back(subject, payload)
                return

    def _can_send(self, link: NatsLink) -> bool:
        return link.alive and link.unsent_bytes < MAX_UNSENT_BYTES

    def _count(self, subject: str, sent: bool) -> None:
        if sent:
            self._stats.published += 1
        else:
            self._stats.publish_dropped += 1
            log.warning("a message is larger than the server's max_payload", subject=subject)

    def _on_slow(self) -> None:
        self._stats.receive_dropped += 1

    async def _remove(self, subscription: "NatsSubscription") -> None:
        self._subscriptions.pop(subscription, None)
        if subscription.end is not None:
            await subscription.end()


class NatsSubscription:
    """A handler on a NatsPlane, carried from connection to connection."""

    def __init__(
        self,
        subject: str,
        deliver: Handler,
        remove: Callable[["NatsSubscription"], Awaitable[None]],
        group: str = "",
    ) -> None:
        """`deliver` takes each message; `remove` takes the subscription off its plane."""
        self.subject = subject
        self.group = group
        """of which one member gets each message; empty: none"""
        self._deliver = deliver
        self._remove = remove
        self._closed = False
        self.batches: BatchHandler | None = None
        """takes messages that came together, by `sink`, which those with the same handler share"""
        self.sink: BatchHandler | None = None
        self.link: NatsLink | None = None
        """the connection it was last attached to"""
        self.end: Callable[[], Awaitable[None]] | None = None
        """takes it off that connection"""

    def receive(self, subject: str, payload: bytes) -> None:
        if not self._closed:
            self._deliver(subject, payload)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._remove(self)
