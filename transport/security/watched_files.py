"""Files that are read again when they change: certificates, keys, tokens. Polled, without a thread.

Kubernetes and most tools replace such files behind our back; a bad new one must not end a service
that has a good old one.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from ...base.clock import Clock
from ...base.errors import ConfigError
from ...process.supervised import stopped

POLL_S = 1.0
T = TypeVar("T")

log = structlog.get_logger(__name__)


class FileStamp(NamedTuple):
    """Distinguishes one version of a file from another, links followed."""

    mtime_ns: int
    size: int
    inode: int


Stat = Callable[[str], FileStamp | None]


def stamp_of(path: str) -> FileStamp | None:
    """The stamp of a file as it is now; None if it cannot be had."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileStamp(found.st_mtime_ns, found.st_size, found.st_ino)


class WatchedFiles(Generic[T]):
    """A value that is read from files, and read again once one of them changed.

    `read` raises ConfigError if the files cannot be used: from the constructor that is passed on;
    later the value stays what it was, and the error is logged, once for each change, and kept in
    `error`. `listeners` are called with each new value.
    """

    def __init__(
        self,
        what: str,
        paths: Iterable[str],
        read: Callable[[], T],
        *,
        stat: Stat = stamp_of,
    ) -> None:
        self.what = what
        self._paths = tuple(paths)
        self._read, self._stat = read, stat
        self._stamps = self._look()
        self.value = read()
        self.error: str | None = None
        self.reloads = 0
        self.failures = 0
        self.listeners: list[Callable[[T], None]] = []

    def poll(self) -> bool:
        """Read the files again if one changed since; whether there is a new value."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        try:
            value = self._read()
        except ConfigError as error:
            self._stamps = stamps
            self.failures += 1
            self.error = str(error)
            log.error(
                f"the new {self.what} is not valid, the old one stays in use", error=self.error
            )
            return False
        if self._look() != stamps:
            return False  # it changed while it was read: once more, when it rests
        self._stamps, self.value, self.error = stamps, value, None
        self.reloads += 1
        log.info(f"the {self.what} was read again", files=list(self._paths))
        for listener in self.listeners:
            listener(value)
        return True

    def _look(self) -> list[FileStamp | None]:
        return [self._stat(path) for path in self._paths]


class FileWatch:
    """Polls all watched files of a process from `start` to `close`, at most every `POLL_S`."""

    def __init__(self, clock: Clock, *, interval_s: float = POLL_S) -> None:
        self._clock, self._interval_s = clock, interval_s
        self._next = clock.now() + interval_s
        self._task: asyncio.Task[None] | None = None
        self.files: list[WatchedFiles[Any]] = []

    def tick(self) -> None:
        """Look at the files, if it is time."""
        now = self._clock.now()
        if now >= self._next:
            self._next = now + self._interval_s
            for files in self.files:
                files.poll()

    def start(self) -> None:
        if self.files:
            self._task = asyncio.create_task(self._run(), name="file-watch")

    async def close(self) -> None:
        task, self._task = self._task, None
        await stopped(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s / 4)
            try:
                self.tick()
            except Exception:  # of a listener: the watch goes on
                log.exception("reading files again failed")
