"""HttpServer: one HTTP port of a server, with its routes, its access check and its bounds."""

from collections.abc import Callable

from ...base.urls import joined
from ...transport.http1 import (
    Application,
    ErrorForm,
    HttpLimits,
    HttpListener,
    Routes,
    plain_error,
)
from ..access import AdminAddress
from ..server_parts import ServerParts
from .connections import HttpConnections, plan_connections
from .index_page import IndexRoute

AdminAt = Callable[[int], tuple[AdminAddress | None, bool]]
"""Where admin routes are served, for the port that was taken, and whether that is another
socket."""


class HttpServer:
    """Serves routes from `listen` until `close`."""

    def __init__(
        self,
        routes: Routes,
        parts: ServerParts,
        *,
        name: str,
        port: int,
        key: str,
        workers: int,
        admin_at: AdminAt = lambda port: (None, False),
        form: ErrorForm = plain_error,
        form_of: Callable[[str], ErrorForm] | None = None,
        drains: bool = False,
    ) -> None:
        """`name` is that of the ready line, `key` the setting of the port; 0 takes a free one. For
        `workers` a share of the open files is kept. Without `admin_at` it has no admin routes.
        `form` is that of errors, `form_of` that of errors by their path. `drains`: it carries the
        requests of clients, and takes no more of them when it drains."""
        limits, hits = parts.config.peers, parts.hits
        self._name, self._host, self._wanted, self._key = name, parts.config.host, port, key
        self._reuse_port, self._admin_at, self._drains = parts.shares_ports, admin_at, drains
        self._tls, self._guard = parts.security.server_tls, parts.security.http_guard()
        self._connections = HttpConnections(
            plan_connections(limits, workers).http,
            limits.connection_idle_s,
            hits,
            limits.max_connection_share,
        )
        application = Application(
            {**routes, **IndexRoute(routes).routes},
            form,
            form_of=form_of,
            admit=self._guard.admit,
            max_body_bytes=limits.max_body_bytes,
            on_long_body=lambda: hits.hit("max_body_bytes"),
            bodies=parts.calls.bytes,
            on_refused=parts.calls.refused if drains else lambda: None,
            off_loop=parts.off_loop,
            origins=self._guard.origins if parts.config.allowed_origins else None,
        )
        self._listener = HttpListener(
            application,
            form,
            enter=self._connections.enter,
            limits=HttpLimits(
                request_s=limits.message_timeout_s, handshake_s=limits.connection_handshake_s
            ),
            on_limit=hits.hit,
            observer=parts.answers,
        )
        parts.answers.counts.expect(routes)
        self.port = 0
        self.admin: AdminAddress | None = None
        """where admin routes are served, if that is another socket"""

    @property
    def open(self) -> int:
        """Connections."""
        return self._listener.open

    @property
    def address(self) -> str:
        return joined(self._host, self.port)

    @property
    def description(self) -> str:
        """Its part of the ready line."""
        admin = "" if self.admin is None else f" admin {joined(*self.admin)}"
        return f"{self._name} {self.address}{admin}"

    async def listen(self) -> None:
        """Take the port, and serve. ConfigError if it, or the admin port, cannot be had."""
        context = None if self._tls is None else self._tls.ssl_context()
        self.port = await self._listener.start(
            self._host, self._wanted, key=self._key, tls=context, reuse_port=self._reuse_port
        )
        self._guard.serves(self._host, self.port)
        admin, apart = self._admin_at(self.port)
        if admin is not None and apart:
            taken = await self._listener.start(
                *admin, key="admin_port", tls=context, reuse_port=self._reuse_port
            )
            admin = self.admin = AdminAddress(admin.host, taken)
        self._guard.admin = admin

    async def start(self) -> None:
        """It answers since it listens."""

    async def drain(self, grace_s: float) -> None:
        """Of client requests: take no more, and let those in flight end for at most `grace_s`."""
        if self._drains:
            await self._listener.drain(grace_s)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        await self._listener.close()
