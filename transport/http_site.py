"""An HTTP server on a port of ours: how every HTTP API of this package listens."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from ..process.settings import bad_setting

BACKLOG = 128


class HttpSite:
    """Routes of one API, answered from `start` until `close`."""

    def __init__(
        self,
        routes: Iterable[web.AbstractRouteDef],
        *,
        max_body_bytes: int,
        wrap: Callable[[Any], asyncio.Protocol] = lambda protocol: protocol,
        **options: Any,
    ) -> None:
        """`max_body_bytes` bounds a request's body; `wrap` puts something around the protocol of
        each connection; `options` go to aiohttp's Application."""
        self._wrap = wrap
        self._app = web.Application(client_max_size=max_body_bytes, **options)
        self._app.add_routes(routes)
        self._runner: web.AppRunner | None = None
        self._listeners: list[asyncio.Server] = []
        self.port = 0
        """of the first address"""

    @property
    def connections(self) -> int:
        """How many are open now."""
        server = None if self._runner is None else self._runner.server
        return 0 if server is None else len(server.connections)

    async def start(
        self,
        host: str,
        port: int,
        *,
        key: str,
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
    ) -> int:
        """Listen, on one more address if called again; the port taken, a free one for port 0.
        `shared`: with other processes of this user, which get a part of the connections each.

        ConfigError, naming the setting `key`, if it cannot; then no address is listened on.
        """
        first = self._runner is None
        if self._runner is None:
            self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=1.0)
            await self._runner.setup()
        serve, loop = self._runner.server, asyncio.get_running_loop()
        assert serve is not None  # it is set up
        try:
            listener = await loop.create_server(
                lambda: self._wrap(serve()),
                host,
                port,
                ssl=tls,
                backlog=BACKLOG,
                reuse_port=shared or None,
            )
        except OSError as error:
            await self.close()
            reason = error.strerror or error
            raise bad_setting(key, f"cannot listen on {host}:{port}: {reason}") from None
        self._listeners.append(listener)
        taken = int(listener.sockets[0].getsockname()[1])
        if first:
            self.port = taken
        return taken

    async def close(self) -> None:
        """Stop listening and drop what is open. Idempotent."""
        runner, self._runner = self._runner, None
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        if runner is not None:
            await runner.cleanup()


def json_response(value: Any, status: int = 200) -> web.Response:
    """A value as JSON; whatever msgspec can encode."""
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json")
