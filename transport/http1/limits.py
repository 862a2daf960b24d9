"""What a client of HTTP may send and how slowly, and whether it left."""

import asyncio
import socket
from dataclasses import dataclass

_CLOSE_WAIT, _CLOSED = 8, 7
"""States of TCP, as Linux numbers them: the other side sent its last, or a reset."""


@dataclass(frozen=True)
class HttpLimits:
    """What a client may send, and how slowly. A request has `request_s` and a second more for each
    `least_bytes_per_s` that came of it, and of those at most `silence_s` without a byte."""

    head_bytes: int = 64 << 10
    """of a request: its line and headers"""
    headers: int = 256
    pipelined: int = 16
    """requests behind the one that is being answered"""
    unread_bytes: int = 64 << 10
    """unread, of bodies; beyond, no more is taken from the socket"""
    turn_bytes: int = 1 << 20
    """the same of the request in turn, whose application is about to ask for it: to stop and to go
    on takes two system calls, a timer and a turn of the loop"""
    request_s: float = 30.0
    least_bytes_per_s: float = 64 << 10
    silence_s: float = 15.0
    look_s: float = 1.0
    """how often it is looked for the end of a connection that is not read"""
    handshake_s: float = 5.0
    """of TLS, before any request"""
    linger_s: float = 2.0
    """how long a client that is refused in the middle of its request may go on sending it: to be
    cut off at once, it would not read why"""


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the client ended its side: seen also behind unread bytes.

    False where the system does not report it (only Linux does), or has no room for those bytes.
    """
    info = getattr(socket, "TCP_INFO", None)
    found = transport.get_extra_info("socket")
    if info is None or found is None:
        return False
    try:
        return found.getsockopt(socket.IPPROTO_TCP, info, 1)[0] in (_CLOSE_WAIT, _CLOSED)
    except OSError:  # a socket of another kind
        return False
