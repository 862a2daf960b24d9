"""How many connections callers may have: descriptors are left for engines and for ourselves."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
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
YOUNG_S = 0.1
"""What came or was answered this recently is not ended for another one of its address: a request
may be on its way."""


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
    """The open HTTP connections, at most `most`, of an address at most `share` of that.

    Where there is no room one more ends the one that was silent longest: of its own address, or of
    the one that has most if that has more. What is busy goes last; its own address's is not ended
    for it at all, nor what is younger than `young_s`: then it is refused. One that is silent for
    `idle_s` ends too. Each is counted in `hits`.
    """

    def __init__(
        self,
        most: int,
        idle_s: float,
        hits: LimitHits,
        share: float = 1.0,
        young_s: float = YOUNG_S,
    ) -> None:
        self.most = most
        self.most_each = share_of(most, share)
        self.idle_s = idle_s
        self._hits, self._young_s = hits, young_s
        self._by_peer: dict[str, OrderedDict[BoundedConnection, None]] = {}  # the silent first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(
        self,
        host: str,
        new: Callable[[], asyncio.Protocol],
        give_up: Callable[[], object] = lambda: None,
    ) -> "BoundedConnection | str":
        """A connection of ours, from this host, around the protocol that serves it; or why there is
        no room for it. `give_up` is called if it is to end before it is made."""
        peer = network_of(host)
        if (refusal := self._refusal(peer)) is not None:
            return refusal
        connection = BoundedConnection(new(), self, peer, give_up)
        self._by_peer.setdefault(peer, OrderedDict())[connection] = None
        self._count += 1
        return connection

    def on_data(self, connection: "BoundedConnection") -> None:
        same = self._by_peer.get(connection.peer, ())
        if connection in same:
            self._by_peer[connection.peer].move_to_end(connection)

    def on_silent(self, connection: "BoundedConnection") -> None:
        self._hits.hit("connection_idle_s")
        connection.abort()

    def on_closed(self, connection: "BoundedConnection") -> None:
        same = self._by_peer.get(connection.peer, ())
        if connection in same:
            del self._by_peer[connection.peer][connection]
            self._count -= 1
            if not self._by_peer[connection.peer]:
                del self._by_peer[connection.peer]

    def _refusal(self, peer: str) -> str | None:
        """Why there is no room for one more of this peer. None: there is, or some was made."""
        own = self._by_peer.get(peer, OrderedDict())
        if len(own) >= self.most_each < self.most:
            self._hits.hit("max_connection_share")
            why = f"max_connection_share: one address may have {self.most_each}"
            wanted = self._idle_of(own)
        elif self._count >= self.most:
            self._hits.hit("max_http_connections")
            why = f"max_http_connections: all clients together may have {self.most}"
            most = max(self._by_peer.values(), key=len)
            if len(most) > len(own):
                wanted = next((each for each in most if not each.busy), next(iter(most)))
            else:
                wanted = self._idle_of(own)
        else:
            return None
        if wanted is None:
            return f"no capacity for the connection: {why}"
        wanted.abort()
        return None

    def _idle_of(self, found: "OrderedDict[BoundedConnection, None]") -> "BoundedConnection | None":
        before = asyncio.get_running_loop().time() - self._young_s
        idle = (each for each in found if each.idle_since <= before and not each.busy)
        return next(idle, None)


class BoundedConnection(asyncio.Protocol):
    """Passes everything on to the protocol that serves the connection, and counts."""

    def __init__(
        self, inner: Any, connections: HttpConnections, peer: str, give_up: Callable[[], object]
    ) -> None:
        """`peer`: whose it is, as far as shares of connections go; `give_up`: see `enter`."""
        self.peer, self._give_up = peer, give_up
        self._inner = inner
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opened = self._last_read = self._loop.time()
        self._unwanted = False

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, as far as the protocol inside says so."""
        return getattr(self._inner, "busy", False)

    @property
    def idle_since(self) -> float:
        """When it came, or its last answer ended, as far as the protocol inside says so; by the
        loop's clock."""
        return max(self._opened, getattr(self._inner, "answered_at", 0.0))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        try:
            self._inner.connection_made(transport)
            self._wait(self._connections.idle_s)
        except BaseException:
            self.abort()
            raise
        if self._unwanted:
            self.abort()

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
        """End it at once, also before it is made, or as soon as it is."""
        self._connections.on_closed(self)
        if self._transport is None:
            self._unwanted = True
            self._give_up()
        else:
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
