"""How processes send each other events: publish and subscribe by subject, whatever carries it.

An event plane is at-most-once. Losing its broker degrades what is known about workers; it
never raises into, or blocks, the code that publishes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from urllib.parse import quote

from structlog import get_logger

KV_EVENTS = "kv-events"
KV_METRICS = "kv_metrics"
KV_RESYNC = "kv-resync"
KV_HEARTBEAT = "kv-heartbeat"

log = get_logger(__name__)

Handler = Callable[[str, bytes], None]
"""Called on the event loop with (subject, payload); must not block."""
BatchHandler = Callable[[list[bytes]], None]
"""Called with the payloads that came together, oldest first."""


class PlaneState(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


StateCallback = Callable[[PlaneState], None]


@dataclass(slots=True, kw_only=True)
class PlaneStats:
    """Counters of one plane since it was made; they only grow."""

    published: int = 0
    """messages handed to the carrier"""
    publish_dropped: int = 0
    """messages given up: too large, the buffer was full, or the plane was closed"""
    received: int = 0
    """messages handed to a handler"""
    receive_dropped: int = 0
    """messages lost because handlers were slower than the carrier"""
    garbled: int = 0
    """messages refused: not of the plane's form, or not of who they should be from"""
    handler_errors: int = 0
    """exceptions that handlers and state callbacks raised"""
    connects: int = 0
    """times the carrier became reachable; above 1 it has been away in between"""
    lapses: int = 0
    """times of those that messages may have been missed, for it does not keep them"""


class Subscription(Protocol):
    """One handler's interest in one subject, until closed."""

    @property
    def subject(self) -> str: ...

    async def close(self) -> None:
        """Stop delivery: the handler is not called again once this returns. Idempotent."""


class EventPlane(Protocol):
    """One connection to an event plane, owned by one event loop."""

    @property
    def state(self) -> PlaneState: ...

    @property
    def stats(self) -> PlaneStats: ...

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send, or keep in a bounded buffer while the carrier is away (the oldest is dropped and
        counted). Order per plane is kept. Never raises on a carrier's fault and never waits for
        it; ValueError if the subject is malformed or has a wildcard.
        """

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Call `handler` for every message on `subject` from now on, also after a reconnect.

        `*` stands for one segment, a last `>` for one or more. A handler's exception is counted
        and logged. ValueError if the subject is malformed, RuntimeError if the plane is closed.
        """
        ...

    async def subscribe_batches(self, subject: str, handler: BatchHandler) -> Subscription:
        """As `subscribe`, for who can take many messages at once. Messages of subscriptions with
        the same handler keep their order."""
        ...

    async def offer(self, subject: str, publisher_id: int | None = None) -> None:
        """A publisher is about to use the subject, under an id in its messages' envelopes or
        under none: where publishers have to be found, let it be found."""

    async def withdraw(self, publisher_id: int) -> None:
        """It publishes no more."""

    def on_state(self, callback: StateCallback) -> Callable[[], None]:
        """Call `callback` on each change of state; the result takes it off again."""
        ...

    async def flush(self) -> bool:
        """Wait until what was published has reached the carrier; False if it is not reachable."""
        ...

    async def close(self) -> None:
        """Send what is buffered if the carrier is there, then let go of everything. Idempotent."""


class PlaneBase:
    """State, counters and callbacks of an EventPlane."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._stats = PlaneStats()
        self._callbacks: list[StateCallback] = []

    @property
    def state(self) -> PlaneState:
        return self._state

    @property
    def stats(self) -> PlaneStats:
        return self._stats

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        raise NotImplementedError

    async def subscribe_batches(self, subject: str, handler: BatchHandler) -> Subscription:
        """One message at a time, as this plane has them."""
        return await self.subscribe(subject, one_by_one(handler))

    async def offer(self, subject: str, publisher_id: int | None = None) -> None:
        """Nothing has to be discovered."""

    async def withdraw(self, publisher_id: int) -> None:
        """Nor forgotten."""

    def on_state(self, callback: StateCallback) -> Callable[[], None]:
        self._callbacks.append(callback)

        def take_off() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return take_off

    def _set_state(self, state: PlaneState) -> None:
        if state is self._state:
            return
        self._state = state
        if state is PlaneState.CONNECTED:
            self._stats.connects += 1
            self._stats.lapses += self._lapsed()
        for callback in self._callbacks.copy():
            try:
                callback(state)
            except Exception:
                self._stats.handler_errors += 1
                log.exception("a state callback of the event plane failed", state=state.value)

    def _lapsed(self) -> bool:
        """Whether messages may have been missed before it became reachable just now."""
        return self._stats.connects > 1

    def _deliver(self, handler: Handler, subject: str, payload: bytes) -> None:
        """One message to one handler; whatever it raises ends here."""
        self._stats.received += 1
        try:
            handler(subject, payload)
        except Exception:
            self._on_handler_error(subject)

    def _deliver_batch(self, handler: BatchHandler, payloads: list[bytes]) -> None:
        """The same for messages that came together."""
        self._stats.received += len(payloads)
        try:
            handler(payloads)
        except Exception:
            self._on_handler_error("of many messages")

    def _on_handler_error(self, subject: str) -> None:
        self._stats.handler_errors += 1
        # The traceback of the first failure says it all; a storm of them says nothing more.
        if self._stats.handler_errors == 1:
            log.exception("an event handler failed", subject=subject)
        else:
            log.warning("an event handler failed", subject=subject)


class PlaneOver:
    """An EventPlane over another one, `plane`, which does all that a subclass does not."""

    def __init__(self, plane: EventPlane) -> None:
        self.plane = plane

    @property
    def state(self) -> PlaneState:
        return self.plane.state

    @property
    def stats(self) -> PlaneStats:
        """Those of the plane below."""
        return self.plane.stats

    async def publish(self, subject: str, payload: bytes) -> None:
        await self.plane.publish(subject, payload)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        return await self.plane.subscribe(subject, handler)

    async def subscribe_batches(self, subject: str, handler: BatchHandler) -> Subscription:
        """One message at a time, however the plane below has them: a subclass sees each."""
        return await self.subscribe(subject, one_by_one(handler))

    async def offer(self, subject: str, publisher_id: int | None = None) -> None:
        await self.plane.offer(subject, publisher_id)

    async def withdraw(self, publisher_id: int) -> None:
        await self.plane.withdraw(publisher_id)

    def on_state(self, callback: StateCallback) -> Callable[[], None]:
        return self.plane.on_state(callback)

    async def flush(self) -> bool:
        return await self.plane.flush()

    async def close(self) -> None:
        await self.plane.close()


def one_by_one(handler: BatchHandler) -> Handler:
    """A handler of single messages before one of many."""
    return lambda _, payload: handler([payload])


def endpoint_subject(namespace: str, component: str, endpoint: str, topic: str) -> str:
    """The subject of an endpoint's topic, `namespace.N.component.C.endpoint.E.TOPIC`.

    Each part is percent-encoded so that it stays one segment. ValueError if a part is empty.
    """
    n, c, e, t = map(_encode_segment, (namespace, component, endpoint, topic))
    return f"namespace.{n}.component.{c}.endpoint.{e}.{t}"


def check_subject(subject: str, *, wildcards: bool) -> list[str]:
    """The segments of a subject; ValueError if it is malformed, or has wildcards not allowed."""
    segments = subject.split(".")
    for position, segment in enumerate(segments):
        if not segment or not segment.isprintable() or " " in segment:
            raise ValueError(f"subject {subject!r} has an empty or unprintable segment")
        if "*" not in segment and ">" not in segment:
            continue
        if not wildcards:
            raise ValueError(f"subject {subject!r} has a wildcard")
        if segment not in ("*", ">") or (segment == ">" and position != len(segments) - 1):
            raise ValueError(f"subject {subject!r} has a misplaced wildcard")
    return segments


def subject_matches(pattern: list[str], segments: list[str]) -> bool:
    """Whether the segments of a subject fit those of a pattern, by the rules of NATS."""
    for position, wanted in enumerate(pattern):
        if wanted == ">":
            return len(segments) > position
        if position >= len(segments) or wanted not in ("*", segments[position]):
            return False
    return len(segments) == len(pattern)


def _encode_segment(segment: str) -> str:
    if not segment:
        raise ValueError("a part of a subject is empty")
    return quote(segment, safe="").replace(".", "%2E")
