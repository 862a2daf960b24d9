"""One connection to a peer that serves gRPC, as asyncio and uvloop drive it."""

import asyncio
import threading
from collections.abc import Callable
from typing import cast

from ._session import Session, SessionError
from ._streams import END, GOAWAY, MESSAGE, PONG, SETTINGS, Stream
from .client_call import ClientCall
from .keepalive import Keepalive

SEND_BYTES = 64 << 10
"""So much is handed to the transport at once; then it is asked whether it takes more."""


class _Arrival(threading.local):
    """Where bytes arrive. One for all connections of a thread: they are read out at once."""

    def __init__(self) -> None:
        # A view: asyncio's TLS writes into slices of it, which of a bytearray would be copies.
        self.buffer = memoryview(bytearray(64 << 10))


_arrival = _Arrival()


class ClientConnection(asyncio.BufferedProtocol):
    """Calls are `request`ed once `ready` is done. `on_leaving` is called when it takes no more,
    because the peer said so or it is lost; calls under way go on, or hear that it is lost.
    """

    def __init__(
        self,
        session: Session,
        keepalive: Keepalive,
        on_leaving: Callable[["ClientConnection"], None],
    ) -> None:
        self._session = session
        self._keepalive = keepalive
        self._on_leaving = on_leaving
        self._loop = asyncio.get_running_loop()
        self._buffer = _arrival.buffer
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._busy = False  # events are being told, and what they bring is sent after them
        self._heard = 0.0  # when bytes came last
        self._why = ""
        self.is_leaving = False
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """ends with the peer's settings; ConnectionError if it is lost before"""
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def __len__(self) -> int:
        """Calls under way."""
        return len(self._session)

    # Calls

    def request(self, call: ClientCall) -> None:
        """Begin a call. SessionError if it is too late."""
        stream = self._session.request(call.headers, call.more, call.message)
        stream.owner = call
        call.on_begun(self, stream)
        if self._timer is None:
            self._heard = self._loop.time()
            self._timer = self._loop.call_later(self._keepalive.after_s, self._look)
        self.flush()

    def take(self, stream: Stream, size: int) -> None:
        """A message of a stream was read."""
        if self._session.take(stream, size):
            self.flush()

    def drop(self, stream: Stream) -> None:
        """End a stream; its call hears nothing more."""
        stream.owner = None
        self._session.drop(stream)
        self.flush()

    def leave(self) -> None:
        """Close once the calls under way have ended."""
        self.is_leaving = True
        self._session.goaway()
        self.flush()

    def abort(self, why: str) -> None:
        """Close at once; calls under way hear why."""
        self._why = self._why or why
        self._leaves()
        if self._transport is not None:
            self._transport.abort()

    def discard(self) -> None:
        """Close at once; calls under way are cancelled. `closed` says when it is."""
        self.ready.cancel()
        for stream in self._session.close():
            call, stream.owner = stream.owner, None
            call.on_discarded()
        self.abort("closed by this side")
        if self._transport is None and not self.closed.done():
            self.closed.set_result(None)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._loop.time()
        try:
            self._session.receive(self._buffer, nbytes)
        except SessionError as error:
            self._why = f"it does not speak HTTP/2 as it should: {error}"
        self._tell()
        self.flush()
        if self._why:
            self.abort(self._why)

    def eof_received(self) -> bool:
        self._leaves()
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._why or self._session.complaint or str(exc or "Socket closed")
        self._leaves()
        self._tell()  # what had come before it
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._session.close():
            call, stream.owner = stream.owner, None
            call.on_lost(why)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
        if not self.closed.done():
            self.closed.set_result(None)

    # Between the two

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
        """Tell the calls what happened; whether anything did."""
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
                    self._on_connection_event(kind)
                    continue
                call = stream.owner
                if call is None:
                    continue
                concerns_calls = True
                if kind == MESSAGE:
                    call.on_message(value)
                elif kind == END:
                    stream.owner = None
                    call.on_end(value)
        finally:
            self._busy = False
        if concerns_calls:
            self._keepalive.heard()
        return True

    def _on_connection_event(self, kind: int) -> None:
        if kind == SETTINGS:
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == PONG:
            self._keepalive.answered()
        elif kind == GOAWAY:
            self._leaves()

    def _leaves(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._on_leaving(self)

    def _look(self) -> None:
        """Whether the peer is still there."""
        self._timer = None
        if not len(self._session) or self._transport is None:
            self._keepalive.answered()
            return
        verdict = self._keepalive.look(self._loop.time(), self._heard)
        if verdict.lost:
            self.abort("ping timeout")
            return
        if verdict.ping:
            self._session.ping()
            self.flush()
        self._timer = self._loop.call_later(verdict.again_s, self._look)
