"""Messages of a NATS connection taken straight from its socket, past its library's reader.

A message costs the library a buffer, a task that wakes, and a parser made of regular expressions.
Only what nearly all of an event plane is, `MSG SUBJECT SID [REPLY] SIZE`, goes the short way.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

_MSG, _END = b"MSG ", b"\r\n"
LONGEST_LINE = 4096
"""As the library has it."""
Take = Callable[[int, bytes, bytes], bool]
"""Takes a message: subscription, subject, payload. False: nothing was done."""


class Frame(NamedTuple):
    """A message; `end`: where the next one begins."""

    sid: int
    subject: bytes
    payload: bytes
    end: int


def read_frame(data: bytes, start: int) -> Frame | None:
    """The message that begins there; None if it is none, has headers, or has not come whole."""
    if not data.startswith(_MSG, start):
        return None
    line = data.find(_END, start, start + LONGEST_LINE)
    if line < 0:
        return None
    words = data[start + len(_MSG) : line].split(b" ")
    if len(words) not in (3, 4) or not all(words):
        return None
    subject, sid, size = words[0], words[1], words[-1]
    if not (sid.isdigit() and size.isdigit()):
        return None
    begin = line + len(_END)
    end = begin + int(size)
    if data[end : end + len(_END)] != _END:
        return None
    return Frame(int(sid), subject, data[begin:end], end + len(_END))


class NatsShortcut(asyncio.Protocol):
    """Between a connection's socket and the protocol that read it: what `take` does not take, and
    all while the library still has something that came before (`is_idle`), goes on to that."""

    def __init__(self, take: Take, is_idle: Callable[[], bool], inner: asyncio.Protocol) -> None:
        self._take, self._is_idle, self._inner = take, is_idle, inner

    def data_received(self, data: bytes) -> None:
        taken = 0
        if self._is_idle():
            while (frame := read_frame(data, taken)) is not None:
                if not self._take(frame.sid, frame.subject, frame.payload):
                    break
                taken = frame.end
        if taken < len(data):
            self._inner.data_received(data[taken:] if taken else data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
