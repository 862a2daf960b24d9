"""When a server leaves a connection: never greeted, idle, old, or because it shuts down. Pure.

Times are seconds of one monotonic clock.
"""

import enum
import math

from .server_limits import ServerLimits


class Step(enum.Enum):
    """What to do with a connection now."""

    STAY = "stay"
    LEAVE = "leave"
    """send GOAWAY: the client makes no more calls on it"""
    CLOSE = "close"
    """at once, whatever goes on"""


class ConnectionLife:
    """Of one connection; `due` is the limit that it hit. Age is none: clients make a new one."""

    __slots__ = ("_close_at", "_grace_s", "_greet_by", "_idle_s", "_old_at", "due", "leaving")

    def __init__(self, limits: ServerLimits, now: float, spread: float = 1.0) -> None:
        """`spread`: a factor of its age, near 1, so that not all grow old at a time."""
        self._greet_by = now + limits.handshake_s
        self._idle_s = limits.idle_s
        self._old_at = now + limits.age_s * spread
        self._grace_s = limits.age_grace_s
        self._close_at = math.inf
        self.leaving = False
        self.due = ""

    def greeted(self) -> None:
        """The client has shown that it speaks HTTP/2."""
        self._greet_by = math.inf

    def leave(self) -> None:
        """It is left from now on, for whatever reason."""
        self.leaving = True

    def look(self, now: float, calls: int, quiet_since: float) -> tuple[Step, float]:
        """What to do, and in how many seconds to look again. `quiet_since`: when it was made, or
        its last call ended."""
        if now >= self._greet_by:
            self.due = "connection_handshake_s"
            return Step.CLOSE, 0.0
        if now >= self._close_at:
            self.due = "connection_age_grace_s"
            return Step.CLOSE, 0.0
        if self.leaving:
            return Step.STAY, self._close_at - now
        if now >= self._old_at:
            self._close_at = now + self._grace_s
            return Step.LEAVE, self._grace_s
        idle_at = quiet_since + self._idle_s
        if calls == 0 and now >= idle_at:
            self.due = "connection_idle_s"
            return Step.LEAVE, math.inf
        again = min(self._greet_by, self._old_at, idle_at if calls == 0 else now + self._idle_s)
        return Step.STAY, again - now
