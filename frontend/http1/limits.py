"""What a client may send before it is refused, and how slowly."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HttpLimits:
    """Of each connection. A request has `request_s` and a second more for each
    `least_bytes_per_s` that came of it."""

    head_bytes: int = 64 << 10
    """of a request: its line and headers"""
    headers: int = 256
    pipelined: int = 16
    """requests behind the one that is being answered"""
    unread_bytes: int = 64 << 10
    """of a body that nobody asked for yet, beyond which no more is read"""
    request_s: float = 30.0
    least_bytes_per_s: float = 500.0
    linger_s: float = 2.0
    """how long a client that is refused in the middle of its request may go on sending it: to be
    cut off at once, it would not read why"""
