"""How gRPC writes what is not a message into HTTP/2 headers: time-outs, texts, metadata; and what
it calls peers. Pure.

Written from gRPC's description of its protocol over HTTP/2.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterable
from typing import TypeAlias
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

from ...base.errors import PUSHBACK_KEY

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
Header: TypeAlias = tuple[bytes, bytes]

_UNITS = {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0, b"M": 60.0, b"H": 3600.0}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([numSMH])")
_MOST = 10**8
"""A time-out has at most eight digits."""
_PLAIN = "".join(map(chr, (c for c in range(0x20, 0x7F) if c != ord("%"))))
_KEY = re.compile(r"[0-9a-z_.\-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
_MOST_PARTS = 64
"""Of a -bin value, which are of one key each: of commas alone it would be thousands."""
_OF_THE_PROTOCOL = frozenset(
    (b"te", b"content-type", b"user-agent", b"grpc-timeout", b"grpc-status", b"grpc-message")
    + (b"grpc-encoding", b"grpc-accept-encoding", b"accept-encoding")
)


def encode_timeout(seconds: float) -> bytes:
    """A value of grpc-timeout: the finest unit whose eight digits suffice, rounded up."""
    for unit, size in ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0), (b"H", 1 / 3600)):
        amount = math.ceil(max(seconds, 0.0) * size)
        if amount < _MOST:
            return b"%d%s" % (amount, unit)
    return b"%d%s" % (_MOST - 1, b"H")


def decode_timeout(value: bytes) -> float | None:
    """Seconds; None if that is no time-out."""
    found = _TIMEOUT.fullmatch(value)
    return None if found is None else int(found.group(1)) * _UNITS[found.group(2)]


def encode_message(text: str) -> bytes:
    """A value of grpc-message: UTF-8, with a percent sign before what is not printable ASCII."""
    return quote_from_bytes(text.encode("utf-8", "replace"), safe=_PLAIN).encode()


def decode_message(value: bytes) -> str:
    """The text of a grpc-message; what is coded wrong stays as it is."""
    return unquote_to_bytes(value).decode("utf-8", "replace")


def encode_metadata(metadata: Metadata) -> tuple[Header, ...]:
    """Metadata as headers. ValueError if a key or a value cannot be sent."""
    headers = []
    for key, value in metadata:
        name = key.lower()
        reserved = name.startswith("grpc-") and name != PUSHBACK_KEY
        if reserved or not _KEY.fullmatch(name):
            raise ValueError(f"{key!r} is no key of metadata")
        if name.endswith("-bin"):
            data = value if isinstance(value, bytes) else value.encode()
            headers.append((name.encode(), base64.b64encode(data).rstrip(b"=")))
            continue
        text = value if isinstance(value, str) else value.decode("latin-1")
        if not _VALUE.fullmatch(text):
            raise ValueError(f"the value of {key!r} is not printable ASCII")
        headers.append((name.encode(), text.encode()))
    return tuple(headers)


def decode_metadata(headers: Iterable[Header]) -> tuple[tuple[str, str | bytes], ...]:
    """What of headers is the application's. A -bin value that is no base64, or has too many parts,
    stays as it is."""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name.startswith(b":") or name in _OF_THE_PROTOCOL:
            continue
        key = name.decode("latin-1")
        if key.endswith("-bin") and value.count(b",") < _MOST_PARTS:
            metadata += ((key, _unpacked(part)) for part in value.split(b","))
        else:
            plain = value if key.endswith("-bin") else value.decode("latin-1")
            metadata.append((key, plain))
    return tuple(metadata)


def peer_name(host: str, port: int) -> str:
    """What gRPC calls an address: ipv4:HOST:PORT or ipv6:%5BHOST%5D:PORT."""
    return f"ipv6:%5B{quote(host)}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _unpacked(value: bytes) -> bytes:
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return value
