"""Ports for servers that have to come back on the same one."""

import socket
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

PER_PROCESS = 500
FIRST = 10_000
LAST = 64_000


def free_port() -> int:
    """A port of 127.0.0.1 that is free now, and that nobody is given for a while.

    It lies outside the range that the system hands out: of that, somebody's outgoing connection may
    take it while the server is down, even the one that tries to reach the server, which then talks
    to itself. Nor do others of these tests get it, in this process or in one beside it, between our
    asking and the server's start.
    """
    for port in islice(_OWN, PER_PROCESS):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports of this process are taken")


def free_ports(count: int) -> list[int]:
    """So many of them, no two alike."""
    return [free_port() for _ in range(count)]


def _own_ports() -> Iterator[int]:
    """The ports of this process, round and round: a block that no other process has."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    blocks = [range(begin, begin + PER_PROCESS) for begin in range(FIRST, LAST, PER_PROCESS)]
    outside = [block for block in blocks if block.stop <= low or block.start > high]
    for block in outside or blocks:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0dynamo-router-tests-{block.start}")
        except OSError:
            claim.close()
            continue
        claim.detach()  # held until the process ends
        return cycle(block)
    raise AssertionError("no range of ports is left")


_OWN = _own_ports()  # before any test counts the files that are open
