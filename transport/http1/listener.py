"""HttpListener: HTTP/1.1 connections on the ports of one server, answered by an application."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from ...process.settings import bad_setting
from ..security import certificate_names
from .application import Application
from .asgi import Client
from .connection import (
    AnswerObserver,
    App,
    HttpConnection,
    NoAnswerObserver,
    OpenConnections,
)
from .errors import ErrorForm, plain_error
from .limits import HttpLimits

BACKLOG = 512


class HttpListener:
    """Serves an application from `start` until `close`. `wrap` puts something around each
    connection's protocol."""

    def __init__(
        self,
        app: Application,
        form: ErrorForm = plain_error,
        *,
        wrap: Callable[[Any], asyncio.Protocol] = lambda protocol: protocol,
        limits: HttpLimits | None = None,
        on_slow: Callable[[], None] = lambda: None,
        observer: AnswerObserver | None = None,
    ) -> None:
        """`form`: of answers to what is no request; `on_slow` is called for each request that takes
        too long to come, `observer` sees each of them end."""
        self._app, self._form, self._wrap = app, form, wrap
        self._connections = OpenConnections(
            limits or HttpLimits(), on_slow, observer or NoAnswerObserver(), app.route_of
        )
        self._servers: list[asyncio.Server] = []

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
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                self._connection, host, port, ssl=tls, backlog=BACKLOG, reuse_port=reuse_port
            )
        except OSError as error:
            await self.close()
            text = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise bad_setting(key, text) from None
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def drain(self, grace_s: float) -> None:
        """Take no new requests, and let those in flight end for at most `grace_s`."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections.open):
            connection.shut_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        # Of what was sent ahead, one begins as another ends.
        while self._connections.tasks and (left := until - loop.time()) > 0:
            await asyncio.wait(self._connections.tasks, timeout=left)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            # Not waited for: since Python 3.12 that waits for all connections, which peers hold.
            server.close()
        while tasks := list(self._connections.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.open):
            connection.abort()

    def _connection(self) -> asyncio.Protocol:
        return self._wrap(HttpConnection(self._new_app, self._connections, self._form))

    def _new_app(self, transport: asyncio.Transport, client: Client) -> App:
        """The application for one connection: it knows the certificate that it began with."""
        names = certificate_names(transport.get_extra_info("peercert"))
        return partial(self._app, client=client, names=names)
