"""A worker's connection to us, with one answer."""

import asyncio
from typing import Protocol, cast

from structlog import get_logger

from .answer import Answer
from .faults import Fault
from .frames import TwoPartDecoder
from .messages import KILL
from .response_reader import subject_of

HANDSHAKE_TIMEOUT_S = 10.0
_MAX_HANDSHAKE_BYTES = 4096

log = get_logger(__name__)


class AnswerTable(Protocol):
    """Who waits for which answer."""

    def answer_for(self, subject: str) -> Answer | None: ...
    def on_line(self, line: "CallHomeLine", here: bool) -> None: ...


class CallHomeLine(asyncio.Protocol):
    """Finds the answer that its first frame names, and gives it the others."""

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
                self.end(cancel=subject is not None)  # it has no waiting caller, or no longer
                return
            self._answer = answer
            self._met()
        if frames and self._answer is not None:
            self._answer.on_frames(frames)
        if self._answer is None and self._decoder.partial > _MAX_HANDSHAKE_BYTES:
            self.close()  # a stranger who wants us to keep things
        if (failure := self._decoder.failure) is not None:
            log.warning("an answer's connection is closed", error=str(failure))
            if self._answer is not None:
                self._answer.fail(Fault.PROTOCOL, str(failure))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._answers.on_line(self, False)
        self._met()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.on_eof()

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

    def _met(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
