"""What a server takes of its clients, on each connection and of all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Times in seconds; infinite: no limit. ENHANCE_YOUR_CALM is the error of a client that sends
    more pings, settings or resets than a sound one does (flood_guard.py).
    """

    max_connections: int = 1 << 16
    handshake_s: float = 10.0
    """from the accept to the client's settings, TLS included"""
    idle_s: float = math.inf
    """without a call; then the connection is closed"""
    age_s: float = math.inf
    """then calls go to a new connection"""
    age_grace_s: float = math.inf
    """how long calls on an old connection may go on"""
    keepalive_s: float = 30.0
    keepalive_timeout_s: float = 10.0
    ping_interval_s: float = 10.0
    """between a client's pings while nothing is sent to it"""
    max_streams: int = 1 << 13
    """calls at once of one connection, which wait at its client beyond that"""
    max_frames: int = 1000
    """that are read of one connection before it is the turn of the others, or somewhat more"""
    header_s: float = 60.0
    """from the first to the last byte of a call's headers"""
    window_bytes: int = 256 << 10
    """unread, of a request's stream"""
    max_message_bytes: int = 32 << 20
    max_header_bytes: int = 16 << 10
    """of a request, as HTTP/2 counts them: 32 more for each header"""
    send_buffer_bytes: int = 64 << 10
    """of an answer that its client does not read; beyond, the writer waits"""
    connection_send_bytes: int = 16 << 20
    """of all answers of a connection; beyond, each has no more than one message that waits"""
    linger_s: float = 30.0
    """how long the rest of an answer may take to leave once it is complete"""


class ConnectionShare(Protocol):
    """Who may have one more connection. A connection is a number that no other one has."""

    def add(self, connection: int, peer: str) -> bool:
        """A new one of this host: whether it may stay."""
        ...

    def remove(self, connection: int) -> None:
        """One that stayed has ended."""
        ...


OnLimit = Callable[[str], None]
"""Called with the name of a limit each time a client has hit it."""


class ByteBound(Protocol):
    """How many bytes may wait, of requests or of answers, of all clients and of each."""

    def take(self, caller: str, amount: int) -> str | None:
        """Take `amount` more; if there is no room, the name of the limit, and nothing is taken."""
        ...

    def give_back(self, caller: str, amount: int) -> None:
        """Return `amount`."""
        ...


class CountedBytes:
    """What waits on one connection, counted in steps towards a bound that clients share.

    To be counted again whenever it is another number of steps than `steps`.
    """

    __slots__ = ("_bound", "_step", "steps")

    def __init__(self, bound: ByteBound | None, step: int) -> None:
        self._bound, self._step, self.steps = bound, step, 0

    def count(self, client: str, amount: int) -> bool:
        """`amount` waits now; False: there is no room for it, and the count stays."""
        steps = amount // self._step
        if self._bound is not None:
            more = (steps - self.steps) * self._step
            if more > 0 and self._bound.take(client, more) is not None:
                return False
            if more < 0:
                self._bound.give_back(client, -more)
        self.steps = steps
        return True
