"""The frames of Dynamo's TCP request plane, as bytes and from bytes. All numbers are big-endian.

| frame | form |
|---|---|
| request | u16 length, path; u16 length, headers (JSON); u32 length, payload |
| acknowledgement | u32 length, text: empty if accepted |
| two-part | u64 header length, u64 body length, u64 checksum (0, not looked at); header, body |

A request's payload is one two-part frame: control header and body. An answer is a stream of them.
Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/request_plane`).
"""

import struct
from typing import Generic, NamedTuple, TypeVar

import msgspec

from ...base.errors import UNREADABLE, RouterError

MAX_PAYLOAD_BYTES = 32 << 20
MAX_HEADER_BYTES = 128 << 10
_MAX_ACK_BYTES = 64 << 10
_U16, _U32, _TWO_PART = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">QQQ")
T = TypeVar("T")


class FrameError(RouterError):
    """The peer sends what no frame can be: the connection cannot go on."""


class TwoPart(NamedTuple):
    """Header alone is control, body alone is data, both are a request."""

    header: bytes
    body: bytes


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    payload: bytes


def encode_two_part(header: bytes = b"", body: bytes = b"") -> bytes:
    return _TWO_PART.pack(len(header), len(body), 0) + header + body


def decode_two_part(payload: bytes) -> TwoPart:
    """A payload that is one frame and nothing else. FrameError if it is not."""
    decoder = TwoPartDecoder()
    frames = decoder.feed(payload)
    if decoder.failure is not None:
        raise decoder.failure
    if len(frames) != 1 or decoder.partial:
        raise FrameError(f"a payload of {len(payload)} bytes is not one two-part frame")
    return frames[0]


def encode_request(path: str, headers: dict[str, str], payload: bytes) -> bytes:
    """FrameError if a part is longer than its length can say, or than a worker takes."""
    name, fields = path.encode(), msgspec.json.encode(headers)
    if len(name) > 0xFFFF or len(fields) > 0xFFFF or len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a request of {len(payload)} bytes is too large for a frame")
    parts = (_U16.pack(len(name)), name, _U16.pack(len(fields)), fields, _U32.pack(len(payload)))
    return b"".join((*parts, payload))


def encode_ack(text: str = "") -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


class _Decoder(Generic[T]):
    """Frames out of a stream that is cut anywhere. It holds less than the largest frame."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.failure: FrameError | None = None
        """why the stream cannot go on, behind the frames that were good"""

    @property
    def partial(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        return len(self._kept)

    def feed(self, data: bytes) -> list[T]:
        """The frames that are complete now. If one can never be, `failure` says why."""
        if self.failure is not None:
            return []
        kept = self._kept
        kept_before = bool(kept)
        if kept_before:
            kept += data
        source = kept if kept_before else data  # mostly all of it is complete
        frames: list[T] = []
        at = 0
        try:
            while (found := self._next(source, at)) is not None:
                frame, at = found
                frames.append(frame)
        except FrameError as error:
            self.failure, at = error, len(source)
        if kept_before:
            del kept[:at]
        elif at < len(data):
            kept += data[at:]
        return frames

    def _next(self, source: bytes | bytearray, at: int) -> tuple[T, int] | None:
        """The frame that begins at `at`, and where it ends; None if it is not complete."""
        raise NotImplementedError


class TwoPartDecoder(_Decoder[TwoPart]):
    def __init__(self, max_body: int = MAX_PAYLOAD_BYTES) -> None:
        super().__init__()
        self._max_body = max_body

    def feed(self, data: bytes) -> list[TwoPart]:
        if not self._kept and self.failure is None and len(data) >= _TWO_PART.size:
            header, body, _ = _TWO_PART.unpack_from(data)
            middle = _TWO_PART.size + header
            if (  # mostly what comes is one frame
                middle + body == len(data) and header <= MAX_HEADER_BYTES and body <= self._max_body
            ):
                return [TwoPart(data[_TWO_PART.size : middle], data[middle:])]
        return super().feed(data)

    def _next(self, source: bytes | bytearray, at: int) -> tuple[TwoPart, int] | None:
        start = at + _TWO_PART.size
        if len(source) < start:
            return None
        header, body, _ = _TWO_PART.unpack_from(source, at)
        if header > MAX_HEADER_BYTES or body > self._max_body:
            raise FrameError(f"a frame of {header} and {body} bytes is larger than any may be")
        middle = start + header
        end = middle + body
        if len(source) < end:
            return None
        return TwoPart(bytes(source[start:middle]), bytes(source[middle:end])), end


class RequestDecoder(_Decoder[Request]):
    def _next(self, source: bytes | bytearray, at: int) -> tuple[Request, int] | None:
        found = _text(source, at)
        if found is None:
            return None
        path, at = found
        found = _text(source, at)
        if found is None or (length := _number(_U32, source, found[1])) is None:
            return None
        fields, at = found
        if length > MAX_PAYLOAD_BYTES:
            raise FrameError(f"a request of {length} bytes is larger than any may be")
        at += _U32.size
        if len(source) < at + length:
            return None
        try:
            headers = msgspec.json.decode(fields, type=dict[str, str])
            request = Request(path.decode(), headers, bytes(source[at : at + length]))
        except UNREADABLE as error:
            raise FrameError(f"a request's path or headers cannot be read: {error}") from None
        return request, at + length


_ACCEPTED = encode_ack()


class AckDecoder(_Decoder[str]):
    def feed(self, data: bytes) -> list[str]:
        if data == _ACCEPTED and not self._kept and self.failure is None:  # as mostly
            return [""]
        return super().feed(data)

    def _next(self, source: bytes | bytearray, at: int) -> tuple[str, int] | None:
        length = _number(_U32, source, at)
        if length is None:
            return None
        if length > _MAX_ACK_BYTES:
            raise FrameError(f"an acknowledgement of {length} bytes is larger than any may be")
        start = at + _U32.size
        if len(source) < start + length:
            return None
        return source[start : start + length].decode(errors="replace"), start + length


def _number(form: struct.Struct, source: bytes | bytearray, at: int) -> int | None:
    if len(source) < at + form.size:
        return None
    number: int = form.unpack_from(source, at)[0]
    return number


def _text(source: bytes | bytearray, at: int) -> tuple[bytes, int] | None:
    length = _number(_U16, source, at)
    if length is None or len(source) < at + _U16.size + length:
        return None
    start = at + _U16.size
    return bytes(source[start : start + length]), start + length
