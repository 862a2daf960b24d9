"""Web pages kept out of HTTP routes, by Host and Origin.

A browser sends requests for any page that is open in it, also to loopback. Such a request is known
by an Origin that is not ours; one whose page's name was made to point at us (DNS rebinding) by a
Host that is no address and no name of ours.
"""

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from .access import Access
from .callers import AccessError


def parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, an IPv4 one inside IPv6 as itself; None if it is a name."""
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


@lru_cache(256)  # asked for each request, of our own addresses
def is_loopback(host: str) -> bool:
    """Whether a host to listen on, or to reach us by, is this machine alone."""
    found = parse_ip(host)
    return host == "localhost" if found is None else found.is_loopback


class PageCheck:
    """Refuses what a web page of others sent: AccessError, counted by its reason. Of the names of
    hosts addresses are ours, localhost, this machine's own and those given."""

    def __init__(self, access: Access, names: Iterable[str] = ()) -> None:
        own = (socket.gethostname(), *names)
        self._access = access
        self._names = {name.lower() for name in own if name}

    def check_origin(self, origin: str | None, scheme: str, host: str | None) -> None:
        """`host` is the header that names the address asked."""
        if origin is not None and not is_own_origin(origin, scheme, host or ""):
            self._refuse("origin", "a web page of another origin may not ask this router")

    def check_host(self, host: str | None) -> None:
        """`host` is the header."""
        if not self.is_ours(host):
            text = "the Host is no address or name of this router: see --allowed-host"
            self._refuse("host", text)

    def is_ours(self, host: str | None) -> bool:
        name, always = _name_in(host or "")
        return always or name in self._names

    def _refuse(self, reason: str, text: str) -> None:
        self._access.refused[reason] += 1
        raise AccessError(text, reason=reason, authenticated=True)


@lru_cache(256)  # a client has the same one in all of its requests
def _name_in(host: str) -> tuple[str, bool]:
    """The name in a Host header, empty if it has none; whether nobody else can have it."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return "", False
    name = name.rstrip(".").lower()
    loopback = name == "localhost" or name.endswith(".localhost")
    return name, loopback or parse_ip(name) is not None


def is_own_origin(origin: str, scheme: str, host: str) -> bool:
    """Whether a page of this origin was served at the address it now sends a request to."""
    return origin.lower() == f"{scheme}://{host}".lower()
