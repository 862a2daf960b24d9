"""Addresses to listen on and to be reached by: which of them are this machine alone?"""

import ipaddress
from functools import lru_cache


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


def is_everywhere(host: str) -> bool:
    """Whether to listen on this host is to listen on all addresses."""
    return (found := parse_ip(host)) is not None and found.is_unspecified
