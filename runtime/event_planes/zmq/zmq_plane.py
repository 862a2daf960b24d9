"""The event plane over ZMQ: publishers bind, are found in the store, and are connected to.

A publisher has a socket of its own, and a key for each of its topics. A subscriber of a topic
follows its keys, and connects to those that come. What is published before a subscriber has
connected does not arrive there: the event recovery asks for it, as after a gap.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from secrets import randbelow
from typing import Any

from structlog import get_logger

from ....base.envelope import decode_envelope
from ....base.errors import EventError
from ....process.off_loop import OffLoop
from ....process.supervised import stopped, supervise
from ...discovery import PrefixWatcher, Registrations, full_key_string
from ...kv_stores import LEASE_TTL_S, KeyValueStore, StoreError
from .. import Handler, PlaneBase, PlaneState
from .channels import EVENT_CHANNELS, ZMQ, Channel, decode_channel, topic_prefix
from .multipart import MultipartError, decode_multipart
from .sockets import Inlet, Outlet, new_context

MOST_CHANNELS = 8192
"""That a subscription connects to, and that a plane registers."""
FIRST_LISTING_S = 5.0
"""How long a subscription waits for the store. Without it, publishers are found later."""

log = get_logger(__name__)


class ZmqPlane(PlaneBase):
    """An EventPlane on the running loop. Subjects are topics of endpoints, without wildcards.

    Messages are Dynamo's: those with an envelope go out under its publisher's id and number, others
    under an id of the plane's. A message that is not of the plane's form, or of another publisher
    than its channel's, is refused and counted in `stats.garbled`.
    """

    def __init__(
        self,
        store: KeyValueStore,
        host: str = "127.0.0.1",
        *,
        advertise_host: str | None = None,
        lease_ttl_s: float = LEASE_TTL_S,
    ) -> None:
        """Publishers listen on `host`, and are found under `advertise_host`. The store is the
        plane's to close."""
        super().__init__(PlaneState.CONNECTED)
        self._stats.connects = 1
        self._context = new_context()
        self._store, self._host, self._advertised = store, host, advertise_host or host
        self._registrations = Registrations(store, lease_ttl_s)
        self._own_id = 1 + randbelow(2**53 - 1)
        self._outlets: dict[int, Outlet] = {}
        self._channels: dict[tuple[str, int], Channel] = {}  # offered, by subject and publisher
        self._to_write: dict[Channel, bool] = {}  # whether it is to be there
        self._wake = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._subscriptions: dict[ZmqSubscription, None] = {}

    @property
    def registered(self) -> bool:
        """Whether the store has all that was offered, by what we know."""
        return not self._to_write and self._registrations.complete

    async def offer(self, subject: str, publisher_id: int | None = None) -> None:
        if self._state is PlaneState.CLOSED:
            raise RuntimeError("the event plane is closed")
        self._channel(subject, self._own_id if publisher_id is None else publisher_id)

    async def withdraw(self, publisher_id: int) -> None:
        outlet = self._outlets.pop(publisher_id, None)
        for subject, publisher in list(self._channels):
            if publisher == publisher_id:
                self._write(self._channels.pop((subject, publisher)), False)
        if outlet is not None:
            outlet.close()

    async def publish(self, subject: str, payload: bytes) -> None:
        if self._state is PlaneState.CLOSED:
            self._stats.publish_dropped += 1
            return
        publisher_id, sequence = self._own_id, -1
        with contextlib.suppress(EventError):
            envelope = decode_envelope(payload)
            publisher_id, sequence = envelope.publisher_id, envelope.sequence
        channel = self._channel(subject, publisher_id)
        outlet = self._outlets[publisher_id]
        if sequence < 0:
            sequence = outlet.sequences.get(channel.topic, 0)
            outlet.sequences[channel.topic] = sequence + 1
        try:
            outlet.send(channel.topic, publisher_id, sequence, payload)
        except ValueError:
            self._stats.publish_dropped += 1
            log.warning("a message is too large for the event plane", subject=subject)
        else:
            self._stats.published += 1

    async def subscribe(self, subject: str, handler: Handler) -> "ZmqSubscription":
        if self._state is PlaneState.CLOSED:
            raise RuntimeError("the event plane is closed")
        bucket, prefix = self._store.bucket(EVENT_CHANNELS), topic_prefix(subject)
        watcher = PrefixWatcher(bucket, full_key_string, decode_channel, prefix=prefix)
        subscription = ZmqSubscription(
            subject, partial(self._deliver, handler), self._context, watcher, self._on_garbled
        )
        subscription.on_closed = lambda: self._subscriptions.pop(subscription, None)
        self._subscriptions[subscription] = None
        try:
            await subscription.start()
        except BaseException:
            await subscription.close()
            raise
        return subscription

    async def flush(self) -> bool:
        """Let the sockets send; what subscribers have read of it is not known."""
        await asyncio.sleep(0)
        return self._state is PlaneState.CONNECTED

    async def close(self) -> None:
        if self._state is PlaneState.CLOSED:
            return
        self._set_state(PlaneState.CLOSED)
        for subscription in list(self._subscriptions):
            await subscription.close()
        await stopped(self._writing)
        await self._registrations.close()
        for outlet in self._outlets.values():
            outlet.close()
        self._outlets.clear()
        self._channels.clear()
        ending = OffLoop()
        await ending.run(self._context.term)  # waits for what sockets still send: LINGER_MS
        ending.close()
        await self._store.close()

    def _channel(self, subject: str, publisher_id: int) -> Channel:
        """That of a publisher on a subject, made if there is none."""
        channel = self._channels.get((subject, publisher_id))
        if channel is None:
            if len(self._channels) >= MOST_CHANNELS:
                raise ValueError(f"a plane offers at most {MOST_CHANNELS} channels")
            topic_prefix(subject)  # before a socket is made for nothing
            outlet = self._outlets.get(publisher_id)
            if outlet is None:
                outlet = Outlet(self._context, self._host, self._advertised)
                self._outlets[publisher_id] = outlet
            channel = Channel.over_zmq(subject, publisher_id, outlet.address)
            self._channels[subject, publisher_id] = channel
            self._write(channel, True)
        return channel

    def _write(self, channel: Channel, there: bool) -> None:
        self._to_write[channel] = there
        self._wake.set()
        if self._writing is None:
            self._writing = supervise("zmq channels", self._register)

    async def _register(self) -> None:
        """Keep the store's keys as they should be. While it is away, its turn comes later."""
        await self._registrations.start()
        while True:
            self._wake.clear()
            while self._to_write:
                channel, there = next(iter(self._to_write.items()))
                try:
                    if there:
                        place = (EVENT_CHANNELS, channel.key)
                        await self._registrations.register(*place, channel.value())
                    else:
                        await self._registrations.unregister(EVENT_CHANNELS, channel.key)
                except StoreError as error:
                    log.warning("registered later: the store is away", error=str(error))
                if self._to_write.get(channel) is there:
                    del self._to_write[channel]
            await self._wake.wait()

    def _on_garbled(self, reason: str, address: str) -> None:
        self._stats.garbled += 1
        if self._stats.garbled == 1:
            log.warning("a message is refused", address=address, reason=reason)


class ZmqSubscription:
    """A handler on the publishers of one subject, as they come and go."""

    def __init__(
        self,
        subject: str,
        deliver: Callable[[str, bytes], None],
        context: Any,
        watcher: PrefixWatcher[str, Channel],
        on_garbled: Callable[[str, str], None],
    ) -> None:
        """`watcher` is started and closed by us; `on_garbled` gets why a message of an address was
        refused."""
        self.subject, self._deliver, self._context = subject, deliver, context
        self._watcher, self._on_garbled = watcher, on_garbled
        self._inlets: dict[str, Inlet] = {}  # by the channel's key
        self.on_closed: Callable[[], object] = lambda: None
        self.left_out = 0
        """channels beyond the bound, or without a socket"""
        watcher.listeners.append(self._on_channel)

    @property
    def connected_to(self) -> int:
        """How many publishers it has a socket for."""
        return len(self._inlets)

    async def start(self) -> None:
        """Connect to those that are there; returns also if the store takes long. StoreError if it
        refuses us."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LISTING_S):
                await self._watcher.start()

    async def close(self) -> None:
        await self._watcher.close()
        for key in list(self._inlets):
            self._inlets.pop(key).close()
        self.on_closed()

    def _on_channel(self, key: str, channel: Channel | None) -> None:
        """A publisher came, moved or left."""
        known = self._inlets.pop(key, None)
        if known is not None:
            known.close()
        if channel is None or channel.kind != ZMQ:
            return
        if key != f"{EVENT_CHANNELS}/{channel.key}":
            return  # a key may not speak for another one
        if len(self._inlets) >= MOST_CHANNELS:
            self.left_out += 1
            return
        try:
            self._inlets[key] = Inlet(
                self._context,
                channel.where,
                channel.topic,
                partial(self._on_frames, channel),
                partial(self._on_garbled, "too many frames", channel.where),
            )
        except OSError as error:
            self.left_out += 1
            log.warning("cannot subscribe to a publisher", address=channel.where, error=str(error))

    def _on_frames(self, channel: Channel, frames: Sequence[bytes]) -> bool:
        try:
            payload = decode_multipart(frames, channel.topic, channel.publisher_id)
        except MultipartError as error:
            self._on_garbled(str(error), channel.where)
            return False
        self._deliver(self.subject, payload)
        return True
