"""HTTP/2 frames written by hand, for a peer that keeps no rule it does not want to keep."""

from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 6, 7, 8, 9),
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, HEADER_TABLE_SIZE = 4, 3, 1
OK_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """One frame as bytes."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def parse(data: bytes) -> Iterator[Frame]:
    """The whole frames in what was sent, a client's preface left out."""
    at = len(PREFACE) if data.startswith(PREFACE) else 0
    while at + 9 <= len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        stream = int.from_bytes(data[at + 5 : at + 9], "big")
        yield Frame(data[at + 3], data[at + 4], stream, data[at + 9 : at + 9 + size])
        at += 9 + size


def settings(*pairs: tuple[int, int]) -> bytes:
    payload = b"".join(k.to_bytes(2, "big") + v.to_bytes(4, "big") for k, v in pairs)
    return frame(SETTINGS, 0, payload)


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, stream, size.to_bytes(4, "big"))


def block(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """A header block without Huffman code, and without a dynamic table."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)


def headers(
    stream: int,
    pairs: tuple[tuple[bytes, bytes], ...] = OK_HEADERS,
    *,
    end: bool = False,
    ends_headers: bool = True,
) -> bytes:
    flags = (END_STREAM if end else 0) | (END_HEADERS if ends_headers else 0)
    return frame(HEADERS, stream, block(pairs), flags)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, stream, payload, END_STREAM if end else 0)


def message(payload: bytes, compressed: bool = False) -> bytes:
    """A message as gRPC frames it."""
    return bytes((compressed,)) + len(payload).to_bytes(4, "big") + payload


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    digits = bytearray((127,))
    while size >= 128:
        digits.append(size & 127 | 128)
        size >>= 7
    digits.append(size)
    return bytes(digits) + text
