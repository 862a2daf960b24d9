"""HttpListener: HTTP/1.1 connections on the ports of one server, answered by an application."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from ...base.urls import joined
from ...process.settings import bad_setting
from ..acceptor import Acceptor
from ..security import certificate_names
from .application import Application
from .asgi import Client
from .connection import App, HttpConnection
from .errors import ErrorForm, HttpError, plain_error
from .exchange import refusal
from .limits import HttpLimits
from .observer import AnswerObserver, NoAnswerObserver
from .open_connections import OpenConnections

Enter = Callable[
    [str, Callable[[], asyncio.Protocol], Callable[[], object]], asyncio.Protocol | str
]
"""Given the host that a connection comes from, what makes the protocol that serves it, and what
gives it up before it is made: that protocol, or one around it; or why it is refused. Its
`connection_lost` is called in any case, also if its TLS fails and it is never made."""


def _count_nothing(limit: str) -> None:
    pass


class HttpListener:
    """Serves an application from `start` until `close`."""

    def __init__(
        self,
        app: Application,
        form: ErrorForm = plain_error,
        *,
        enter: Enter = lambda host, new, give_up: new(),
        limits: HttpLimits | None = None,
        on_limit: Callable[[str], None] = _count_nothing,
        observer: AnswerObserver | None = None,
    ) -> None:
        """`form`: of answers to what is no request; `enter` lets connections in. `on_limit` is
        called with the name of each limit that a client has hit, `observer` sees each request end.
        """
        self._app, self._form, self._enter = app, form, enter
        self._on_limit = on_limit
        self._connections = OpenConnections(
            limits or HttpLimits(),
            partial(on_limit, "message_timeout_s"),
            observer or NoAnswerObserver(),
            app.route_of,
        )
        self._acceptors: list[Acceptor] = []
        self._opening: dict[socket.socket, asyncio.Task[bool]] = {}

    @property
    def open(self) -> int:
        """Connections."""
        return len(self._connections.open)

    async def start(
        self,
        host: str,
        port: int,
        *,
        key: str,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
    ) -> int:
        """Listen, on one more address if called again; the port taken, a free one for port 0.

        ConfigError, naming the setting `key`, if it cannot be had; then no address is listened on.
        `reuse_port`: other processes of this user may listen on it too, and get a part of its
        connections.
        """
        acceptor = Acceptor(partial(self._open, tls), lambda error: self._on_limit("descriptors"))
        try:
            taken = acceptor.bind(host, port, shared=reuse_port)
        except OSError as error:
            await self.close()
            text = f"cannot listen on {joined(host, port)}: {error.strerror or error}"
            raise bad_setting(key, text) from None
        acceptor.start()
        self._acceptors.append(acceptor)
        return taken

    async def drain(self, grace_s: float) -> None:
        """Take no new requests, and let those in flight end for at most `grace_s`."""
        self._listen_no_more()
        for connection in list(self._connections.open):
            connection.shut_down()
        self._connections.are_ending = True  # some have been accepted, and are not made yet
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        # Of what was sent ahead, one begins as another ends.
        while self._connections.tasks and (left := until - loop.time()) > 0:
            await asyncio.wait(self._connections.tasks, timeout=left)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        self._listen_no_more()
        while tasks := self._under_way():
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.open):
            connection.end_unanswered()

    def _under_way(self) -> list[asyncio.Task[Any]]:
        """Tasks that have not ended."""
        tasks = chain[asyncio.Task[Any]](self._opening.values(), self._connections.tasks)
        return [task for task in tasks if not task.done()]

    def _listen_no_more(self) -> None:
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.close()

    def _open(self, tls: ssl.SSLContext | None, accepted: socket.socket, host: str) -> None:
        protocol = self._enter(host, self._connection, partial(self._give_up, accepted))
        if isinstance(protocol, str):
            self._refuse(accepted, protocol, in_the_clear=tls is None)
            return
        task = asyncio.get_running_loop().create_task(self._make(tls, accepted, protocol))
        self._opening[accepted] = task
        task.add_done_callback(partial(self._opened, accepted, protocol))

    def _give_up(self, accepted: socket.socket) -> None:
        if (task := self._opening.get(accepted)) is not None:
            task.cancel()

    def _opened(
        self, accepted: socket.socket, protocol: asyncio.Protocol, task: asyncio.Task[bool]
    ) -> None:
        """A connection has its transport, or will never have one: its task may not have begun."""
        del self._opening[accepted]
        is_made = False
        try:
            is_made = not task.cancelled() and task.result()
        finally:
            if not is_made:
                accepted.close()
                protocol.connection_lost(None)

    def _refuse(self, accepted: socket.socket, why: str, *, in_the_clear: bool) -> None:
        """Say why, if that can be said at once, and close. What the client has sent is read first,
        or the system would break the connection off before it reads the answer."""
        if in_the_clear:
            answer = self._form(HttpError(429, why))
            with contextlib.suppress(OSError):
                accepted.recv(self._connections.limits.head_bytes)
            with contextlib.suppress(OSError):
                accepted.send(refusal(answer.status, answer.body))
        accepted.close()

    async def _make(
        self, tls: ssl.SSLContext | None, accepted: socket.socket, protocol: asyncio.Protocol
    ) -> bool:
        """A transport for an accepted connection, with TLS if that is asked for; False: it has
        none."""
        loop, most = asyncio.get_running_loop(), self._connections.limits.handshake_s
        until = loop.time() + most
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else most,
            )
        except (OSError, TimeoutError):
            if tls is not None:
                late = loop.time() >= until
                self._on_limit("connection_handshake_s" if late else "client_violations")
            return False
        return True

    def _connection(self) -> HttpConnection:
        return HttpConnection(self._new_app, self._connections, self._form)

    def _new_app(self, transport: asyncio.Transport, client: Client) -> App:
        """The application for one connection: it knows the certificate that it began with."""
        names = certificate_names(transport.get_extra_info("peercert"))
        return partial(self._app, client=client, names=names)
