"""LostTime: when this process could not look at anything, for which no peer is to blame. Pure.

Who is waited for meanwhile may have answered: a time-out counts the seconds that were looked.
"""

from bisect import bisect_right

from .clock import STALLED_S

MOST_STALLS = 256
"""Older ones are forgotten: they count as time that was looked."""


class LostTime:
    """A loop that looks now and then says here when it will look, and that it does.

    Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._begins: list[float] = []  # of stalls, in their order
        self._ends: list[float] = []
        self._lost: list[float] = []  # in each and all before it
        self._due = float("inf")
        self._was_late = False

    def expect(self, due: float) -> None:
        """The next look is due then."""
        self._due = due

    def on_look(self, now: float) -> bool:
        """It looks. True: it is late, so what came meanwhile may be unread; better look again.
        Never twice in a row, so that a process that is always late still judges."""
        if now > self._due + STALLED_S:
            self._note(self._due, now)
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
        at = bisect_right(self._ends, since)  # the first one that was not over
        if at < len(self._ends):
            waited -= self._lost[-1] - self._lost[at] + self._ends[at]
            waited += max(self._begins[at], since)
        return max(0.0, waited)

    def _note(self, begin: float, end: float) -> None:
        before = self._lost[-1] if self._lost else 0.0
        for values, value in (
            (self._begins, begin),
            (self._ends, end),
            (self._lost, before + end - begin),
        ):
            values.append(value)
            del values[:-MOST_STALLS]
