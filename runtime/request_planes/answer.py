"""One answer, from the call-home connection to its reader."""

import asyncio
from collections import deque
from typing import Protocol, cast

from structlog import get_logger

from .faults import Fault
from .frames import TwoPart, TwoPartDecoder
from .messages import KILL
from .response_reader import Ended, Event, ResponseReader, subject_of

HANDSHAKE_TIMEOUT_S = 10.0
_MAX_HANDSHAKE_BYTES = 4096
WAITING_PARTS = 64
"""Parts of an answer that wait for a slow reader before the worker has to."""

log = get_logger(__name__)


class AnswerTable(Protocol):
    """Who waits for which answer."""

    def answer_for(self, subject: str) -> "Answer | None": ...
    def on_line(self, line: "CallHomeLine", here: bool) -> None: ...


class AnswerSource(Protocol):
    """What an answer's frames come over."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def end(self, *, cancel: bool) -> None: ...


class Answer:
    """One answer: what has come and is not read yet."""

    def __init__(self, codec: str) -> None:
        self._reader = ResponseReader(codec)
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._home: AnswerSource | None = None
        self.begun = asyncio.Event()
        """the worker has come with it"""
        self.promised = asyncio.Event()
        """its prologue is there, or its end"""

    def attach(self, home: AnswerSource, *, begun: bool = True) -> bool:
        """Take what comes on this connection; False if there is one already.

        `begun`: that it is there is a sign of life. Else the first frame is.
        """
        if self._home is not None:
            return False
        self._home = home
        if begun:
            self.begun.set()
        return True

    def on_frames(self, frames: list[TwoPart]) -> None:
        for frame in frames:
            self._events.extend(self._reader.on_frame(frame))
        self._stir()
        if self._home is not None and len(self._events) > WAITING_PARTS:
            self._home.pause()

    def on_eof(self) -> None:
        self._events.extend(self._reader.on_eof())
        self._stir()

    def on_event(self, event: Event) -> None:
        """End it from our side."""
        self._events.append(event)
        self._stir()

    def on_worker_lost(self) -> None:
        """The connection that brought the request is gone: without a call-home none will come."""
        if self._home is None:
            self.on_event(Ended(Fault.BROKEN, "the worker went before it answered"))

    async def next(self) -> Event:
        while not self._events:
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        if self._home is not None and len(self._events) < WAITING_PARTS // 2:
            self._home.resume()
        return event

    def _stir(self) -> None:
        for event in (self._changed, self.begun, self.promised):
            event.set()

    def close(self) -> None:
        if self._home is not None:
            self._home.end(cancel=not self._reader.ended)


class CallHomeLine(asyncio.Protocol):
    """A worker's connection to us with one answer."""

    def __init__(self, answers: AnswerTable) -> None:
        self._answers = answers
        self._decoder = TwoPartDecoder()
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._answers.on_line(self, True)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HANDSHAKE_TIMEOUT_S, self.close)

    def data_received(self, data: bytes) -> None:
        frames = self._decoder.feed(data)
        if frames and self._answer is None:
            subject = subject_of(frames.pop(0))
            answer = self._answers.answer_for(subject) if subject is not None else None
            if answer is None or not answer.attach(self):
                self.end(cancel=subject is not None)  # nobody waits for it, or not any more
                return
            self._answer = answer
            if self._deadline is not None:
                self._deadline.cancel()
        if frames and self._answer is not None:
            self._answer.on_frames(frames)
        if self._answer is None and self._decoder.partial > _MAX_HANDSHAKE_BYTES:
            self.close()  # a stranger who wants us to keep things
        if (failure := self._decoder.failure) is not None:
            log.warning("an answer's connection is closed", error=str(failure))
            if self._answer is not None:
                self._answer.on_event(Ended(Fault.PROTOCOL, str(failure)))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._answers.on_line(self, False)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._answer is not None:
            self._answer.on_eof()

    def pause(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_reading() and not transport.is_closing():
            transport.resume_reading()

    def end(self, *, cancel: bool) -> None:
        """Close it first, as the worker expects; with a word if the answer is not complete."""
        if self._transport is not None and not self._transport.is_closing():
            if cancel:
                self._transport.write(KILL)
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
