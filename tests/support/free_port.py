"""A port for a server that has to come back on the same one."""

import socket
from random import SystemRandom


def free_port() -> int:
    """A port of 127.0.0.1 that is free now, and outside the range that the system hands out.

    Of that range, somebody's outgoing connection may take it while the server is down: even the
    one that tries to reach the server, which then talks to itself.
    """
    while True:
        port = SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """So many of them, no two alike."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port()] = None
    return list(found)
