"""A call as the server that answers it has it: its messages come and go, and it ends once.

Its methods have the names that gRPC's Python has for them. Its server is one task, which is
cancelled when the client gives the call up, its time is over or its connection is lost.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from ...base.errors import StatusCode
from ...process.loop_turns import end_in_turn
from ._session import Session
from ._streams import HEADERS_TOO_LONG, MESSAGE_COMPRESSED, MESSAGE_TOO_LONG, Stream
from .flood_guard import FloodGuard
from .request_head import ANSWER_HEAD, DONE, RequestHead, status_head, status_trailers
from .server_limits import ByteBound, ServerLimits
from .wire import Header, Metadata, encode_metadata

CANCEL = 8
MESSAGE_HEAD = 5
"""Bytes that gRPC puts before each message."""
LATE_S = 0.02
"""A call ends by its client's own clock, in its words; this much later it ends by ours."""


class PeerGoneError(Exception):
    """No task waits for the message any more."""


class CallAborted(Exception):  # noqa: N818 - it is how `abort` ends a call, and no error
    """The call was ended by `abort`."""


class Carrier(Protocol):
    """A connection, as the calls that come over it see it."""

    session: Session
    limits: ServerLimits
    loop: asyncio.AbstractEventLoop
    guard: FloodGuard

    @property
    def peer(self) -> str: ...
    @property
    def certificate(self) -> Mapping[str, Any]: ...
    def take(self, stream: Stream, size: int) -> None: ...
    def flush(self) -> None: ...
    def flush_soon(self) -> None: ...
    def on_refused(self) -> None:
        """A call was refused before anything was done for it."""
        ...

    def on_limit(self, limit: str) -> None: ...


class Host(Protocol):
    """The server, as its connections see it."""

    limits: ServerLimits
    input_bound: ByteBound | None
    output_bound: ByteBound | None

    def on_limit(self, limit: str, who: str) -> None:
        """A client has hit it."""
        ...

    def on_refused(self, path: bytes, who: str, status: str, why: str) -> None:
        """A client's call was refused before its method had it."""
        ...

    def begin(self, call: "ServerCall", path: bytes) -> None:
        """Have a call served, or end it."""
        ...

    def settle(self) -> None:
        """All events of this turn are delivered: serve calls not yet answered."""
        ...


class ServerCall:
    """`task` serves it, from `began` on, unless `at_once` has answered it when its message came."""

    __slots__ = (
        "_answered",
        "_connection",
        "_deadline",
        "_half_closed",
        "_messages",
        "_metadata",
        "_reader",
        "_session",
        "_stream",
        "_timer",
        "_trailing",
        "_waiter",
        "at_once",
        "began",
        "ended",
        "loop",
        "over",
        "payer",
        "taken",
        "task",
    )

    def __init__(self, connection: Carrier, stream: Stream, head: RequestHead) -> None:
        self._connection = connection
        self._session = connection.session
        self._stream = stream
        self.loop = loop = connection.loop
        self.began = monotonic()  # the loop's own time is that of its last wait
        self.ended = False
        """its status was sent, or it was given up"""
        self.over = False
        """its stream has ended"""
        self.at_once: AnswerNow | None = None
        """set by its server, which sees to what it raises"""
        self.payer = ""
        """for those that serve it: who it is charged to, if they know"""
        self.taken = False
        """set once its method has it: the method writes its line of the access log"""
        self.task: asyncio.Task[None] | None = None
        self._messages: deque[bytes] = deque()
        self._metadata = head.metadata
        self._half_closed = False
        self._answered = False
        self._trailing: tuple[Header, ...] = ()
        self._reader: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None  # until what was written has left
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout_s is not None:
            self._deadline = self.began + head.timeout_s
            self._timer = loop.call_at(self._deadline + LATE_S, self._on_deadline)

    # What the client says

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    def peer(self) -> str:
        """ipv4:HOST:PORT or ipv6:%5BHOST%5D:PORT."""
        return self._connection.peer

    def certificate(self) -> Mapping[str, Any]:
        """The client's, as ssl describes it; empty if it showed none."""
        return self._connection.certificate

    def time_remaining(self) -> float | None:
        """Seconds until the client gives the call up; None: it does not say."""
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def read_at_once(self) -> bytes | None:
        """The next message, if it is there already."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._connection.take(self._stream, len(message))
        return message

    async def read(self) -> bytes | None:
        """The next message; None if there is none any more."""
        while (message := self.read_at_once()) is None:
            if self._half_closed or self.over or self.ended:
                return None
            self._reader = self.loop.create_future()
            await self._reader
        return message

    # What is answered

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Say this before the first message. ValueError if it cannot be sent."""
        self._begin(encode_metadata(metadata))
        self._connection.flush_soon()

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Say this with the status. ValueError if it cannot be sent."""
        self._trailing = _encoded(tuple(metadata))

    def put(self, message: bytes) -> bool:
        """One more message, if it need not wait. False: nothing was done, it is to be written."""
        limits, size = self._connection.limits, MESSAGE_HEAD + len(message)
        if (
            self.ended
            or self.over
            or self._stream.queued + size > limits.send_buffer_bytes
            or self._session.queued + size > limits.connection_send_bytes
        ):
            return False
        if not self._answered:
            self._begin(())
        self._session.write(self._stream, message)
        self._connection.flush_soon()
        return True

    async def write(self, message: bytes) -> None:
        """One more message; it waits while the client does not read. PeerGoneError if it left."""
        if self.put(message):
            return
        if self.ended or self.over:
            raise PeerGoneError("the call has ended")
        self._add(message)
        self._connection.flush()
        if self._stream.queued and not self.over:
            self._stream.wants_drained = True
            await self._wait()
        if self.over:
            raise PeerGoneError("the call has ended")

    async def finish(self) -> None:
        """End it well, and wait until all of it has left."""
        self.end(StatusCode.OK)
        if not self.over:
            self._connection.flush()
        if not self.over:
            await self._left()

    def answer(self, message: bytes) -> None:
        """The one message and a good end, of what is answered at once: it is sent with the rest
        of the turn's."""
        self.ended = True
        if self._timer is not None:
            self._stop_timer()
        self._session.answer(self._stream, ANSWER_HEAD, message, DONE)
        self._connection.guard.on_sent()  # no flush of ours says so

    async def abort(
        self, code: StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End it with a status, wait until that has left, and raise CallAborted."""
        self.end(code, details, _fitting(trailing_metadata))
        await self._left()
        raise CallAborted(details)

    def end(self, code: int, text: str = "", trailing: tuple[Header, ...] = ()) -> None:
        """Say how it ends, behind what was written. Nothing, if it has ended."""
        if self.ended or self.over:
            return
        self.ended = True
        if self._timer is not None:
            self._stop_timer()
        more = (*self._trailing, *trailing) if trailing else self._trailing
        if self._answered:
            self._session.finish(self._stream, status_trailers(code, text, more))
        else:
            self._session.refuse(self._stream, status_head(code, text, more))
        if self._reader is not None:
            self._wake(self._reader)
        self._connection.flush_soon()

    def refuse(self, code: int, text: str) -> None:
        """End it before anything was done for it: a client with too many of those is cut off."""
        self.end(code, text)
        self._connection.on_refused()

    def give_up(self) -> None:
        """End it without a status; what was not sent is dropped."""
        self._session.drop(self._stream, CANCEL)
        self.on_end()
        self._connection.flush_soon()

    def linger(self) -> None:
        """Its handler has ended: the rest of its answer has a bounded time to leave."""
        if not self.over and self._timer is None:
            linger_s = self._connection.limits.linger_s
            self._timer = self.loop.call_later(linger_s, self._on_deadline)

    # The connection's side

    def on_message(self, message: bytes) -> None:
        if self.at_once is not None:
            at_once, self.at_once, stream = self.at_once, None, self._stream
            if not (stream.ended or stream.violation) and at_once(self, message):
                self._connection.take(stream, len(message))
                return
        self._messages.append(message)
        if self._reader is not None:
            self._wake(self._reader)

    def on_half_closed(self) -> None:
        self._half_closed = True
        if self._reader is not None:
            self._wake(self._reader)

    def on_drained(self) -> None:
        self._stream.wants_drained = False
        if not self.ended and self._waiter is not None:
            self._wake(self._waiter)

    def on_violation(self, why: int) -> tuple[str, str]:
        """Its request is refused, wherever its task is: by which status, and why."""
        code, known = StatusCode.RESOURCE_EXHAUSTED, tuple[Header, ...]()
        if why == MESSAGE_COMPRESSED:
            code, text = StatusCode.UNIMPLEMENTED, "compressed messages are not taken"
            known = ((b"grpc-accept-encoding", b"identity"),)
        elif why == MESSAGE_TOO_LONG:
            sizes = f"{self._stream.message_bytes} vs. {self._connection.limits.max_message_bytes}"
            text = f"SERVER: Received message larger than max ({sizes})"
        elif why == HEADERS_TOO_LONG:
            text = "the call's metadata is too long"
        else:
            text = "no room for the call's message"
        self.end(code, text, known)
        self._cancel()
        return code.name, text

    def on_end(self) -> None:
        """Its stream is gone, in whatever way."""
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._stop_timer()
        self._messages.clear()
        if self._waiter is not None:
            self._wake(self._waiter)
        if not self.ended and self.task is not None:  # one of many, if its connection is lost
            end_in_turn(self.task.cancel)

    def _add(self, message: bytes) -> None:
        if not self._answered:
            self._begin(())
        self._session.write(self._stream, message)
        self._connection.flush_soon()

    def _begin(self, more: tuple[Header, ...]) -> None:
        if not self._answered and not self.ended:
            self._answered = True
            self._session.respond(self._stream, (*ANSWER_HEAD, *more) if more else ANSWER_HEAD)

    def _on_deadline(self) -> None:
        self._timer = None
        if self.ended:  # it takes too long to leave
            self._connection.on_limit("message_timeout_s")
            self.give_up()
        elif self._answered:
            self.give_up()
        else:
            self.end(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._cancel()

    async def _left(self) -> None:
        """Until its stream has ended; not for ever, if its client does not read."""
        if not self.over:
            self._connection.flush()
        if not self.over:
            self.linger()
            await self._wait()

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self, waiter: "asyncio.Future[None]") -> None:
        if not waiter.done():
            waiter.set_result(None)


Serve: TypeAlias = Callable[[ServerCall], Awaitable[None]]


async def finish_call(call: ServerCall) -> None:
    """Wait until an answer has left."""
    await call.finish()


AnswerNow: TypeAlias = Callable[[ServerCall, bytes], bool]
"""Ends a call whose message this is, or leaves it as it is: False."""


class AtOnce(NamedTuple):
    """A shorter way for a method's calls. `finish` serves those that were answered, and whose
    answer has not left when the turn is over."""

    answer: AnswerNow
    finish: Serve = finish_call


@lru_cache(maxsize=1024)
def _encoded(metadata: tuple[tuple[str, str | bytes], ...]) -> tuple[Header, ...]:
    """For metadata of the server itself, which repeats. Not for metadata of callers."""
    return encode_metadata(metadata)


def _fitting(metadata: Iterable[Any]) -> tuple[Header, ...]:
    """What can be sent of the metadata of a caller or an engine."""
    headers: list[Header] = []
    for pair in metadata:
        with suppress(ValueError):
            headers += encode_metadata((pair,))
    return tuple(headers)
