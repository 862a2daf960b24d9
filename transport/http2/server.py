"""A server of gRPC: listens, and has each call answered at once or served by one task."""

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import TypeAlias

from ...base.account import account_of
from ...base.errors import StatusCode
from ...base.limit_hits import LimitLog
from ..acceptor import Acceptor
from .library import make_session, require_library
from .server_call import AnswerNow, AtOnce, CallAborted, PeerGoneError, Serve, ServerCall
from .server_connection import NOTICE_S, ServerConnection
from .server_limits import ByteBound, ConnectionShare, OnLimit, ServerLimits

CLOSE_S = 2.0
"""How long connections have to close when the server stops; then they are cut."""
AGE_SPREAD = 0.1

log = logging.getLogger(__name__)


OnRefused: TypeAlias = Callable[[str, str, str, str], None]
"""Called for each call that is refused before its method has it: its path, empty if no method has
it, its client, the status, of gRPC or HTTP, and why."""


def _count_nothing(limit: str) -> None:
    pass


class Http2Server:
    """Listens from `bind`, answers from `start` until `stop`.

    A method reads its messages and writes its answers by the call; what it leaves open is ended
    with OK when it returns, with UNKNOWN when it fails.
    """

    def __init__(
        self,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        share: ConnectionShare | None = None,
        on_limit: OnLimit = _count_nothing,
        input_bound: ByteBound | None = None,
        output_bound: ByteBound | None = None,
        on_refused: OnRefused | None = None,
    ) -> None:
        """ConfigError if there is no nghttp2."""
        self._on_refused = on_refused
        require_library()
        self.limits = limits or ServerLimits()
        self._limit_log = LimitLog(on_limit)
        self.input_bound, self.output_bound = input_bound, output_bound
        self._methods: dict[bytes, tuple[Serve, AtOnce | None]] = {}  # by path
        self._tls = tls
        self._share = share
        self._acceptor = Acceptor(self._open, self._on_no_descriptors)
        self._connections: dict[int, ServerConnection] = {}
        self._numbers = 0
        self._opening: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: list[
            tuple[ServerCall, Serve, Serve]
        ] = []  # in this turn; they may have no tasks

    def __len__(self) -> int:
        """Connections, those whose TLS is under way too."""
        return len(self._connections)

    @property
    def connections(self) -> list[ServerConnection]:
        """Those that are open."""
        return list(self._connections.values())

    @property
    def calls_open(self) -> int:
        """Calls that are being served."""
        return len(self._tasks)

    @property
    def connections_made(self) -> int:
        """Ever."""
        return self._numbers

    def bind(self, host: str, port: int, *, shared: bool = False) -> int:
        """Take the port, of all addresses of a name; 0 takes a free one. OSError if it cannot.

        `shared`: with other processes of this user, which get a part of the connections each.
        """
        return self._acceptor.bind(host, port, shared=shared)

    def bind_unix(self, path: str) -> None:
        """Listen on a Unix socket, for processes of this user alone. OSError if it cannot."""
        self._acceptor.bind_unix(path)

    async def start(
        self, methods: Mapping[str, Serve], at_once: Mapping[str, AtOnce] | None = None
    ) -> None:
        """Answer, by the paths of methods. `at_once` has a shorter way for some of them, which is
        asked first, as soon as a call's message is there."""
        short = {
            path: way._replace(answer=partial(_at_once, way.answer))
            for path, way in (at_once or {}).items()
        }
        self._methods = {path.encode(): (way, short.get(path)) for path, way in methods.items()}
        self._acceptor.start()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those under way end for `grace_s`, end the rest as UNAVAILABLE.

        Idempotent; a stop that was cancelled, or has a long grace, can be called again.
        """
        if grace_s > 0:
            await self._acceptor.accept_waiting(grace_s)  # their clients may have called
        self._acceptor.close()
        if grace_s > 0:
            await self._drain(grace_s)
        for task in self._opening:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.leave()
            for call in connection.calls:
                call.end(StatusCode.UNAVAILABLE, "the server shuts down")
            connection.flush()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in list(self._connections.values()):
            connection.close("the server shuts down")
        await self._closed(CLOSE_S)
        await self.kill()

    async def kill(self) -> None:
        """Be gone at once: connections break, calls are cancelled. Idempotent."""
        self._acceptor.close()
        for pending in (*self._opening, *self._tasks):
            pending.cancel()
        for connection in list(self._connections.values()):
            connection.abort("the server is gone")
        await self._closed(None)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def on_limit(self, limit: str, who: str) -> None:
        """Count a limit that a client has hit: for connections."""
        self._limit_log.hit(limit, who)

    def on_refused(self, path: bytes, who: str, status: str, why: str) -> None:
        """A call was refused before its method had it: for connections."""
        if self._on_refused is not None:
            self._on_refused(path.decode() if path in self._methods else "", who, status, why)

    def begin(self, call: ServerCall, path: bytes) -> None:
        """Have a call served, or end it: for connections."""
        method = self._methods.get(path)
        if method is None:
            text = "Method not found!"
            self.on_refused(path, account_of(call.peer()), "UNIMPLEMENTED", text)
            call.refuse(StatusCode.UNIMPLEMENTED, text)
            return
        serve, at_once = method
        if at_once is None:
            self._serve(call, serve)
        else:
            call.at_once = at_once.answer
            self._begun.append((call, serve, at_once.finish))

    def settle(self) -> None:
        """All events of this turn are delivered: serve calls that were not answered at once, and
        see to answers that wait for their clients to read. For connections."""
        if self._begun:
            begun, self._begun = self._begun, []
            for call, serve, finish in begun:
                call.at_once = None
                if not call.over:
                    self._serve(call, finish if call.ended else serve)

    def _serve(self, call: ServerCall, serve: Serve) -> None:
        task = call.task = call.loop.create_task(_served(call, serve))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, grace_s: float) -> None:
        """Let clients know, take the calls that they had made before, and let all of them end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        if self._opening:
            await asyncio.wait(self._opening, timeout=min(grace_s, NOTICE_S))
        leaving = [each.leave() for each in self._connections.values() if each.is_made]
        for pending in (leaving, self._tasks):  # once all are left there are no more calls
            if pending:
                await asyncio.wait(pending, timeout=max(0.0, until - loop.time()))

    async def _closed(self, timeout_s: float | None) -> None:
        """Until every connection is, or that time is over."""
        left = [each.closed for each in self._connections.values() if each.is_made]
        waiting = (*left, *self._opening)
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)

    def _on_no_descriptors(self, error: OSError) -> None:
        self.on_limit("descriptors", f"a further connection ({error.strerror})")

    def _open(self, accepted: socket.socket, host: str) -> None:
        number = self._numbers = self._numbers + 1
        if len(self._connections) >= self.limits.max_connections:
            self.on_limit("max_connections", host)
            accepted.close()
        elif self._share is not None and not self._share.add(number, host):
            self._limit_log.note("max_connection_share", host)
            accepted.close()
        else:
            connection = self._connections[number] = self._connection()
            task = asyncio.create_task(self._make(accepted, connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            task.add_done_callback(lambda _: self._made(accepted, connection, number))

    def _made(self, accepted: socket.socket, connection: ServerConnection, number: int) -> None:
        """A connection has its transport, or will never have one."""
        if connection.is_made:
            connection.closed.add_done_callback(lambda _: self._gone(number))
        else:
            accepted.close()
            self._gone(number)

    def _gone(self, number: int) -> None:
        if self._connections.pop(number, None) is not None and self._share is not None:
            self._share.remove(number)

    def _connection(self) -> ServerConnection:
        limits = self.limits
        session = make_session(
            server=True,
            window_bytes=limits.window_bytes,
            max_message_bytes=limits.max_message_bytes,
            max_header_bytes=limits.max_header_bytes,
            max_streams=limits.max_streams,
        )
        return ServerConnection(session, self, random.uniform(1 - AGE_SPREAD, 1 + AGE_SPREAD))

    async def _make(self, accepted: socket.socket, connection: ServerConnection) -> None:
        """A transport for an accepted connection, with TLS if that is asked for."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.handshake_s
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self.limits.handshake_s,
            )
        except (OSError, TimeoutError) as error:
            log.debug("a connection was not made: %s", error)
            if self._tls is not None:
                late = loop.time() >= until
                self.on_limit("connection_handshake_s" if late else "client_violations", "TLS")


def _at_once(answer: AnswerNow, call: ServerCall, message: bytes) -> bool:
    """Whether a call was answered, or failed to be. In a context of its own, as a task has one."""
    try:
        return copy_context().run(answer, call, message)
    except Exception as error:
        log.exception("a method failed")
        call.end(StatusCode.UNKNOWN, f"Unexpected {type(error).__name__}")
        return True


async def _served(call: ServerCall, serve: Serve) -> None:
    """Serve one call, and end it in any case."""
    try:
        await serve(call)
        if not call.ended:
            await call.finish()
    except CallAborted:
        pass
    except (PeerGoneError, asyncio.CancelledError):
        if not call.ended:
            call.give_up()
    except Exception as error:
        log.exception("a method failed")
        call.end(StatusCode.UNKNOWN, f"Unexpected {type(error).__name__}")
    finally:
        if not call.over:
            call.linger()
