"""Messages of a NATS connection taken straight from its socket, past its library's reader.

A message costs the library a buffer, a task that wakes, and a parser made of regular expressions.
Only what nearly all of an event plane is, `MSG SUBJECT SID [REPLY] SIZE`, goes the short way.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from ._frames import count_missing, read_frame, read_run

Take: TypeAlias = Callable[[int, bytes, bytes], bool]
"""Takes a message: subscription, subject, payload. False: nothing was done."""
Sink: TypeAlias = Callable[[list[bytes]], None]
"""Takes payloads that came together, oldest first, without their subjects. Raises nothing."""


class NatsShortcut(asyncio.Protocol):
    """Between a connection's socket and the protocol that read it: what `take` does not take, and
    all while the library still has something that came before (`is_idle`), goes on to that.

    Messages in a row of subscriptions with the same sink are one call of it, and the beginning of
    one of theirs waits here for its end.
    """

    def __init__(
        self,
        take: Take,
        sinks: dict[int, Sink],
        is_idle: Callable[[], bool],
        inner: asyncio.Protocol,
    ) -> None:
        """`sinks`, by subscription, may change at any time."""
        self._take, self._sinks, self._is_idle, self._inner = take, sinks, is_idle, inner
        self._parts: list[bytes] = []  # of a message for a sink that has not come whole
        self._missing = 0  # bytes of it, at least

    def data_received(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        elif not self._is_idle():
            self._inner.data_received(data)
            return
        taken = 0
        while taken < len(data):
            if (run := read_run(data, taken, self._sinks)) is not None:
                sink, payloads, taken = run
                sink(payloads)
                continue
            frame = read_frame(data, taken)
            if frame is None or not self._take(*frame[:3]):
                self._keep(data[taken:] if taken else data)
                return
            taken = frame[3]

    def _keep(self, rest: bytes) -> None:
        """What cannot be taken now: for a sink later on, or for the library."""
        self._missing = count_missing(rest, 0, self._sinks)
        if self._missing:
            self._parts.append(rest)
        else:
            self._inner.data_received(rest)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
