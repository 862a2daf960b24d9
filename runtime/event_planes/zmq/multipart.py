"""A message of the event plane over ZMQ: four frames. Pure.

| frame | what it is |
|---|---|
| 0 | the topic, by which sockets filter |
| 1 | the publisher's id, 8 bytes, big-endian |
| 2 | the message's number, 8 bytes, big-endian |
| 3 | version (1 byte: 1), length (4 bytes, big-endian), and as many bytes of payload |

Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/dynamo_event_channels.json`).
"""

import struct
from collections.abc import Sequence

VERSION = 1
FRAMES = 4
MOST_BYTES = 16 << 20
"""Of a payload. A publisher of a longer one is ignored until it is found under a new key."""
_NUMBER = struct.Struct(">Q")
_HEADER = struct.Struct(">BI")


class MultipartError(ValueError):
    """It is no message of the event plane."""


def encode_multipart(topic: str, publisher_id: int, sequence: int, payload: bytes) -> list[bytes]:
    """ValueError for a payload that is too long, or a number that fits no 64 bits."""
    if len(payload) > MOST_BYTES:
        raise ValueError(f"a message of {len(payload)} bytes is longer than {MOST_BYTES}")
    try:
        numbers = _NUMBER.pack(publisher_id), _NUMBER.pack(sequence)
    except struct.error as error:
        raise ValueError(str(error)) from None
    return [topic.encode(), *numbers, _HEADER.pack(VERSION, len(payload)) + payload]


def decode_multipart(frames: Sequence[bytes], topic: str, publisher_id: int) -> bytes:
    """The payload of a message on this topic by this publisher; MultipartError if it is none."""
    if len(frames) != FRAMES:
        raise MultipartError(f"{len(frames)} frames are not {FRAMES}")
    name, publisher, number, body = frames
    if name != topic.encode():
        raise MultipartError(f"another topic: {name[:64]!r}")
    if len(publisher) != _NUMBER.size or len(number) != _NUMBER.size:
        raise MultipartError("a number does not have 8 bytes")
    if _NUMBER.unpack(publisher)[0] != publisher_id:
        raise MultipartError("another publisher than that of the channel")
    if len(body) < _HEADER.size:
        raise MultipartError("the header is cut short")
    version, length = _HEADER.unpack_from(body)
    if version != VERSION:
        raise MultipartError(f"version {version} is not {VERSION}")
    if length != len(body) - _HEADER.size:
        raise MultipartError(f"{len(body) - _HEADER.size} bytes, but in the header {length}")
    return body[_HEADER.size :]
