"""A call of a client: what it asks, and the messages of its answer as they come.

No task and no generator: a reader waits for a future that the connection's bytes complete,
or has messages given to a function as they come.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from ...base.errors import StatusCode
from ._streams import SOUND, Stream
from .outcome import REFUSED_STREAM, Fault, Outcome, outcome_of
from .wire import Header, decode_metadata

MOST_REFUSALS = 10
"""So often a call that the peer did not look at is sent again."""
REFUSAL_PAUSE_S = 0.001
"""Before the second time; the first is at once, and each later pause twice as long."""
_WELL, _DONE = [(b"grpc-status", b"0")], Outcome(None, StatusCode.OK)  # what mostly ends an answer
CANCELLED_HERE = Outcome(Fault.STATUS, StatusCode.CANCELLED, "cancelled by this side")


Take: TypeAlias = Callable[[bytes], bytes | None]
"""Takes a message at once. What it returns is to be written before the next one is taken."""
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class Carrier(Protocol):
    """A connection, as its calls see it."""

    def take(self, stream: Stream, size: int) -> None: ...
    def drop(self, stream: Stream) -> None: ...


class Sender(Protocol):
    """Who finds connections for calls."""

    max_message_bytes: int
    error: Callable[[Outcome], Exception]

    def submit(self, call: "ClientCall") -> None: ...
    def forget(self, call: "ClientCall") -> None: ...


class CallError(Exception):
    """A call failed."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.details)
        self.outcome = outcome


class ClientCall:
    """Iterate it for the messages: the channel's error where it failed, CancelledError once it was
    cancelled.

    It begins at once, with or without a reader; unread bytes make the peer wait.
    """

    __slots__ = (
        "_channel",
        "_connection",
        "_loop",
        "_ready",
        "_refusals",
        "_stream",
        "_take",
        "_timer",
        "_waiter",
        "headers",
        "message",
        "more",
        "outcome",
        "wide",
    )

    def __init__(
        self,
        channel: Sender,
        headers: tuple[Header, ...],
        more: tuple[Header, ...],
        message: bytes,
        timeout: float | None,
        wide: bool = False,
    ) -> None:
        self._channel = channel
        self.wide = wide
        self._loop = loop = asyncio.get_running_loop()
        self.headers, self.more, self.message = headers, more, message
        self._ready: deque[bytes] = deque()
        self._waiter: asyncio.Future[Any] | None = None
        self._take: Take | None = None  # while its waiter waits for what ends that
        self._stream: Stream | None = None
        self._connection: Carrier | None = None
        self._refusals = 0
        self.outcome: Outcome | None = None
        """how it ended; None: it has not"""
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._timer = loop.call_later(max(timeout, 0.0), self._on_deadline)

    # The reader's side

    def __aiter__(self) -> "ClientCall":
        return self

    def __anext__(self) -> "asyncio.Future[bytes]":
        future: asyncio.Future[bytes] = self._loop.create_future()
        if self._ready:
            message = self._ready.popleft()
            future.set_result(message)
            if self._connection is not None and self._stream is not None:
                self._connection.take(self._stream, len(message))
        elif self.outcome is not None:
            self._settle(future, self.outcome)
        else:
            self._waiter = future
        return future

    async def deliver(self, take: Take, write: Write) -> None:
        """Give every message to `take`, out of the connection's own callback where no reader waits.

        Fails as an iteration does, or as they do.
        """
        while True:
            while self._ready:
                message = self._ready.popleft()
                if self._connection is not None and self._stream is not None:
                    self._connection.take(self._stream, len(message))
                rest = take(message)
                if rest is not None:
                    await write(rest)
            try:
                rest = await self._wait(take)
            finally:
                self._waiter = self._take = None
            if rest is None:
                return
            await write(rest)

    def _wait(self, take: Take) -> "asyncio.Future[bytes | None]":
        """What `take` leaves to be written; None when all messages have come."""
        waiter = self._loop.create_future()  # no local of a coroutine that it fails: a cycle
        if self.outcome is None:
            self._waiter, self._take = waiter, take
        elif self.outcome.fault is None:
            waiter.set_result(None)
        else:
            self._settle(waiter, self.outcome)
        return waiter

    async def aclose(self) -> None:
        """Stop reading; what is under way is cancelled."""
        self.cancel()

    def cancel(self) -> bool:
        """End it: the reader gets CancelledError, and not what came before. False: it had ended."""
        if self.outcome is not None:
            return False
        self._ready.clear()
        self._give_up(CANCELLED_HERE)
        return True

    @property
    def is_accepted(self) -> bool:
        """Whether the peer has begun to answer: its headers are there."""
        return self._stream is not None and bool(self._stream.headers)

    @property
    def initial_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """What the peer sent before its messages."""
        return () if self._stream is None else decode_metadata(self._stream.headers)

    # The channel's and the connection's side

    def on_begun(self, connection: Carrier, stream: Stream) -> None:
        """It has a stream of this connection now."""
        self._connection, self._stream = connection, stream

    def on_message(self, message: bytes) -> bool:
        """Whether it was read."""
        waiter = self._waiter
        if waiter is None or waiter.done():  # who waited was cancelled, and may come again
            self._ready.append(message)
            return False
        if self._take is None:
            self._waiter = None
            waiter.set_result(message)
            return True
        try:
            rest = self._take(message)
        except Exception as error:
            waiter.set_exception(error)
        else:
            if rest is not None:
                waiter.set_result(rest)
        return True

    def on_end(self, reset: int) -> None:
        """Its stream ended."""
        stream = self._stream
        assert stream is not None
        if not stream.headers and (reset == REFUSED_STREAM or not stream.begun):
            self.on_refused()
        elif stream.trailers == _WELL and stream.violation == SOUND:
            self.end(_DONE)
        else:
            self.end(outcome_of(stream, reset, self._channel.max_message_bytes))

    def on_refused(self) -> None:
        """The peer did not look at it, and may look at it another time, or on a new connection."""
        self._refusals += 1
        self._connection = self._stream = None
        if self._refusals > MOST_REFUSALS:
            text = f"the request was refused {self._refusals} times before it was looked at"
            self.end(Outcome(Fault.STATUS, StatusCode.UNAVAILABLE, text))
        elif self._refusals == 1:
            self._channel.submit(self)
        else:
            pause = REFUSAL_PAUSE_S * 2 ** (self._refusals - 2)
            self._loop.call_later(pause, self._channel.submit, self)

    def on_lost(self, why: str) -> None:
        """Its connection is gone."""
        if self._stream is not None and not self._stream.begun:
            self.on_refused()
        else:
            self.end(Outcome(Fault.BROKEN, StatusCode.UNAVAILABLE, why))

    def on_discarded(self) -> None:
        """Its channel was closed."""
        self._ready.clear()
        self.end(CANCELLED_HERE)

    def end(self, outcome: Outcome) -> None:
        """It has ended like this. Idempotent: the first one counts."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        if self._connection is None:
            self._channel.forget(self)
        self._connection = None
        self.message = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            if self._take is not None and outcome.fault is None:
                waiter.set_result(None)
            else:
                self._settle(waiter, outcome)

    def _on_deadline(self) -> None:
        self._timer = None
        self._give_up(Outcome(Fault.DEADLINE, StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _give_up(self, outcome: Outcome) -> None:
        connection, stream = self._connection, self._stream
        self.end(outcome)
        if connection is not None and stream is not None:
            connection.drop(stream)

    def _settle(self, future: "asyncio.Future[Any]", outcome: Outcome) -> None:
        if outcome.fault is None:
            future.set_exception(StopAsyncIteration())
        elif outcome is CANCELLED_HERE:
            future.cancel()
        else:
            future.set_exception(self._channel.error(outcome))
