"""The frontend's listener: uvicorn's HTTP protocol on a port of ours.

uvicorn with httptools is the leanest well-kept ASGI server; its own `Server` would take the
process's signals, so its protocol alone is used.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ..router.access import certificate_names
from ..runtime.settings import bad_setting
from .application import Application
from .asgi import Client

BACKLOG = 512
MAX_HEADER_BYTES = 64 << 10


class HttpListener:
    """Serves an application from `start` until `close`. `wrap` puts something around each
    connection's protocol."""

    def __init__(self, app: Application, wrap: Callable[[Any], asyncio.Protocol]) -> None:
        self._app = app
        self._wrap = wrap
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._config = Config(
            _not_found,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        self._config.load()
        self.port = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen; port 0 takes a free one. ConfigError if it cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connection, host, port, ssl=tls, backlog=BACKLOG
            )
        except OSError as error:
            text = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise bad_setting("http_frontend", text) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def drain(self, grace_s: float) -> None:
        """Take no new requests, and let those in flight end for at most `grace_s`."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_s)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _connection(self) -> asyncio.Protocol:
        return self._wrap(_Connection(self._app, self._config, self._state))


class _Connection(HttpToolsProtocol):
    """A connection whose requests know the certificate that it began with, and when it is lost."""

    def __init__(self, app: Application, config: Config, state: ServerState) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._application = app
        self._client = Client()

    def connection_made(self, transport: Any) -> None:
        names = certificate_names(transport.get_extra_info("peercert"))
        self.app = partial(self._application, client=self._client, names=names)
        super().connection_made(transport)
        self._client.on_connected(transport, self.flow)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._client.on_gone()


async def _not_found(scope: Any, receive: Any, send: Any) -> None:
    """Never called: each connection has its application."""
