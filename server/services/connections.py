"""How many connections callers may have: descriptors are left for engines and for ourselves."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ...base.account import network_of
from ...base.limit_hits import LimitHits
from ...process.system import open_files
from ..caller_limits import CallerLimits

SPARE = 32
"""Descriptors for NATS, files, and whatever comes up."""
PER_WORKER = 2
"""A connection, and one that is being made while the old one is being closed."""
LEAST = 8
"""Connections that each listener has in any case."""


class ConnectionPlan(NamedTuple):
    """Connections of callers to each listener; `warning`: what is short, empty if nothing is."""

    grpc: int
    http: int
    warning: str = ""


def plan_connections(limits: CallerLimits, workers: int) -> ConnectionPlan:
    """What this process, as it is now, can give to callers beside `workers` engines."""
    in_use, allowed = open_files()
    return share_descriptors(limits, allowed=allowed, in_use=in_use, workers=workers)


def share_descriptors(
    limits: CallerLimits, *, allowed: int, in_use: int, workers: int
) -> ConnectionPlan:
    """Share descriptors out, of which `allowed` may be open and `in_use` are."""
    free = allowed - in_use - PER_WORKER * workers - SPARE
    http = min(limits.max_http_connections, max(LEAST, free // 4))
    grpc = min(limits.max_connections, max(LEAST, free - http))
    warning = ""
    if free < 2 * LEAST:
        warning = (
            f"only {allowed} files may be open, too few for {workers} workers and for callers:"
            " raise the limit (ulimit -n)"
        )
    return ConnectionPlan(grpc, http, warning)


def share_of(most: int, share: float) -> int:
    """How many of `most` connections one address may have."""
    return most if share >= 1 else max(LEAST, int(most * share))


class HttpConnections:
    """The open HTTP connections, at most `most`: one more ends the one that was silent longest.

    Of an address at most `share` of that: there one more ends its own. One that is silent for
    `idle_s` ends too. Those that are busy are not silent, and go last. Each is counted in `hits`.
    """

    def __init__(self, most: int, idle_s: float, hits: LimitHits, share: float = 1.0) -> None:
        self.most = most
        self.most_each = share_of(most, share)
        self.idle_s = idle_s
        self._hits = hits
        self._open: OrderedDict[BoundedConnection, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def bounded(self, protocol: Any) -> "BoundedConnection":
        """A connection of ours around the protocol that serves it."""
        return BoundedConnection(protocol, self)

    def on_opened(self, connection: "BoundedConnection") -> None:
        if len(self._open) >= self.most_each < self.most:
            same = [each for each in self._open if each.peer == connection.peer]
            if len(same) >= self.most_each:
                self._hits.hit("max_connection_share")
                _least_wanted(same).abort()
        if len(self._open) >= self.most:
            self._hits.hit("max_http_connections")
            _least_wanted(self._open).abort()
        self._open[connection] = None

    def on_data(self, connection: "BoundedConnection") -> None:
        if connection in self._open:
            self._open.move_to_end(connection)

    def on_silent(self, connection: "BoundedConnection") -> None:
        self._hits.hit("connection_idle_s")
        connection.abort()

    def on_closed(self, connection: "BoundedConnection") -> None:
        self._open.pop(connection, None)


def _least_wanted(found: "Collection[BoundedConnection]") -> "BoundedConnection":
    """Of those, the longest silent first."""
    return next((each for each in found if not each.busy), next(iter(found)))


class BoundedConnection(asyncio.Protocol):
    """Passes everything on to the protocol that serves the connection, and counts."""

    def __init__(self, inner: Any, connections: HttpConnections) -> None:
        self._inner = inner
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_read = self._loop.time()
        self.peer = ""
        """whose it is, as far as shares of connections go"""

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, as far as the protocol inside says so."""
        return getattr(self._inner, "busy", False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.peer = network_of(str((transport.get_extra_info("peername") or ("",))[0]))
        self._connections.on_opened(self)
        self._inner.connection_made(transport)
        self._wait(self._connections.idle_s)

    def data_received(self, data: bytes) -> None:
        self._last_read = self._loop.time()
        self._connections.on_data(self)
        self._inner.data_received(data)

    def eof_received(self) -> Any:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.on_closed(self)
        if self._timer is not None:
            self._timer.cancel()
        self._inner.connection_lost(exc)

    def abort(self) -> None:
        """End it at once."""
        self._connections.on_closed(self)
        abort: Callable[[], None] = getattr(self._transport, "abort")  # noqa: B009
        abort()

    def _wait(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        if self.busy:
            self._last_read = self._loop.time()
        left = self._last_read + self._connections.idle_s - self._loop.time()
        if left > 0:
            self._wait(left)
        else:
            self._connections.on_silent(self)
