"""Whether a silent connection is still alive: when to ping, and when to give it up. Pure."""

from typing import NamedTuple

from ...base.clock import STALLED_S

MOST_PINGS = 2
"""Pings in a row, if nothing but their answers comes: servers of gRPC close connections
whose clients ping for long, and they count from the last thing that they sent themselves."""
SELDOM_S = 300.0
"""Between those that follow; as often as a server of gRPC suffers by default."""


class Verdict(NamedTuple):
    """What to do now: send a ping, give the connection up; and when to look again."""

    again_s: float
    ping: bool = False
    lost: bool = False


class Keepalive:
    """Of one connection. A peer that sends nothing for `after_s` is pinged; if nothing comes
    within `timeout_s` after that, it is lost. Times are seconds of one monotonic clock.
    """

    def __init__(self, after_s: float, timeout_s: float, most_pings: float = MOST_PINGS) -> None:
        """`most_pings`: in a row; a server, which no client holds to that, has no limit."""
        self.after_s = after_s
        self._timeout_s = timeout_s
        self._most_pings = most_pings
        self._pinged: float | None = None  # when, if the ping is not answered
        self._was_late = False  # whether the ping had its further look
        self._last = float("-inf")  # when the last ping was sent
        self.row = 0
        """pings since something else came than their answers"""

    def on_call_frame(self) -> None:
        """Something came that concerns a call."""
        self.row = 0

    def answered(self) -> None:
        """A ping was answered, or no call waits any more."""
        self._pinged = None

    def look(self, now: float, last_read: float) -> Verdict:
        """Decide. `last_read`: when bytes came last."""
        if self._pinged is not None and last_read > self._pinged:
            self._pinged = None
        if self._pinged is not None:
            left = self._pinged + self._timeout_s - now
            if left < -STALLED_S and not self._was_late:  # one more look, once all was read
                self._was_late = True
                return Verdict(STALLED_S)
            return Verdict(0.0, lost=True) if left <= 0 else Verdict(left)
        due = last_read + self.after_s
        if self.row >= self._most_pings:
            due = max(due, self._last + SELDOM_S)
        if now < due:
            return Verdict(due - now)
        self._pinged = self._last = now
        self._was_late = False
        self.row += 1
        return Verdict(self._timeout_s, ping=True)
