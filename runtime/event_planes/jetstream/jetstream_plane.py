"""JetStreamPlane: an event plane whose KV events last, because a stream in JetStream keeps them.

Publishers need no other way than before: the stream takes what is published on the subject. A
reader gets it from the stream, from where it stopped, and acknowledges what was applied.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from nats.aio.msg import Msg
from structlog import get_logger

from ....base.backoff import Backoff
from ....process.settings import bad_setting
from ....process.supervised import stopped, supervise
from ...kv_stores import StoreError, read_delivery
from .. import EventPlane, Handler, PlaneBase, PlaneState, PlaneStats, Subscription
from .acknowledger import StreamAcknowledger
from .stream_client import EventStreamClient, NameTakenError, StreamFacts
from .stream_reader import StreamPosition, StreamReader

START_S = 5.0
"""How long a server may take, at the start, to serve streams and to notice that a router died."""
LOOK_S = 2.0
"""How often a publisher looks whether the stream is there."""
HELD_S = 0.1
"""Held messages wait this long at least: the stream is slower than the subject."""
MOST_HELD = 1 << 16
_TICK_S = 0.05
_RETRY_S = 0.25

log = get_logger(__name__)


class JetStreamPlane(PlaneBase):
    """A plane over another one, which it closes, with the events of one subject from a stream.

    While the stream cannot be read, events are taken as they are published. CONNECTED is who hears
    them one way or the other; `lapses` counts only what the stream did not keep for us.
    """

    def __init__(
        self,
        plane: EventPlane,
        client: EventStreamClient,
        *,
        reader: str | None = None,
        position: StreamPosition | None = None,
        settled: Callable[[], Awaitable[None]] | None = None,
        held: Collection[str] = (),
    ) -> None:
        """`reader` is the name to read by; None: who only publishes. What is up to `position` is
        known already. `settled` returns once all is applied that handlers were given. Messages on
        the subjects `held` speak of events published before, and wait for those."""
        super().__init__(PlaneState.CONNECTING)
        self._plane, self.client = plane, client
        self._name = reader
        self._held_subjects = held
        self.reader = StreamReader(position)
        self._acknowledger = StreamAcknowledger(self.reader, client.connection, settled)
        self.fallbacks = 0
        """times that the stream could not be read for long"""
        self._handlers: dict[_StreamSubscription, Handler] = {}
        self._held: deque[tuple[float, Handler, str, bytes]] = deque(maxlen=MOST_HELD)
        self._end_reading: Callable[[], Awaitable[None]] | None = None
        self._live: Subscription | None = None  # while the stream is away
        self._lapses_seen = 0
        self._reported = ""
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._backoff = Backoff(_RETRY_S, 2.0)
        self._unwatch = plane.on_state(lambda state: self._look())
        client.connection.on_lost.add(self._on_lost)

    @property
    def stats(self) -> PlaneStats:
        below, own = self._plane.stats, self._stats
        return PlaneStats(
            published=below.published,
            publish_dropped=below.publish_dropped,
            received=below.received + own.received,
            receive_dropped=below.receive_dropped + own.receive_dropped,
            garbled=below.garbled + own.garbled,
            handler_errors=below.handler_errors + own.handler_errors,
            connects=own.connects,
            lapses=own.lapses,
        )

    @property
    def position(self) -> StreamPosition:
        """What was acknowledged is applied; so is all before it."""
        return StreamPosition(self.reader.position.created, self.reader.acked)

    @property
    def caught_up(self) -> bool:
        """Whether what is heard is recent, so that what is missing is worth asking for."""
        return self._live is not None or (self.reader.is_open and self.reader.caught_up)

    @property
    def reading(self) -> object:
        """What stands for the present reading of the stream; None while there is none."""
        return self._end_reading if self.reader.is_open else None

    def read_anew(self) -> None:
        """The stream or our consumer is known to be gone: do not wait until that shows."""
        self._on_lost()

    async def start(self) -> None:
        """Find the stream, or make it. ConfigError if the server keeps none for us, or another
        router reads under our name. A server that is not there is waited for in the background."""
        try:
            await self.client.connection.link()
        except StoreError as error:
            if not error.transient:
                raise bad_setting("durable_kv_events", str(error)) from None
            log.warning("no server for the stream of events yet", error=str(error))
        else:
            await self._claim()
        self._task = supervise("event stream", self._read if self._name else self._keep)

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._plane.publish(subject, payload)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        if self._name is not None and subject == self.client.names.subject:
            if self._state is PlaneState.CLOSED:
                raise RuntimeError("the event plane is closed")
            subscription = _StreamSubscription(subject, self._handlers)
            self._handlers[subscription] = handler
            return subscription
        if subject in self._held_subjects:
            below = await self._plane.subscribe(subject, partial(self._hold, handler))
            return _HeldSubscription(below, partial(self._forget, handler))
        return await self._plane.subscribe(subject, handler)

    async def flush(self) -> bool:
        return await self._plane.flush()

    async def settle(self) -> None:
        """Have all that was read applied and acknowledged, so that `position` is there."""
        await self._acknowledger.acknowledge()

    async def close(self) -> None:
        task, self._task = self._task, None
        await stopped(task)
        self._unwatch()
        self.client.connection.on_lost.discard(self._on_lost)
        self._handlers.clear()
        self._held.clear()
        if task is not None and self._name is not None:
            with contextlib.suppress(StoreError):
                async with asyncio.timeout(1.0):
                    await self.settle()
                    await self._stop_reading()
                    await self.client.withdraw(self._name)
        await self._plane.close()
        await self.client.connection.close()
        self._set_state(PlaneState.CLOSED)

    def _lapsed(self) -> bool:
        lapses = self.reader.lapses + self.fallbacks
        lapsed, self._lapses_seen = lapses > self._lapses_seen, lapses
        return lapsed

    async def _claim(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + START_S
        while True:
            try:
                await self.client.ensure()
                if self._name is not None:
                    await self.client.claim(self._name)
                return
            except StoreError as error:
                if not error.transient or loop.time() >= end:
                    key = "router_id" if isinstance(error, NameTakenError) else "durable_kv_events"
                    raise bad_setting(key, str(error)) from None
            await asyncio.sleep(_RETRY_S)

    async def _keep(self) -> None:
        """Of a publisher: see to it that there is a stream."""
        while True:
            try:
                await self.client.ensure()
                self._report("")
            except StoreError as error:
                self._report(str(error))
            await asyncio.sleep(LOOK_S)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            if self.reader.is_silent(now):
                self.reader.on_broken(now)
            if self.reader.is_open:
                await self._go_on(now)
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self._wake.wait()
            elif self._plane.state is PlaneState.CONNECTED and self._handlers:
                await self._open()
            else:
                self._look()
                await asyncio.sleep(_TICK_S)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._name is not None
        try:
            await self._stop_reading()
            facts: StreamFacts = await self.client.ensure()
            start = self.reader.begin(*facts, loop.time())
            self._end_reading = await self.client.read_from(start, self._name, self._on_message)
        except StoreError as error:
            now = loop.time()
            self.reader.on_broken(now)
            self._report(str(error))
            if self._live is None and self.reader.falls_back(now):
                self._live = await self._plane.subscribe(self.client.names.subject, self._on_live)
                self.fallbacks += 1
                log.warning("events are taken as they are published, the stream is away")
            self._look()
            await asyncio.sleep(self._backoff.next())
            return
        self._backoff.reset()
        self._report("")
        live, self._live = self._live, None
        if live is not None:
            await live.close()
        log.info("reading the stream of events", stream=self.client.names.stream, start=start)
        self._look()

    async def _go_on(self, now: float) -> None:
        self._release(now)
        self._look()
        if self.reader.ack_due(now) is not None:
            await self._acknowledger.acknowledge()

    async def _stop_reading(self) -> None:
        end, self._end_reading = self._end_reading, None
        self._acknowledger.forget()
        if end is not None:
            await end()

    def _on_message(self, message: Msg) -> None:
        if not self._handlers:
            return  # it counts as read once a handler was given it
        now = asyncio.get_running_loop().time()
        delivery = read_delivery(message.reply)
        if delivery is None:
            headers = message.headers or {}
            if headers.get("Nats-Last-Consumer"):
                self.reader.on_idle(int(headers["Nats-Last-Consumer"]), now)
            return
        if self.reader.on_message(*delivery, now):
            self._acknowledger.on_message(message.reply)
            self._tell(self.client.names.subject, message.data)
        if not self.reader.is_open:
            self._wake.set()

    def _on_live(self, subject: str, payload: bytes) -> None:
        self._tell(subject, payload)

    def _tell(self, subject: str, payload: bytes) -> None:
        for handler in list(self._handlers.values()):
            self._deliver(handler, subject, payload)

    def _hold(self, handler: Handler, subject: str, payload: bytes) -> None:
        if self._live is not None:
            handler(subject, payload)
        else:
            self._stats.receive_dropped += len(self._held) == MOST_HELD
            self._held.append((asyncio.get_running_loop().time(), handler, subject, payload))

    def _release(self, now: float) -> None:
        while self._held and self.caught_up and now - self._held[0][0] >= HELD_S:
            _, handler, subject, payload = self._held.popleft()
            self._deliver(handler, subject, payload)

    def _forget(self, handler: Handler) -> None:
        """It has no handler any more."""
        kept = [each for each in self._held if each[1] != handler]
        self._held.clear()
        self._held.extend(kept)

    def _on_lost(self) -> None:
        self.reader.on_broken(asyncio.get_running_loop().time())
        self._wake.set()

    def _look(self) -> None:
        """Be in the state that follows from the plane below and the stream."""
        if self._state is PlaneState.CLOSED:
            return
        hears = self._name is None or self.reader.is_open or self._live is not None
        up = self._plane.state is PlaneState.CONNECTED and hears
        if up and self.reader.lapses + self.fallbacks > self._lapses_seen:
            self._set_state(PlaneState.CONNECTING)
        self._set_state(PlaneState.CONNECTED if up else PlaneState.CONNECTING)

    def _report(self, failure: str) -> None:
        """Say once what is wrong, and once that it is over."""
        if failure and not self._reported:
            log.warning("the stream of events is away, will keep trying", error=failure)
        elif self._reported and not failure:
            log.info("the stream of events is back")
        self._reported = failure


class _StreamSubscription:
    """A handler of a stream's messages."""

    def __init__(self, subject: str, handlers: "dict[_StreamSubscription, Handler]") -> None:
        self.subject, self._handlers = subject, handlers

    async def close(self) -> None:
        self._handlers.pop(self, None)


class _HeldSubscription:
    """A subscription to a subject whose messages wait for those of the stream."""

    def __init__(self, below: Subscription, forget: Callable[[], None]) -> None:
        self._below, self._forget = below, forget

    @property
    def subject(self) -> str:
        return self._below.subject

    async def close(self) -> None:
        self._forget()
        await self._below.close()
        self._forget()
