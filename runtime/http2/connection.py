"""What both sides of a connection have in common: bytes between a session and its transport."""

import asyncio
import threading
from typing import Any, cast

from ._session import Session, SessionError
from ._streams import PONG, Stream
from .flood_guard import IDLE_BURST, IDLE_EACH_S, Allowance
from .keepalive import Keepalive

SEND_BYTES = 64 << 10
"""So much is handed to the transport at once; then it is asked whether it takes more."""


class _Arrival(threading.local):
    """Where bytes arrive. One for all connections of a thread: they are read out at once."""

    def __init__(self) -> None:
        # A view: asyncio's TLS writes into slices of it, which of a bytearray would be copies.
        self.buffer = memoryview(bytearray(64 << 10))


_arrival = _Arrival()


class Connection(asyncio.BufferedProtocol):
    """Feeds the session, tells what comes of it to `_on_event`, and sends what it has to send.

    Whatever is done to the session while events are told is sent after them.
    """

    def __init__(self, session: Session, keepalive: Keepalive) -> None:
        self._session = session
        self._keepalive = keepalive
        self._loop = asyncio.get_running_loop()
        self._buffer = _arrival.buffer
        self._transport: asyncio.Transport | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._busy = False  # events are being told
        self._idle_frames = Allowance(IDLE_BURST, IDLE_EACH_S)
        self._heard = 0.0  # when bytes came last
        self._why = ""
        self.closed: asyncio.Future[None] = self._loop.create_future()
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

    def _on_event(self, stream: Stream, kind: int, value: Any) -> None:
        """Something happened to a call."""
        raise NotImplementedError

    def _on_connection_event(self, kind: int, value: Any) -> None:
        """Something happened that concerns no call, or all of them."""
        if kind == PONG:
            self._keepalive.answered()

    def _on_broken(self, error: SessionError) -> None:
        """The peer breaks the rules: the connection is given up once events were told."""
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
        self._heard = self._loop.time()
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._loop.time()
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
        self._tell()  # what had come before it
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._on_lost(why)
        if not self.closed.done():
            self.closed.set_result(None)

    # Between the two

    def _feed(self, data: memoryview | bytes, size: int) -> int:
        """Give bytes to the session, and tell what comes of them; how many it took."""
        taken = size
        try:
            taken = self._session.receive(data, size)
        except SessionError as error:
            self._on_broken(error)
        idle = self._session.take_idle()
        if idle and not self._idle_frames.take(self._heard, idle):
            self._on_flood("it sends too many frames that bring nothing")
        self._tell()
        self.flush()
        if self._why:
            self._give_up()
            return size
        return taken

    def flush(self) -> None:
        """Send what there is to send, as far as the transport takes it."""
        transport, session = self._transport, self._session
        if transport is None or self._busy:
            return
        try:
            while not self._paused:
                data = session.send(SEND_BYTES)
                if data:
                    transport.write(data)
                if not self._tell() and len(data) < SEND_BYTES:
                    break
        except SessionError as error:
            self.abort(str(error))
            return
        if session.is_over:
            transport.close()

    def _tell(self) -> bool:
        """Tell what happened; whether anything did."""
        if self._busy:
            return False
        events = self._session.take_events()
        if not events:
            return False
        self._busy = True
        concerns_calls = False
        try:
            for stream, kind, value in events:
                if stream is None:
                    self._on_connection_event(kind, value)
                else:
                    concerns_calls = True
                    self._on_event(stream, kind, value)
        finally:
            self._busy = False
        if concerns_calls:
            self._keepalive.heard()
        return True

    def _look_after(self, seconds: float) -> None:
        self._look_timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Whether the peer is still there."""
        self._look_timer = None
        again_s = self._keep_alive()
        if again_s is not None:
            self._look_after(again_s)

    def _keep_alive(self) -> float | None:
        """Ping the peer if it is time; in how many seconds to look again, None: it is lost."""
        verdict = self._keepalive.look(self._loop.time(), self._heard)
        if verdict.lost:
            self.abort("ping timeout")
            return None
        if verdict.ping:
            self._session.ping()
            self.flush()
        return verdict.again_s
