"""EventPublisher and EventSubscriber: values of a type on an event plane, numbered and checked.

For planners and queues of prefills: no process of this package uses them yet.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from secrets import randbits
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import msgspec
from structlog import get_logger

from ...base.envelope import EnvelopeWriter, decode_envelope
from ...base.errors import UNREADABLE, EventError
from .event_plane import EventPlane, Handler, Subscription

MAX_WAITING = 1024
MAX_PUBLISHERS = 4096
"""Publishers whose last sequence is kept, so that a loss shows."""
T = TypeVar("T")

log = get_logger(__name__)


@runtime_checkable
class GroupPlane(EventPlane, Protocol):
    """An event plane on which consumers can be a group."""

    async def subscribe_group(self, subject: str, group: str, handler: Handler) -> Subscription:
        """As `subscribe`, but of those that subscribe as the same group one gets each message."""
        ...


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One value as it was published."""

    value: T
    subject: str
    publisher_id: int
    sequence: int
    """counts its publisher's events on the topic, from 0"""


@dataclass(slots=True)
class SubscriberStats:
    """Counters of one subscriber; they only grow."""

    received: int = 0
    dropped: int = 0
    """because the consumer was slower than the plane: the oldest"""
    missed: int = 0
    """by the numbers of their publishers; those of other members, in a group"""
    undecodable: int = 0
    """no envelope, or no such value"""


class EventPublisher(Generic[T]):
    """Publishes values of one type on one subject. The plane stays its caller's to close."""

    def __init__(self, plane: EventPlane, subject: str) -> None:
        """The last segment of `subject` is the topic. Values are what msgspec can encode."""
        self._plane, self._subject = plane, subject
        self.publisher_id = randbits(53)
        self._envelopes = EnvelopeWriter(self.publisher_id, subject.rpartition(".")[2])
        self._encode = msgspec.msgpack.Encoder().encode

    async def publish(self, value: T) -> None:
        """Send one value. Never waits for the carrier; TypeError if it cannot be encoded."""
        await self._plane.publish(self._subject, self._envelopes.wrap(self._encode(value)))


class EventSubscriber(Generic[T]):
    """Values of one type from one subject, from `open` until `close`; an async iterator of Events.

    What cannot be read is counted and passed over. What waits is bounded: the oldest give way.
    """

    def __init__(self, kind: type[T], max_waiting: int) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._waiting: deque[Event[T]] = deque()
        self._max_waiting = max_waiting
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None
        self._closed = False
        self._newest: OrderedDict[int, int] = OrderedDict()  # sequence by publisher
        self.stats = SubscriberStats()

    @classmethod
    async def open(
        cls,
        plane: EventPlane,
        subject: str,
        kind: type[T],
        *,
        group: str | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> Self:
        """Subscribe. In a `group` each value goes to one of its members. ValueError if the subject
        is malformed, a bound is none, or the plane knows no groups."""
        if max_waiting < 1:
            raise ValueError(f"max_waiting {max_waiting} must be at least 1")
        self = cls(kind, max_waiting)
        if group is None:
            self._subscription = await plane.subscribe(subject, self._on_message)
        elif not group or not isinstance(plane, GroupPlane):
            raise ValueError("this event plane has no groups, or the group has no name")
        else:
            self._subscription = await plane.subscribe_group(subject, group, self._on_message)
        return self

    async def next(self) -> Event[T]:
        """Wait for the next value. RuntimeError once it is closed and none is left."""
        while not self._waiting:
            if self._closed:
                raise RuntimeError("the subscriber is closed")
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    async def close(self) -> None:
        """Take no more; what waits can still be had. Idempotent."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()
        self._closed = True
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[Event[T]]:
        while self._waiting or not self._closed:
            try:
                yield await self.next()
            except RuntimeError:
                return

    def _on_message(self, subject: str, payload: bytes) -> None:
        try:
            envelope = decode_envelope(payload)
            value = self._decode(envelope.payload)
        except (EventError, *UNREADABLE) as error:
            self.stats.undecodable += 1
            if self.stats.undecodable == 1:
                log.warning("an event cannot be read", subject=subject, error=str(error))
            return
        self.stats.received += 1
        self._note(envelope.publisher_id, envelope.sequence)
        if len(self._waiting) >= self._max_waiting:
            self._waiting.popleft()
            self.stats.dropped += 1
        self._waiting.append(Event(value, subject, envelope.publisher_id, envelope.sequence))
        self._arrived.set()

    def _note(self, publisher_id: int, sequence: int) -> None:
        before = self._newest.pop(publisher_id, None)
        if before is not None and sequence > before:
            self.stats.missed += sequence - before - 1
        self._newest[publisher_id] = sequence if before is None else max(before, sequence)
        if len(self._newest) > MAX_PUBLISHERS:
            self._newest.popitem(last=False)
