"""Whom the work of a task is charged to: a named caller, or the address that its call came from."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

_account: ContextVar[str] = ContextVar("account", default="")


current_account: Callable[[], str] = _account.get
"""Who the call that this task serves is charged to: its caller, or the address it came from."""
set_account: Callable[[str], object] = _account.set
"""From now on what this task uses is charged to this account."""


@lru_cache(4096)
def network_of(host: str) -> str:
    """Who counts as one: an IPv4 address, also one in IPv6's clothes; the /64 of an IPv6 address,
    of which its owner has them all; anything else as it is."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


@lru_cache(4096)
def account_of(peer: str) -> str:
    """The network of what gRPC calls a peer: ipv4:HOST:PORT, ipv6:[HOST]:PORT and the like."""
    scheme, _, address = peer.partition(":")
    return network_of(unquote(address).rpartition(":")[0]) if scheme.startswith("ip") else peer
