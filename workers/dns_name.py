"""The addresses of a DNS name, and which of them are workers, decided without I/O."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from .worker_url import WorkerName

ANSWERS_TO_LOSE = 2
"""Answers in a row that an address must be missing from: some servers answer with a part."""

Resolve = Callable[[WorkerName], Awaitable[Collection[str]]]
"""Looks a name up: its addresses. OSError or TimeoutError if it cannot be."""


async def resolve(name: WorkerName) -> list[str]:
    """The IP addresses that the system has for a name now, in order, of the families it wants.

    OSError if it has none, or does not answer.
    """
    family = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}.get(name.family or "", 0)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name.host, name.port, family=family, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{name.host!r} is no name of a host") from None
    ips = list(dict.fromkeys((kind, str(address[0])) for kind, _, _, _, address in found))
    if name.family is None and any(kind == socket.AF_INET for kind, _ in ips):
        ips = [(kind, ip) for kind, ip in ips if kind == socket.AF_INET]
    return sorted(ip for _, ip in ips)


class AddressChange(NamedTuple):
    """What an answer asks for."""

    come: list[str]
    gone: list[str]


class NameState:
    """Which addresses of a name count. Pure.

    A new address counts at once; one that is missing counts until it is missing from
    ANSWERS_TO_LOSE answers in a row. An answer without any address says nothing, like no answer:
    what is really gone is found out by probes, and a failure of DNS must not take a fleet away.
    """

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}  # answers in a row that an address was missing from

    @property
    def addresses(self) -> Collection[str]:
        return self._missing.keys()

    def on_answer(self, addresses: Collection[str]) -> AddressChange:
        """The name was looked up, and has these addresses."""
        come, gone = [], []
        if not addresses:
            return AddressChange([], [])
        for address in addresses:
            if address not in self._missing:
                come.append(address)
            self._missing[address] = 0
        for address in self._missing.keys() - set(addresses):
            self._missing[address] += 1
            if self._missing[address] >= ANSWERS_TO_LOSE:
                del self._missing[address]
                gone.append(address)
        return AddressChange(come, sorted(gone))
