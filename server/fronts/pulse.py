"""Pulse: how the parent of several processes sees that the event loop of each one runs."""

import asyncio
import mmap
import os
import struct
from pathlib import Path

from ...process.supervised import stopped, supervise

PULSE_FILE = "pulse"
BEAT_EVERY_S = 0.25

_COUNT = struct.Struct("<Q")


class Pulse:
    """Counts up while the event loop of this process runs. In shared memory: a disk that stands
    still must not look like a loop that does.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._counts = _mapped(folder)
        self._at = number * _COUNT.size
        self._task = supervise("pulse", self._beat)

    async def close(self) -> None:
        await stopped(self._task)
        self._counts.close()

    async def _beat(self) -> None:
        count = 0
        while True:
            count += 1
            _COUNT.pack_into(self._counts, self._at, count)
            await asyncio.sleep(BEAT_EVERY_S)


class Pulses:
    """The counts of all, read by their parent, which makes the file."""

    def __init__(self, folder: Path, count: int) -> None:
        path = folder / PULSE_FILE
        path.write_bytes(bytes(count * _COUNT.size))
        path.chmod(0o600)
        self._counts = _mapped(folder)

    def of(self, number: int) -> int:
        count: int = _COUNT.unpack_from(self._counts, number * _COUNT.size)[0]
        return count

    def close(self) -> None:
        self._counts.close()


class HangWatch:
    """Says from counts, looked at in even steps, whether a process hangs. Pure.

    It counts looks and not time: a machine that slept has looked at nothing meanwhile.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self.reset()

    def reset(self) -> None:
        """The process is not watched at the moment."""
        self._count, self.unchanged = -1, 0

    def look(self, count: int) -> bool:
        """Whether the count has now been the same for `looks` looks."""
        self.unchanged = self.unchanged + 1 if count == self._count else 0
        self._count = count
        return self.unchanged >= self._looks


def _mapped(folder: Path) -> mmap.mmap:
    file = os.open(folder / PULSE_FILE, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(file, 0)
    finally:
        os.close(file)
