"""Log lines that block no caller: text or JSON, rate-limited, written by a thread of their own.

An event loop that logs must not wait for the reader of stderr: a full pipe would stop
every stream. Lines go into a bounded queue; what finds it full is dropped and counted.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Literal, NamedTuple

import structlog

from ..base.clock import Clock, SystemClock
from ..base.urls import redact_text

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[str, ...] = ("text", "json")
MAX_WAITING_LINES = 10_000
MAX_LINE_BYTES = 16 << 10
"""A longer line is cut: a peer's words may stand in it."""
MAX_VALUE_CHARS = 4096
"""A longer value is cut before anything is done with it: to escape 1 MB takes half a second. Of a
traceback the end is kept, which has the error."""
BURST = 20
"""Lines of one event in a period before the rest of it are only counted."""
PERIOD_S = 1.0
MAX_EVENTS = 1_000
"""Different events whose rate is watched; with more, the longest unheard is forgotten."""
CLOSE_TIMEOUT_S = 1.0
UNLIMITED = "unlimited"
"""A key of an event of which no line is left out for coming too often; it is not printed."""
_CUT = " [cut]"
_MOST_TRACEBACK_CHARS = 3 * MAX_VALUE_CHARS
_LONGEST_URL = 1024
"""Characters behind a cut that are looked at for the end of a URL that has credentials."""
_LONGEST_ESCAPE = 12
"""Bytes that a character may take in JSON."""


class LineWriter:
    """Writes lines to a file descriptor from a thread; `write` never blocks.

    `dropped` counts the lines for which there was no room because the reader is slow. The
    descriptor stays the caller's. With an `alarm`, the thread calls it at the time that
    it returned last, for the next one; `wake` has it called at once.
    """

    def __init__(self, descriptor: int, *, max_lines: int = MAX_WAITING_LINES) -> None:
        self._descriptor = descriptor
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._closing = False
        self.dropped = 0
        self.alarm: Callable[[], float | None] | None = None
        """does what is due; the seconds until more is, None: nothing is"""
        self._asked = False
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, given without its newline. Credentials of URLs in it are hidden."""
        data = redact_text(line).encode("utf-8", "backslashreplace")
        if len(data) > MAX_LINE_BYTES:  # not in the middle of a character
            data = (data[:MAX_LINE_BYTES].decode("utf-8", "ignore") + _CUT).encode()
        with self._wake:
            if self._closing or len(self._lines) >= self._max_lines:
                self.dropped += 1
                return
            self._lines.append(data + b"\n")
            self._wake.notify()

    def wake(self) -> None:
        """Have the alarm asked."""
        with self._wake:
            self._asked = True
            self._wake.notify()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what is queued, waiting at most `timeout_s` for a reader that is slow. Idempotent.

        A thread that a full pipe holds is left behind: it is a daemon and ends with the process.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        due = inf
        while True:
            with self._wake:
                if not (self._lines or self._closing or self._asked):
                    self._wake.wait(None if due == inf else max(0.0, due - monotonic()))
                asked, self._asked = self._asked or monotonic() >= due, False
                if self._closing and not self._lines:
                    return
                data = self._lines.popleft() if self._lines else b""
            if asked and self.alarm is not None:
                wait = self.alarm()  # writes lines, so not under the lock
                due = inf if wait is None else monotonic() + wait
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:  # there is no other way to report that the log's reader is gone
                with self._wake:
                    self.dropped += 1


class LeftOut(NamedTuple):
    """Lines of one event that were not written."""

    level: str
    event: str
    lines: int


@dataclass
class _Rate:
    since: float
    lines: int = 0
    suppressed: int = 0


class RateLimit:
    """A structlog processor: of each event at most `burst` lines in `period_s`.

    What is left out is counted in `suppressed`, and reported by the event's next line
    (`suppressed=N`), or by `overdue` if none comes. `on_left_out` is called when there is something
    to report. An event is its text and level: values are no part of it.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        burst: int = BURST,
        period_s: float = PERIOD_S,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self._clock = clock
        self._burst, self._period_s, self._max_events = burst, period_s, max_events
        self._rates: dict[tuple[str, str], _Rate] = {}
        self._lock = threading.Lock()
        self.suppressed = 0
        self.on_left_out: Callable[[], None] = lambda: None

    def __call__(
        self, logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if event.pop(UNLIMITED, False):
            return event
        key = (method, str(event.get("event", ""))[:200])
        now = self._clock.now()
        with self._lock:
            rate = self._rates.pop(key, None) or _Rate(now)
            self._rates[key] = rate  # the latest logged stands last
            while len(self._rates) > self._max_events:
                del self._rates[next(iter(self._rates))]  # `suppressed` has counted it
            if now - rate.since >= self._period_s:
                left_out = rate.suppressed
                self._rates[key] = _Rate(now, 1)
                if left_out:
                    event["suppressed"] = left_out
                return event
            if rate.lines < self._burst:
                rate.lines += 1
                return event
            rate.suppressed += 1
            self.suppressed += 1
        if rate.suppressed == 1:
            self.on_left_out()
        raise structlog.DropEvent

    def overdue(self, *, everything: bool = False) -> tuple[list[LeftOut], float | None]:
        """What was left out and not reported in its period, or at all; the seconds until
        there may be more of that, None: there is nothing."""
        now = self._clock.now()
        unreported, waits = [], []
        with self._lock:
            for (level, event), rate in self._rates.items():
                left = rate.since + self._period_s - now
                if rate.suppressed and (everything or left <= 0):
                    unreported.append(LeftOut(level, event, rate.suppressed))
                    rate.suppressed = 0
                elif rate.suppressed:
                    waits.append(left)
        return unreported, min(waits, default=None)


def escaped(text: str) -> str:
    """The text with everything that is no character to be seen, line breaks and marks of direction
    among it, as an escape: what a peer says is one line, and says nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _cut_values(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor: no value is longer than MAX_VALUE_CHARS, whatever it is."""
    for name, value in event.items():
        if isinstance(value, int | float | None):
            continue
        text = value if isinstance(value, str) else repr(value)
        if name == "exception":
            if len(text) > _MOST_TRACEBACK_CHARS:
                event[name] = f"[cut] {text[-_MOST_TRACEBACK_CHARS:]}"
        elif len(text) > MAX_VALUE_CHARS:  # without half of a URL, in which no end of a password is
            text = redact_text(text[: MAX_VALUE_CHARS + _LONGEST_URL])
            event[name] = text[:MAX_VALUE_CHARS] + _CUT
    return event


_to_json = structlog.processors.JSONRenderer(default=str)


def _json_line(logger: Any, method: str, event: MutableMapping[str, Any]) -> str | bytes:
    """Renders a line that is JSON though values of it are too long for it with their escapes."""
    line = _to_json(logger, method, event)
    if len(line) <= MAX_LINE_BYTES:
        return line
    share = MAX_LINE_BYTES // (_LONGEST_ESCAPE * (len(event) + 1))
    for name, value in event.items():
        if not isinstance(value, int | float | None) and len(text := str(value)) > share:
            event[name] = text[:share] + _CUT
    return _to_json(logger, method, event)


def _escape_values(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor of logs in text: in JSON such characters are escaped anyway. The lines
    of a traceback are set in, so that none of them passes for a line of the log."""
    for name, value in event.items():
        if not isinstance(value, int | float | None):
            text = value if isinstance(value, str) else repr(value)
            if name == "exception":
                event[name] = "\n".join(f"  {escaped(line)}" for line in text.split("\n"))
            elif not text.isprintable():
                event[name] = escaped(text)
    return event


class _LineLogger:
    """What structlog hands its rendered lines to."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def msg(self, line: str) -> None:
        self._writer.write(line)

    debug = info = warning = warn = error = critical = fatal = exception = log = msg


class _LineHandler(logging.Handler):
    """Sends the standard library's log (asyncio, aiohttp, grpc) through structlog: one format."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


@dataclass(frozen=True)
class LogOutput:
    """Where the process's log goes, and what was left out of it."""

    writer: LineWriter
    rate: RateLimit
    descriptor: int = 2

    def change(self, level: str, log_format: LogFormat) -> None:
        """Log from this level on, in this format, from now on."""
        number = logging.getLevelNamesMapping()[level.upper()]
        console = structlog.dev.ConsoleRenderer(colors=os.isatty(self.descriptor))
        rendering: list[Any] = [_escape_values, console]
        if log_format == "json":
            rendering = [_json_line]
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                self.rate,
                structlog.processors.TimeStamper(fmt="iso", utc=log_format == "json"),
                structlog.processors.format_exc_info,
                _cut_values,
                *rendering,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(number),
            logger_factory=lambda *_: _LineLogger(self.writer),
        )
        root = logging.getLogger()
        root.handlers[:] = [_LineHandler()]
        root.setLevel(number)

    @property
    def lost(self) -> int:
        """Lines that were not written: too many of one event, or a slow reader."""
        return self.rate.suppressed + self.writer.dropped

    def report_left_out(self, *, everything: bool = False) -> float | None:
        """Write a line for each event of which lines were left out and not reported, if its period
        is over; the seconds until the next one is."""
        left_out, wait = self.rate.overdue(everything=everything)
        for level, event, lines in left_out:
            fields = {UNLIMITED: True, "of": event, "suppressed": lines}
            getattr(structlog.get_logger(), level)("log lines left out", **fields)
        return wait

    def close(self) -> None:
        """Write what is queued, for a bounded time, and log no more."""
        self.report_left_out(everything=True)
        logging.getLogger().handlers.clear()
        structlog.reset_defaults()
        self.writer.close()


def log_to_stderr(
    level: str, log_format: LogFormat = "text", *, descriptor: int = 2, clock: Clock | None = None
) -> LogOutput:
    """Send everything logged in this process to a descriptor; `level` is a name ("info")."""
    output = LogOutput(LineWriter(descriptor), RateLimit(clock or SystemClock()), descriptor)
    output.change(level, log_format)
    output.writer.alarm = output.report_left_out
    output.rate.on_left_out = output.writer.wake
    return output
