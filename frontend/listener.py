"""The frontend's listener: HTTP/1.1 connections on a port, answered by an application."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from ..process.settings import bad_setting
from ..server.access import certificate_names
from .application import Application
from .asgi import Client
from .http1 import App, HttpConnection, OpenConnections

BACKLOG = 512


class HttpListener:
    """Serves an application from `start` until `close`. `wrap` puts something around each
    connection's protocol."""

    def __init__(self, app: Application, wrap: Callable[[Any], asyncio.Protocol]) -> None:
        self._app = app
        self._wrap = wrap
        self._connections = OpenConnections()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, shared: bool = False
    ) -> None:
        """Listen; port 0 takes a free one. ConfigError if it cannot be had. `shared`: with other
        processes of this user."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connection,
                host,
                port,
                ssl=tls,
                backlog=BACKLOG,
                reuse_port=shared or None,
            )
        except OSError as error:
            text = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise bad_setting("http_frontend", text) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def drain(self, grace_s: float) -> None:
        """Take no new requests, and let those in flight end for at most `grace_s`."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.open):
            connection.shut_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        # Of what was sent ahead, one begins as another ends.
        while self._connections.tasks and (left := until - loop.time()) > 0:
            await asyncio.wait(self._connections.tasks, timeout=left)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        if self._server is not None:
            self._server.close()
        while tasks := list(self._connections.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.open):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _connection(self) -> asyncio.Protocol:
        return self._wrap(HttpConnection(self._new_app, self._connections))

    def _new_app(self, transport: asyncio.Transport, client: Client) -> App:
        """The application for one connection: it knows the certificate that it began with."""
        names = certificate_names(transport.get_extra_info("peercert"))
        return partial(self._app, client=client, names=names)
