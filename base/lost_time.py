"""LostTime: when this process could not look at anything, for which no peer is to blame. Pure.

Who is waited for meanwhile may have answered: a time-out counts the seconds that were looked.
"""

from collections import deque

from .clock import STALLED_S

MOST_STALLS = 256
"""Older ones are forgotten: they count as time that was looked."""


class LostTime:
    """A loop that looks now and then says here when it will look, and that it does.

    Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._stalls: deque[tuple[float, float]] = deque(maxlen=MOST_STALLS)  # from, to
        self._due = float("inf")
        self._was_late = False

    def expect(self, due: float) -> None:
        """The next look is due then."""
        self._due = due

    def on_look(self, now: float) -> bool:
        """It looks. True: it is late, so what came meanwhile may be unread; better look again.
        Never twice in a row, so that a process that is always late still judges."""
        if now > self._due + STALLED_S:
            self._stalls.append((self._due, now))
            self._was_late = not self._was_late
        else:
            self._was_late = False
        self._due = float("inf")
        return self._was_late

    def waited(self, since: float, now: float) -> float:
        """Seconds from `since` to `now` without those in which nothing was looked at."""
        waited = now - since
        if now > self._due + STALLED_S:  # a stall that has not been noted yet
            waited -= now - max(self._due, since)
        for begin, end in reversed(self._stalls):
            if end <= since:
                break
            waited -= end - max(begin, since)
        return max(0.0, waited)
