"""What a parcel may hold: hosts in it are those that an engine will connect to. Pure."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

MOST_PARCEL_BYTES = 1 << 20
HOST_KEYS = frozenset(
    ("host", "remote_host", "bootstrap_host", "bootstrap_addr", "remote_bootstrap_addr",
     "ctx_info_endpoint")
)  # fmt: skip
"""Fields of engines' parcels that name whom the decode worker connects to."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""One host, and what engines call it that were given no address."""
_MOST_DEPTH = 8


def foreign_host(parcel: bytes, address: str) -> str | None:
    """A host in a parcel that is not that of the prefill worker at `address`, HOST:PORT.

    None: there is none, or the parcel is no JSON, which only its engine reads.
    """
    try:
        parsed = msgspec.json.decode(parcel)
    except msgspec.DecodeError:
        return None
    own = _host_of(address)
    names = {own, *(_LOOPBACK if own in _LOOPBACK else ())}
    return next((host for host in _hosts(parsed, _MOST_DEPTH) if host not in names), None)


def _hosts(parsed: Any, depth: int) -> Iterator[str]:
    if depth == 0:
        yield "?"  # nested deeper than any engine's: whatever is in there
    elif isinstance(parsed, list):
        for each in parsed:
            yield from _hosts(each, depth - 1)
    elif isinstance(parsed, dict):
        for key, value in parsed.items():
            if key in HOST_KEYS:
                for each in value if isinstance(value, list) else (value,):
                    if each is not None:
                        yield _host_of(each) if isinstance(each, str) else "?"
            else:
                yield from _hosts(value, depth - 1)


def _host_of(address: str) -> str:
    text = address if "//" in address else f"//{address}"
    try:
        return urlsplit(text).hostname or ""
    except ValueError:
        return address
