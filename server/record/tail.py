"""RecordTail: the newest lines of a record in memory, while they have a reader over HTTP."""

import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

MAX_LINES = 8192
MAX_BYTES = 8 << 20
"""Of all lines that are kept; the oldest go."""
READERS_GONE_S = 900.0
"""Without a reader for so long, nothing is kept any more."""


class TailLine(NamedTuple):
    """A line with its number and the model whose requests its file has."""

    number: int
    model: str
    line: bytes


class RecordTail:
    """Kept from the first `since` on: who reads every few seconds misses nothing, and a record that
    is only written costs no memory. Appended to by the record's thread, read by the event loop."""

    def __init__(self) -> None:
        self.process = secrets.token_hex(4)
        """another one after a restart, whose numbers begin anew"""
        self._lock = threading.Lock()
        self._lines: deque[TailLine] = deque()
        self._bytes = 0
        self._last = 0
        self._read_at: float | None = None

    def append(self, model: str, lines: Sequence[bytes]) -> None:
        """Keep lines, newlines included, if they have a reader."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at > READERS_GONE_S:
                self._read_at = None
                self._last += len(lines)
                self._lines.clear()
                self._bytes = 0
                return
            for line in lines:
                self._last += 1
                self._lines.append(TailLine(self._last, model, line))
                self._bytes += len(line)
            while self._bytes > MAX_BYTES or len(self._lines) > MAX_LINES:
                self._bytes -= len(self._lines.popleft().line)

    def since(self, number: int, most_bytes: int) -> tuple[list[TailLine], int, int]:
        """(the oldest lines after this number, one at least where there is any, up to a size; how
        many after it are gone; the newest line's number)."""
        with self._lock:
            self._read_at = time.monotonic()
            first = self._lines[0].number if self._lines else self._last + 1
            missed = max(0, first - 1 - number)
            found: list[TailLine] = []
            size = 0
            for line in self._lines:
                if line.number <= number:
                    continue
                size += len(line.line)
                if found and size > most_bytes:
                    break
                found.append(line)
            return found, missed, self._last
