"""What a server takes of its clients, on each connection and of all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Times in seconds; infinite: no limit. ENHANCE_YOUR_CALM is what a client hears that sends
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
    max_streams: int = 1 << 16
    """calls at once of one connection"""
    window_bytes: int = 256 << 10
    """of a request's stream that nobody has read"""
    max_message_bytes: int = 32 << 20
    max_header_bytes: int = 16 << 10
    """of a request, as HTTP/2 counts them: 32 more for each header"""
    send_buffer_bytes: int = 64 << 10
    """of an answer that its client does not read; beyond, whoever writes waits"""
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
"""Hears the name of a limit each time a client has hit it."""


class InputBound(Protocol):
    """How many bytes of requests may be under way, of all clients and of each."""

    def take(self, caller: str, amount: int) -> str | None:
        """So many more: what stands in the way if there is no room, and nothing is taken."""
        ...

    def give_back(self, caller: str, amount: int) -> None:
        """So many less."""
        ...
