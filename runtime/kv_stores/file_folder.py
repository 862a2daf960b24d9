"""The files of one bucket, for processes that share the disk. Blocking; for threads.

A value is written beside its place and renamed into it, so no reader sees half of one. Writers take
turns by a lock on the bucket's counter, which the kernel lets go of when one of them dies.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from ...base.clock import Clock, SystemClock
from .store import MAX_KEYS, MAX_VALUE_BYTES, Entry, StoreError, check_name

FILE_TTL_S = 10.0
_SECOND = 10**9
_UNLEASED_S = 2_147_000_000  # in January 2038: the last that every file system can hold
_NEVER_S = 1e6
"""Seconds; a file that lives longer has no lease."""


def date_for(ttl_s: float | None, revision: int, wall: float) -> int:
    """The date, in nanoseconds, of a key that is to live `ttl_s` from `wall` (Unix time)."""
    seconds = _UNLEASED_S if ttl_s is None else int(wall + ttl_s - FILE_TTL_S)
    return seconds * _SECOND + revision % _SECOND


def revision_of(date_ns: int) -> int:
    return date_ns % _SECOND


@dataclass(slots=True)
class _Seen:
    date_ns: int
    ends: float | None
    since: float


class FileDates:
    """Judges which files are alive, by the monotonic clock from when a date was first seen.

    The wall clock only says how old a date is at first sight: a jump of it ends no lease that
    is renewed.
    """

    def __init__(self, clock: Clock | None = None, wall: Callable[[], float] | None = None) -> None:
        self._clock, self.wall = clock or SystemClock(), wall or time.time
        self._seen: dict[str, _Seen] = {}

    def alive(self, path: str, date_ns: int) -> bool:
        ends = self._look(path, date_ns).ends
        return ends is None or self._clock.now() < ends

    def may_be_removed(self, path: str, date_ns: int) -> bool:
        """Whether a dead file has kept its date for a whole time to live under our eyes."""
        seen = self._look(path, date_ns)
        dead = not self.alive(path, date_ns)
        return dead and self._clock.now() >= seen.since + FILE_TTL_S

    def seconds_to_death(self, path: str, date_ns: int) -> float | None:
        """None if it never dies."""
        ends = self._look(path, date_ns).ends
        return None if ends is None else ends - self._clock.now()

    def forget(self, path: str) -> None:
        self._seen.pop(path, None)

    def _look(self, path: str, date_ns: int) -> _Seen:
        seen = self._seen.get(path)
        if seen is None or seen.date_ns != date_ns:
            now = self._clock.now()
            # The nanoseconds are no time, so it lives up to a second longer, never shorter.
            left = date_ns // _SECOND + 1 + FILE_TTL_S - self.wall()
            seen = _Seen(date_ns, None if left > _NEVER_S else now + max(0.0, left), now)
            self._seen[path] = seen
        return seen


TEMPORARY = ".tmp_"
"""How the names of files begin that are still being written."""
_OUTSIDE = re.compile(rb"[^A-Za-z0-9]")
_OUTSIDE_BUCKET = re.compile(rb"[^A-Za-z0-9_-]")
_ENCODED = re.compile(r"(?:[A-Za-z0-9]|%[0-9A-F]{2})+")


def name_of_key(key: str) -> str:
    return _escape(_OUTSIDE, key)


def key_of_name(name: str) -> str | None:
    """The key that a file stands for; None if it stands for none."""
    if not _ENCODED.fullmatch(name):
        return None
    try:
        return unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        return None


def folder_of_bucket(bucket: str) -> str:
    """The path of a bucket below the root: its segments, each a name that is no `..`."""
    return "/".join(_escape(_OUTSIDE_BUCKET, part) or "%" for part in bucket.split("/"))


def _escape(outside: re.Pattern[bytes], text: str) -> str:
    return outside.sub(lambda found: b"%%%02X" % found[0][0], text.encode()).decode()


COUNTERS = ".revisions"
_LOCK_TIMEOUT_S = 5.0
_LOCK_POLL_S = 0.002
_ABANDONED_S = 600.0
_COUNTER_WIDTH = 16


class Found(NamedTuple):
    """A file that stands for a key, alive or not."""

    key: str
    path: str
    date_ns: int
    inode: int
    size: int


class FileFolder:
    """One bucket's folder. All may raise StoreError."""

    def __init__(self, root: Path, bucket: str, dates: FileDates) -> None:
        self.path = root / folder_of_bucket(bucket)
        self._counter = root / COUNTERS / name_of_key(bucket)
        self._dates = dates

    def make(self) -> None:
        """Create the folder, and clear away what a writer that died left behind long ago."""
        with _explained(str(self.path)):
            self.path.mkdir(parents=True, exist_ok=True)
            self._counter.parent.mkdir(parents=True, exist_ok=True)
            for item in os.scandir(self.path):
                if item.name.startswith(TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):
                        if item.stat().st_mtime < time.time() - _ABANDONED_S:
                            os.unlink(item.path)

    def path_of(self, key: str) -> str:
        return str(self.path / name_of_key(check_name("key", key)))

    def scan(self) -> list[Found]:
        """Every file that stands for a key, up to MAX_KEYS; what cannot be looked at is none."""
        found = []
        with _explained(str(self.path)):
            try:
                with os.scandir(self.path) as listed:
                    items = list(islice(listed, 2 * MAX_KEYS))
            except FileNotFoundError:
                return []
            for item in items:
                key = None if item.name.startswith(TEMPORARY) else key_of_name(item.name)
                if key is None:
                    continue
                with contextlib.suppress(StoreError):
                    if (file := self.look(key)) is not None:
                        found.append(file)
        return found[:MAX_KEYS]

    def look(self, key: str) -> Found | None:
        """The file of a key, dead or alive; None if there is none, or none that is a value."""
        path = self.path_of(key)
        with _explained(key):
            try:
                stat = os.stat(path)
            except FileNotFoundError:
                self._dates.forget(path)
                return None
        if not _is_value(stat):
            return None
        return Found(key, path, stat.st_mtime_ns, stat.st_ino, stat.st_size)

    def alive(self, file: Found) -> bool:
        return self._dates.alive(file.path, file.date_ns)

    def seconds_to_death(self, file: Found) -> float | None:
        return self._dates.seconds_to_death(file.path, file.date_ns)

    def read(self, key: str) -> Entry | None:
        """A key that is alive, its value and its revision of one moment."""
        path = self.path_of(key)
        with _explained(key):
            try:
                # A pipe would have us wait for its writer.
                with open(path, "rb", opener=_open_at_once) as file:
                    stat = os.fstat(file.fileno())
                    if not _is_value(stat):
                        return None
                    date_ns, value = stat.st_mtime_ns, file.read(MAX_VALUE_BYTES + 1)
            except FileNotFoundError:
                self._dates.forget(path)
                return None
            except IsADirectoryError:
                return None
        if len(value) > MAX_VALUE_BYTES:
            return None  # it has grown meanwhile
        if not self._dates.alive(path, date_ns):
            return None
        return Entry(key, value, revision_of(date_ns))

    def write(
        self, key: str, value: bytes, ttl_s: float | None, fits: Callable[[Entry | None], bool]
    ) -> int | None:
        """Write if what is there `fits`; the revision."""
        if len(value) > MAX_VALUE_BYTES:
            text = f"{key}: {len(value)} bytes are more than {MAX_VALUE_BYTES}"
            raise StoreError(text, transient=False)
        path = self.path_of(key)
        with _explained(key), self._turn() as counter:
            if not fits(self.read(key)):
                return None
            revision = counter.next()
            temporary = str(self.path / f"{TEMPORARY}{token_hex(8)}")
            try:
                with open(temporary, "xb") as file:
                    file.write(value)
                date_ns = date_for(ttl_s, revision, self._dates.wall())
                os.utime(temporary, ns=(date_ns, date_ns))
                os.rename(temporary, path)
                self._dates.alive(path, date_ns)  # seen now, by the clock that dated it
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            return revision

    def remove(self, key: str, fits: Callable[[Entry | None], bool]) -> bool:
        """Delete a key that is alive and `fits`; whether there was one."""
        with _explained(key), self._turn() as counter:
            entry = self.read(key)
            if entry is None or not fits(entry):
                return False
            counter.next()
            with contextlib.suppress(FileNotFoundError):  # a writer that takes no turns
                os.unlink(self.path_of(key))
            return True

    def touch(self, key: str, revision: int, ttl_s: float) -> bool:
        """Let a key live for `ttl_s` from now, if it still is of `revision`; whether it is."""
        path = self.path_of(key)
        with _explained(key), self._turn():
            try:
                if revision_of(os.stat(path).st_mtime_ns) != revision:
                    return False
                date_ns = date_for(ttl_s, revision, self._dates.wall())
                os.utime(path, ns=(date_ns, date_ns))
                self._dates.alive(path, date_ns)
            except FileNotFoundError:
                return False
            return True

    def bury(self, file: Found) -> None:
        """Delete a dead file, if it is still as it was found and has no writer."""
        if not self._dates.may_be_removed(file.path, file.date_ns):
            return
        with contextlib.suppress(StoreError), _explained(file.key), self._turn(0.0) as counter:
            if self.look(file.key) == file:
                counter.next()
                os.unlink(file.path)
                self._dates.forget(file.path)

    def revision(self) -> int:
        """That of the last change made by one who takes turns."""
        with _explained(str(self._counter)):
            try:
                return _number(self._counter.read_bytes())
            except FileNotFoundError:
                return 0

    @contextlib.contextmanager
    def _turn(self, timeout_s: float | None = None) -> Iterator["_Counter"]:
        """Be the only one who writes to the bucket."""
        self.make_once()
        descriptor = os.open(self._counter, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            end = time.monotonic() + (_LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        raise StoreError(f"another process holds {self._counter}") from None
                time.sleep(_LOCK_POLL_S)
            yield _Counter(descriptor, self._highest)
        finally:
            os.close(descriptor)

    def make_once(self) -> None:
        if not self.path.is_dir() or not self._counter.parent.is_dir():
            self.make()

    def _highest(self) -> int:
        """A revision that no file is above: where the counter was lost."""
        return max((revision_of(file.date_ns) for file in self.scan()), default=0)


class _Counter:
    """The bucket's last revision, in a file that is locked."""

    def __init__(self, descriptor: int, highest: Callable[[], int]) -> None:
        self._descriptor, self._highest = descriptor, highest

    def next(self) -> int:
        last = _number(os.pread(self._descriptor, _COUNTER_WIDTH, 0)) or self._highest()
        # Always as wide: a disk that is full has room for it.
        os.pwrite(self._descriptor, b"%0*d" % (_COUNTER_WIDTH, last + 1), 0)
        return last + 1


def _is_value(stat: os.stat_result) -> bool:
    return S_ISREG(stat.st_mode) and stat.st_size <= MAX_VALUE_BYTES


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _number(digits: bytes) -> int:
    return int(digits) if digits.isdigit() else 0


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """What the file system refuses, as StoreError."""
    try:
        yield
    except OSError as error:
        never = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
        text = f"{what}: {error.strerror or error}"
        raise StoreError(text, transient=error.errno not in never) from None
