"""Request bodies that come packed (Content-Encoding: gzip, deflate), unpacked within bounds."""

import zlib
from collections.abc import Callable, Iterator, Mapping

from ...base.errors import CapacityError
from ...process.off_loop import OffLoop
from .errors import HttpError

PIECE = 64 << 10
"""Bytes unpacked at a time; a body that has more is unpacked off the event loop."""
SECONDS_PER_BYTE = 1e-8
MOST_MEMBERS = 512
"""Of gzip: members without content cost some 5 us each, and count as no bytes."""
_GZIP, _ZLIB, _RAW = 31, 15, -15
"""Window sizes as zlib takes them, each with the header that is expected."""
_CODINGS = ("gzip", "x-gzip", "deflate")
_NO_CODING = ("", "identity")


def coding_of(headers: Mapping[str, str]) -> str:
    """How the body is packed, empty if it is not; HttpError 415 for what is not read here."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding in _NO_CODING:
        return ""
    if coding not in _CODINGS:
        text = f"the Content-Encoding {coding:.40} is none of gzip, deflate"
        raise HttpError(415, text, {"accept-encoding": "gzip, deflate"})
    return coding


async def unpacked(
    body: bytes, coding: str, most: int, count: Callable[[int], None], off_loop: OffLoop | None
) -> bytes:
    """What a packed body holds. HttpError 413 if that is more than `most` bytes, which is known
    before any are kept; 400 if it is not packed so. `count` is called with their number, and may
    raise."""
    short = _within(body, coding, PIECE)
    if short is None and off_loop is not None:
        try:
            size = await off_loop.run(lambda: _size(body, coding, most))
            count(size)
            seconds = size * SECONDS_PER_BYTE
            return await off_loop.run(
                lambda: b"".join(_pieces(body, coding)), size=size, seconds=seconds
            )
        except CapacityError as error:
            raise HttpError(429, str(error)) from None
    if short is None:
        _size(body, coding, most)
        short = b"".join(_pieces(body, coding))
    if len(short) > most:
        raise _too_long(most)
    count(len(short))
    return short


def _within(body: bytes, coding: str, most: int) -> bytes | None:
    """All that it holds, or None if that is more."""
    kept = b""
    for piece in _pieces(body, coding):
        kept += piece
        if len(kept) > most:
            return None
    return kept


def _size(body: bytes, coding: str, most: int) -> int:
    size = 0
    for piece in _pieces(body, coding):
        size += len(piece)
        if size > most:
            raise _too_long(most)
    return size


def _pieces(body: bytes, coding: str) -> Iterator[bytes]:
    """What it holds, PIECE bytes at a time: zlib copies what it has not read yet, so it is given
    as much at a time, too. Gzip may have several members, one behind another (RFC 1952, 2.2)."""
    window = _window(body, coding)
    engine, members = zlib.decompressobj(window), 1
    try:
        for at in range(0, len(body), PIECE):
            left = body[at : at + PIECE]
            while True:
                if engine.eof:
                    if not left:
                        break
                    members += 1
                    if window != _GZIP or members > MOST_MEMBERS:
                        raise HttpError(400, _follows(window, coding))
                    engine = zlib.decompressobj(window)
                piece = engine.decompress(left, PIECE)
                left = engine.unused_data if engine.eof else engine.unconsumed_tail
                if piece:
                    yield piece
                elif not left:
                    break
    except zlib.error as error:
        raise HttpError(400, f"the body is not packed by {coding}: {error}") from None
    if not engine.eof:
        raise HttpError(400, f"the body that is packed by {coding} ends too early")


def _follows(window: int, coding: str) -> str:
    if window == _GZIP:
        return f"the body that is packed by {coding} has more than {MOST_MEMBERS} members"
    return f"something follows the body that is packed by {coding}"


def _window(body: bytes, coding: str) -> int:
    """Of deflate some clients leave the header away that the standard asks for."""
    if coding != "deflate":
        return _GZIP
    head = int.from_bytes(body[:2], "big")
    return _ZLIB if head >> 8 & 0x0F == zlib.DEFLATED and head % 31 == 0 else _RAW


def _too_long(most: int) -> HttpError:
    return HttpError(413, f"the body is longer than {most} bytes")
