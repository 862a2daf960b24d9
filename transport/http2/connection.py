"""What both sides of a connection have in common: bytes between a session and its transport."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import structlog

from ._session import Session, SessionError
from ._streams import END, PONG, Stream
from .flood_guard import IDLE_BURST, IDLE_EACH_S, Allowance
from .keepalive import Keepalive

log = structlog.get_logger(__name__)

SEND_BYTES = 64 << 10
"""This many are handed to the transport at once; then it is asked whether it takes more."""


class Turn:
    """Events of one turn of the event loop may wake tasks; callers that wait for its end are
    called behind those."""

    __slots__ = ("depth", "waiting")

    def __init__(self) -> None:
        self.depth = 0
        """connections that deliver events now, one because of another"""
        self.waiting: list[Callable[[], None]] = []

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """No event is left to deliver: `depth` is 0 again."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            loop.call_soon(call)

    def call_after(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Have it called soon: behind the tasks that the events of now wake."""
        if self.depth:
            self.waiting.append(call)
        else:
            loop.call_soon(call)


class _OfThread(threading.local):
    """What all connections of a thread share."""

    def __init__(self) -> None:
        # Where bytes arrive: they are read out at once. A view: asyncio's TLS writes into slices
        # of it, which of a bytearray would be copies.
        self.buffer = memoryview(bytearray(64 << 10))
        self.turn = Turn()


_shared = _OfThread()


class Connection(asyncio.BufferedProtocol):
    """Feeds the session, passes its events to `_on_events`, and sends what it has to send.

    Whatever is done to the session while events are delivered is sent after them.
    """

    def __init__(self, session: Session, keepalive: Keepalive) -> None:
        self._session = session
        self._keepalive = keepalive
        self.loop = asyncio.get_running_loop()
        self._buffer, self._turn = _shared.buffer, _shared.turn
        self._transport: asyncio.Transport | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._busy = False  # events are being delivered
        self._rest = b""  # what came and is still to be taken in
        self._idle_frames = Allowance(IDLE_BURST, IDLE_EACH_S)
        self._last_read = 0.0  # when bytes came last
        self._why = ""
        self.closed: asyncio.Future[None] = self.loop.create_future()
        """ends when the connection has"""

    def __len__(self) -> int:
        """Calls under way."""
        return len(self._session)

    def take(self, stream: Stream, size: int) -> None:
        """A message of a stream was read."""
        if self._session.take(stream, size):
            self.flush()

    def abort(self, why: str) -> None:
        """Close at once."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    # What the sides do each in their way

    def _on_events(self, events: list[tuple[Any, int, Any]]) -> bool:
        """Something happened to calls (stream, kind, value), or to the connection (None, ...), in
        this order; whether calls are concerned."""
        raise NotImplementedError

    def _on_undelivered(self, call: Any) -> None:
        """The end of a call was among events that could not be delivered."""
        raise NotImplementedError

    def _on_failed_end(self, call: Any, error: BaseException) -> None:
        """A fault of ours as a call was ended: end it nevertheless."""
        raise NotImplementedError

    def _on_connection_event(self, kind: int, value: Any) -> None:
        """Something happened that concerns no call, or all of them."""
        if kind == PONG:
            self._keepalive.answered()

    def _on_broken(self, error: SessionError) -> None:
        """The peer breaks the rules: the connection is given up once its events were delivered."""
        self._why = f"it does not speak HTTP/2 as it should: {error}"

    def _on_flood(self, why: str) -> None:
        """The peer asks for work that calls do not explain: the connection is given up."""
        self._why = self._why or why

    def _give_up(self) -> None:
        """End a connection that is of no use any more."""
        self.abort(self._why)

    def _on_lost(self, why: str) -> None:
        """The connection is gone; the session is open still."""
        raise NotImplementedError

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._last_read = self.loop.time()
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._last_read = self.loop.time()
        self._feed(self._buffer, nbytes)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._why or self._session.complaint or str(exc or "Socket closed")
        try:
            self._deliver_events()  # what had come before it
        finally:
            if self._look_timer is not None:
                self._look_timer.cancel()
            self._on_lost(why)
            if not self.closed.done():
                self.closed.set_result(None)

    def _end_calls(self, end: Callable[[Any], None]) -> None:
        """Close the session, and end each call under way, whatever the end of another one does."""
        self._end_each(self._session.close(), end)

    def _end_each(self, streams: Iterable[Stream], end: Callable[[Any], None]) -> None:
        for stream in streams:
            call, stream.owner = stream.owner, None  # the session knows it no more
            if call is None:
                continue
            try:
                end(call)
            except (Exception, asyncio.CancelledError) as error:  # ours: of this call alone
                log.error("the end of a call failed here", exc_info=error)
                with contextlib.suppress(Exception):
                    self._on_failed_end(call, error)

    # Between the two

    def _feed(self, data: memoryview | bytes, size: int) -> int:
        """Give bytes to the session, and deliver the events; how many bytes it took."""
        taken, session = size, self._session
        try:
            taken = session.receive(data, size)
        except SessionError as error:
            self._on_broken(error)
        if session.idle and not self._idle_frames.take(self._last_read, session.take_idle()):
            self._on_flood("it sends too many frames that bring nothing")
        if session.has_events:
            self._deliver_events()
        if session.is_due:
            self.flush()
        if self._why:
            self._give_up()
            return size
        if taken < size:
            assert self._transport is not None
            self._rest = bytes(data[taken:size])
            self._transport.pause_reading()
            self.loop.call_soon(self._go_on)
        return taken

    def _go_on(self) -> None:
        """Take in what was put off, if now is the time."""
        transport = self._transport
        if transport is not None and self._rest and self._may_read and not transport.is_closing():
            self._take_rest()
            self._read_on()

    def _take_rest(self) -> None:
        rest, self._rest = self._rest, b""
        self._feed(rest, len(rest))

    def _read_on(self) -> None:
        if self._transport is not None and self._may_read and not self._rest:
            self._transport.resume_reading()

    @property
    def _may_read(self) -> bool:
        """Whether what comes is to be taken in."""
        return True

    def flush(self) -> None:
        """Send what there is to send, as far as the transport takes it."""
        transport, session = self._transport, self._session
        if transport is None or self._busy or transport.is_closing():
            return
        try:
            while not self._paused:
                data = session.send(SEND_BYTES)
                if data:
                    transport.write(data)
                if not (session.has_events and self._deliver_events()) and len(data) < SEND_BYTES:
                    break
        except SessionError as error:
            self.abort(str(error))
            return
        if session.is_over:
            transport.close()

    def _deliver_events(self) -> bool:
        """Deliver the session's events; whether there were any."""
        if self._busy:
            return False
        events = self._session.take_events()
        if not events:
            return False
        self._busy, turn = True, self._turn
        turn.depth += 1
        try:
            concerns_calls = self._on_events(events)
        except BaseException:
            ended = [stream for stream, kind, _ in events if kind == END and stream is not None]
            self._end_each(ended, self._on_undelivered)
            raise
        finally:
            self._busy = False
            turn.depth -= 1
            if turn.waiting and not turn.depth:
                turn.end(self.loop)
        if concerns_calls and self._keepalive.row:
            self._keepalive.on_call_frame()
        return True

    def _look_after(self, seconds: float) -> None:
        self._look_timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Whether the peer is still there."""
        self._look_timer = None
        again_s = self._keep_alive()
        if again_s is not None:
            self._look_after(again_s)

    def _keep_alive(self) -> float | None:
        """Ping the peer if it is time; in how many seconds to look again, None: it is lost."""
        verdict = self._keepalive.look(self.loop.time(), self._last_read)
        if verdict.lost:
            self.abort("ping timeout")
            return None
        if verdict.ping:
            self._session.ping()
            self.flush()
        return verdict.again_s
