"""The way to one peer: a connection that is made when it is needed, and again when it is gone."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from ...base.backoff import Backoff
from ...base.errors import StatusCode
from ._session import Session, SessionError
from ._streams import END, GOAWAY, MESSAGE, SETTINGS, Stream
from .client_call import CANCELLED_HERE, CallError, ClientCall
from .connection import Connection
from .keepalive import Keepalive
from .library import make_session, require_library
from .outcome import Fault, Outcome
from .wire import Metadata, encode_metadata, encode_timeout

log = structlog.get_logger(__name__)

USER_AGENT = b"dynamo-router"
ALPN = "h2"
UNIX = "unix:"
MOST_FRAMES = 64
"""Of a peer that are passed on in one turn of the loop, about: a first token costs some 0.1 ms."""
MOST_TOGETHER = 4
"""How many calls one write sends. A channel sends the first call of a turn of the event loop at
once, then each MOST_TOGETHER that begin in that turn, and what is left when the turn ends."""

MOST_LEFT = 2
"""How many connections are made anew at once that the peer left before a call was sent on them. One
that bounds the age of connections may do so on a busy machine; after these it has no service."""


@dataclass(frozen=True, kw_only=True)
class ChannelLimits:
    """Of each connection. Times in seconds."""

    connect_timeout_s: float = 10.0
    keepalive_s: float = 8.0
    keepalive_timeout_s: float = 5.0
    first_backoff_s: float = 0.2
    max_backoff_s: float = 2.0
    window_bytes: int = 64 << 10
    """How much of a stream may be under way unread, once its reader has kept up with more."""
    first_window_bytes: int = 16 << 10
    """Before that. A server like gRPC's sends this much of a stream before it turns to the next:
    the first byte of a short answer comes behind that part of each one that is not read."""
    max_message_bytes: int = 32 << 20
    max_header_bytes: int = 16 << 10


@dataclass(frozen=True)
class Tls:
    """How a peer is believed: the context of now, and whom its certificate must name."""

    context: Callable[[], ssl.SSLContext]
    name: str | None = None


class ClientConnection(Connection):
    """Calls are `request`ed once `ready` is done. `on_leaving` is called when it takes no more,
    because the peer is closing it or it is lost; calls under way go on, or fail if it is lost.
    """

    def __init__(
        self,
        session: Session,
        keepalive: Keepalive,
        on_leaving: Callable[["ClientConnection"], None],
    ) -> None:
        super().__init__(session, keepalive)
        session.most_frames = MOST_FRAMES
        self._began_at = 0.0  # the last call that was sent at once
        self._unsent = 0  # calls that wait for the end of the turn of the loop, to leave together
        self._on_leaving = on_leaving
        self.is_leaving = False
        self.ready: asyncio.Future[None] = self.loop.create_future()
        """ends with the peer's settings; ConnectionError if it is lost before"""

    # Calls

    def request(self, call: ClientCall) -> None:
        """Begin a call. SessionError if it is too late."""
        stream = self._session.request(call.headers, call.more, call.message, call.wide)
        stream.owner = call
        call.on_begun(self, stream)
        if self._look_timer is None:
            self._last_read = self.loop.time()
            self._look_after(self._keepalive.after_s)
        now = self.loop.time()  # of uvloop, it stands still within a turn
        if now != self._began_at:
            self._began_at = now
            self.flush()
            return
        self._unsent += 1
        if self._unsent == 1:
            self.loop.call_soon(self._send_together)
        elif self._unsent % MOST_TOGETHER == 0:
            self.flush()

    def drop(self, stream: Stream) -> None:
        """End a stream; its call gets nothing more."""
        stream.owner = None
        self._session.drop(stream)
        self.flush()

    def leave(self) -> None:
        """Close once the calls under way have ended."""
        self.is_leaving = True
        self._session.goaway()
        self.flush()

    def abort(self, why: str) -> None:
        """Close at once; calls under way fail with the reason."""
        self._leaves()
        super().abort(why)

    def discard(self) -> None:
        """Close at once; calls under way are cancelled. `closed` says when it is."""
        self.ready.cancel()
        self._end_calls(ClientCall.on_discarded)
        self.abort("closed by this side")
        if self._transport is None and not self.closed.done():
            self.closed.set_result(None)

    # The connection's side

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        transport = self._transport
        if nbytes < len(self._buffer) or self._rest or transport is None or transport.is_closing():
            return
        # More is there, and uvloop would read up to 32 such buffers in this turn of the loop.
        transport.pause_reading()
        self.loop.call_soon(self._read_more)

    def _read_more(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._read_on()

    def _send_together(self) -> None:
        self._unsent = 0
        self.flush()

    def eof_received(self) -> bool:
        self._leaves()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leaves()
        try:
            if self._rest:  # it had come before that
                self._session.most_frames = 0
                self._take_rest()
        finally:
            super().connection_lost(exc)

    def _on_lost(self, why: str) -> None:
        self._end_calls(lambda call: call.on_lost(why))
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))

    def _on_events(self, events: list[tuple[Any, int, Any]]) -> bool:
        concerns_calls, take = False, self._session.take
        for stream, kind, value in events:
            if stream is None:
                self._on_connection_event(kind, value)
                continue
            concerns_calls = True
            call = stream.owner
            if call is None:
                continue
            try:
                if kind == MESSAGE:
                    if call.on_message(value):
                        take(stream, len(value))  # what that has to send is sent after the events
                elif kind == END:
                    stream.owner = None
                    call.on_end(value)
            except (Exception, asyncio.CancelledError) as error:  # ours: of this call alone
                end_for_fault(call, error)
                if stream.owner is not None:
                    self.drop(stream)
        return concerns_calls

    def _on_undelivered(self, call: ClientCall) -> None:
        call.on_lost("its end was lost here")

    def _on_failed_end(self, call: ClientCall, error: BaseException) -> None:
        call.end(fault_of_ours(error))

    def _on_connection_event(self, kind: int, value: Any) -> None:
        if kind == SETTINGS:
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == GOAWAY:
            self._leaves()
        else:
            super()._on_connection_event(kind, value)

    def _leaves(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._on_leaving(self)

    def _look(self) -> None:
        if len(self._session) and self._transport is not None:
            super()._look()
        else:
            self._look_timer = None
            self._keepalive.answered()


def end_for_fault(call: ClientCall, error: BaseException) -> None:
    """End a call for a fault of ours, which is logged."""
    log.error("a call failed here", exc_info=error)
    call.end(fault_of_ours(error))


def fault_of_ours(error: BaseException) -> Outcome:
    """What a call comes to that failed by an error of this side."""
    return Outcome(Fault.OURS, StatusCode.INTERNAL, f"{type(error).__name__} in the router")


class ClientChannel:
    """Calls methods of the peer at HOST:PORT or unix:PATH, one connection at a time.

    A call waits while a connection is made; while none can be, it fails with Fault.CONNECT, and
    so do those that come before the next attempt is due.
    """

    def __init__(
        self,
        address: str,
        limits: ChannelLimits | None = None,
        tls: Tls | None = None,
        error: Callable[[Outcome], Exception] = CallError,
    ) -> None:
        """`error` is what a call raises that failed so. ConfigError if there is no nghttp2."""
        require_library()
        self.address = address
        self._limits = limits = limits or ChannelLimits()
        self._tls = tls
        self.error = error
        self.max_message_bytes = limits.max_message_bytes
        self._backoff = Backoff(limits.first_backoff_s, limits.max_backoff_s)
        self._connection: ClientConnection | None = None
        self._connections: set[ClientConnection] = set()  # those that leave too
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: dict[ClientCall, None] = {}  # for a connection, in their order
        self._failure: Outcome | None = None  # of the last attempt
        self._retry_at = 0.0
        self._closed = False
        self._heads: dict[str, tuple[tuple[bytes, bytes], ...]] = {}

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def call(
        self,
        path: str,
        message: bytes,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        wide: bool = False,
    ) -> ClientCall:
        """Begin a call of one message; iterate it for those of the answer. `wide`: its window is
        the largest from the start, as this side reads whatever comes.
        """
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = self._head(path)
        more: tuple[tuple[bytes, bytes], ...] = ()
        outcome = None
        if len(message) > self.max_message_bytes:
            sizes = f"{len(message)} vs. {self.max_message_bytes}"
            text = f"CLIENT: Sent message larger than max ({sizes})"
            outcome = Outcome(Fault.REQUEST_SIZE, StatusCode.RESOURCE_EXHAUSTED, text)
        if timeout is not None:
            more = ((b"grpc-timeout", encode_timeout(timeout)),)
        if metadata:
            try:
                more += encode_metadata(metadata)
            except ValueError as error:
                outcome = Outcome(Fault.OURS, StatusCode.INTERNAL, str(error))
        call = ClientCall(self, head, more, message, timeout, wide)
        if outcome is not None:
            call.end(outcome)
        else:
            self.submit(call)
        return call

    def submit(self, call: ClientCall) -> None:
        """Send a call, once there is a connection; also one that was refused."""
        if call.outcome is not None:
            return
        if self._closed:
            call.end(CANCELLED_HERE)
            return
        if self._connection is not None:
            self._start(call, self._connection)
            return
        loop = asyncio.get_running_loop()
        if self._connecting is None and loop.time() < self._retry_at:
            assert self._failure is not None
            call.end(self._failure)
            return
        self._waiting[call] = None
        if self._connecting is None:
            self._connecting = loop.create_task(self._connect(), name=f"connect {self.address}")

    def forget(self, call: ClientCall) -> None:
        """A call has ended, and waits for nothing."""
        self._waiting.pop(call, None)

    def renew(self) -> None:
        """Make the next call's connection anew; calls under way go on where they are."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave()

    async def close(self) -> None:
        """Cancel what is under way, and close. Idempotent."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        for call in list(self._waiting):
            call.cancel()
        self._connection = None
        for connection in list(self._connections):
            connection.discard()
        for connection in list(self._connections):
            await connection.closed

    def _head(self, path: str) -> tuple[tuple[bytes, bytes], ...]:
        """The headers that all calls of a method have."""
        name = self._tls.name if self._tls is not None else None
        if name is None and self.address.startswith(UNIX):
            name = "localhost"
        return (
            (b":method", b"POST"),
            (b":scheme", b"http" if self._tls is None else b"https"),
            (b":path", path.encode()),
            (b":authority", (name or self.address).encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", USER_AGENT),
        )

    def _start(self, call: ClientCall, connection: ClientConnection) -> None:
        try:
            connection.request(call)
        except SessionError:  # it has no number left for a stream
            self._on_leaving(connection)
            connection.leave()
            call.on_refused()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                connection = await self._open()
                for _ in range(MOST_LEFT):
                    if not connection.is_leaving:
                        break
                    connection = await self._open()
        except (OSError, TimeoutError, ssl.CertificateError) as error:
            self._failed(self._not_connected(str(error) or type(error).__name__))
        except asyncio.CancelledError:
            self._connecting = None
            raise
        except Exception as error:  # a mistake of ours: calls fail with it, and it is logged
            self._failed(fault_of_ours(error))
            raise
        else:
            if connection.is_leaving:
                self._failed(self._not_connected("the engine takes no calls (GOAWAY)"))
                return
            self._connecting = None
            self._backoff.reset()
            self._connection = connection
            waiting, self._waiting = self._waiting, {}
            for call in waiting:
                try:
                    self.submit(call)
                except Exception as error:  # ours: of this call alone
                    end_for_fault(call, error)

    def _not_connected(self, why: str) -> Outcome:
        text = f"failed to connect to all addresses; last error: {self.address}: {why}"
        return Outcome(Fault.CONNECT, StatusCode.UNAVAILABLE, text)

    def _failed(self, outcome: Outcome) -> None:
        self._connecting, self._failure = None, outcome
        self._retry_at = asyncio.get_running_loop().time() + self._backoff.next()
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            try:
                call.end(outcome)
            except Exception as error:  # ours: of this call alone
                end_for_fault(call, error)

    async def _open(self) -> ClientConnection:
        """A connection whose peer has sent its settings. OSError if there is none."""
        limits = self._limits
        session = make_session(
            server=False,
            window_bytes=limits.window_bytes,
            first_window_bytes=limits.first_window_bytes,
            max_message_bytes=limits.max_message_bytes,
            max_header_bytes=limits.max_header_bytes,
        )
        keepalive = Keepalive(limits.keepalive_s, limits.keepalive_timeout_s)
        connection = ClientConnection(session, keepalive, self._on_leaving)
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        try:
            await self._connect_transport(connection)
            await connection.ready
        except BaseException:
            connection.discard()
            with contextlib.suppress(asyncio.CancelledError):
                await connection.closed
            raise
        return connection

    async def _connect_transport(self, connection: ClientConnection) -> None:
        loop, tls = asyncio.get_running_loop(), self._tls
        if self.address.startswith(UNIX):
            path = self.address.removeprefix(UNIX)
            await loop.create_unix_connection(lambda: connection, path)
            return
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        transport, _ = await loop.create_connection(
            lambda: connection,
            host,
            int(port),
            ssl=None if tls is None else tls.context(),
            server_hostname=None if tls is None else tls.name or host,
        )
        if tls is not None:
            spoken = transport.get_extra_info("ssl_object").selected_alpn_protocol()
            if spoken != ALPN:
                raise ConnectionError(f"it does not offer HTTP/2 over TLS, but {spoken}")

    def _on_leaving(self, connection: ClientConnection) -> None:
        if self._connection is connection:
            self._connection = None
