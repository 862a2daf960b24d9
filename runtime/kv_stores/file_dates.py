"""What the modification time of a key's file says: how long it lives, and at which revision it is.

A file is dead `FILE_TTL_S` after its date, so its owner renews a lease by dating it anew; that is
what Dynamo's processes do. The nanoseconds of the date are the revision, which touching leaves
alone. A key without a lease is dated far ahead.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ...base.clock import Clock, SystemClock

FILE_TTL_S = 10.0
_SECOND = 10**9
_UNLEASED_S = 2_147_000_000  # in January 2038: the last that every file system can hold
_NEVER_S = 1e6
"""Whoever lives longer than this has no lease."""


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

    The wall clock only says how old a date is at first sight: a jump of it lets nobody die who
    goes on renewing.
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
