"""One answer, from the carrier that sent the request to the reader of its parts.

No task and no future: what comes over the connections is passed on as it comes.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...process.lenient_timer import LenientTimer
from .faults import Fault, fault_of_refusal
from .frames import TwoPart
from .response_reader import Ended, Event, PartDecoder, ResponseReader


@dataclass(frozen=True, slots=True)
class AnswerTimeouts:
    """How long a caller waits for each sign of life of a worker, in seconds."""

    ack_s: float = 5.0
    call_home_s: float = 10.0
    """a worker that cannot read a request accepts it and is silent: hence a limit of our own"""
    prologue_s: float = 60.0
    """a worker may come home before its engine has taken the request: that may take longer"""


class AnswerListener(Protocol):
    """Who wants an answer. After `on_end`, or once it closed the answer, it is not called."""

    def on_part(self, part: Any) -> None: ...
    def on_end(self, fault: Fault | None, text: str) -> None:
        """`fault` is None if the answer is complete. The text does not say of which worker."""
        ...


class _NoListener:
    """The listener of an answer that is over."""

    def on_part(self, part: Any) -> None:
        pass

    def on_end(self, fault: Fault | None, text: str) -> None:
        pass


_NO_LISTENER = _NoListener()


class AnswerSource(Protocol):
    """What an answer's frames come over."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def end(self, *, cancel: bool) -> None: ...


class AckLine(Protocol):
    """What a request went away over, where an acknowledgement comes back by itself."""

    def forget(self, answer: "Answer") -> None:
        """It need not learn that the connection is lost."""
        ...

    def close(self) -> None: ...


class Answer:
    """The answer to one request, until it ends or is closed."""

    def __init__(
        self,
        codec: str,
        listener: AnswerListener,
        on_over: Callable[[], None],
        timeouts: AnswerTimeouts,
        decoders: Mapping[str, PartDecoder] | None = None,
    ) -> None:
        """`on_over` is called once: there will be nothing more of it."""
        self._reader = ResponseReader(codec, decoders)
        self._on_over = on_over
        self._listener: AnswerListener = listener
        self._timeouts = timeouts
        self._home: AnswerSource | None = None
        self._line: AckLine | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: LenientTimer | None = None
        self._acknowledged = self._promised = False
        self.over = False
        self.sending: asyncio.Task[None] | None = None
        """what brings the request away, if that takes a while"""

    # The side of who brings the request away

    def on_sent(self, line: AckLine) -> None:
        """It went away over a line that will bring the acknowledgement."""
        self._line = line
        self._expect(self._timeouts.ack_s)

    def on_ack(self, text: str) -> None:
        """The worker's acknowledgement: empty, or why it refuses."""
        self._acknowledged = True
        if self.over or self._promised:
            self._expect_nothing()
        elif text:
            self.fail(fault_of_refusal(text), text)
        else:
            came_home = self._home is not None
            self._expect(self._timeouts.prologue_s if came_home else self._timeouts.call_home_s)

    def on_line_lost(self) -> None:
        """The connection that brought the request is gone: without a call-home none will come."""
        if self._home is None and not self.over:
            self._acknowledged = True
            self.fail(Fault.BROKEN, "the worker went before it answered")
        else:
            self.on_ack("")

    def fail(self, fault: Fault, text: str) -> None:
        """End it from our side."""
        self._on_event(Ended(fault, text))

    # The side of what it comes over

    def attach(self, home: AnswerSource) -> bool:
        """Take what comes on this connection; False if there is one already."""
        if self._home is not None or self.over:
            return False
        self._home = home
        if self._line is not None:
            self._line.forget(self)
        if self._acknowledged:
            self._expect(self._timeouts.prologue_s)
        return True

    def on_frames(self, frames: list[TwoPart]) -> None:
        for frame in frames:
            if self.over:
                return
            if not self._promised:
                self._promised = True
                if self._acknowledged:
                    self._expect_nothing()
            for event in self._reader.on_frame(frame):
                self._on_event(event)

    def on_eof(self) -> None:
        for event in self._reader.on_eof():
            self._on_event(event)

    # The listener's side

    def pause(self) -> None:
        """Let the worker wait."""
        if self._home is not None:
            self._home.pause()

    def resume(self) -> None:
        if self._home is not None and not self.over:
            self._home.resume()

    def close(self) -> None:
        """No more of it is wanted. Idempotent."""
        if self.over:
            return
        self.over = True
        self._on_over()
        self._listener = _NO_LISTENER  # no circle is left to the collector
        if self.sending is not None and self.sending is not asyncio.current_task():
            self.sending.cancel()
        if self._line is not None:
            self._line.forget(self)
        if self._acknowledged or self._line is None:
            self._expect_nothing()
        if self._home is not None:
            self._home.end(cancel=not self._reader.ended)

    def _on_event(self, event: Event) -> None:
        if self.over:
            return
        if not isinstance(event, Ended):
            self._listener.on_part(event.value)
            return
        listener = self._listener
        self.close()
        listener.on_end(event.fault, event.text)

    # What has to come in time

    def _expect(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = LenientTimer(seconds, self._on_silence, self._loop)
        else:
            self._timer.put_off(seconds)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_silence(self) -> None:
        self._timer = None
        if self._acknowledged:
            self.fail(Fault.SILENT, "the worker accepted the request and did not answer")
        else:
            self.fail(Fault.SILENT, "no acknowledgement in time")
            if self._line is not None:
                self._line.close()  # acknowledgements have no names: the next would be misread
