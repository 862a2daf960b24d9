"""Whether a peer asks for more work than calls explain: pings, settings, calls given up, frames
that bring nothing. Pure.

Floods that show in one piece of bytes (acknowledgements that pile up, headers without an end)
are seen by nghttp2 itself. Times are seconds of one monotonic clock.
"""

PROTOCOL_ERROR, ENHANCE_YOUR_CALM = 1, 11
"""HTTP/2's codes with which a connection ends."""
PING_STRIKES = 2
"""Pings that may come too soon; as many as gRPC's own servers suffer."""
SETTINGS_BURST, SETTINGS_EACH_S = 100, 10.0
"""gRPC's clients send some while they look for the best window."""
RESETS_BURST, RESETS_EACH_S = 1000, 200.0
"""Of calls given up as soon as they were made; others were paid for by their waiting."""
REFUSED_BURST, REFUSED_EACH_S = 1000, 200.0
"""Of calls of methods that are not there, by unknown callers, or with heads that are none."""
HASTY_S = 1.0
IDLE_BURST, IDLE_EACH_S = 2000, 500.0
"""Of frames that bring nothing, beyond those that answer frames of ours (`Streams.take_idle`)."""


def limit_of(code: int) -> str:
    """What is counted when a connection ends with this code."""
    return "client_floods" if code == ENHANCE_YOUR_CALM else "client_violations"


class Allowance:
    """A burst at once, and more each second."""

    __slots__ = ("_at", "_burst", "_each_s", "_left")

    def __init__(self, burst: float, each_s: float) -> None:
        self._burst = self._left = burst
        self._each_s = each_s
        self._at = 0.0

    def take(self, now: float, amount: int = 1) -> bool:
        """Whether `amount` was left, which is taken."""
        self._left = min(self._burst, self._left + (now - self._at) * self._each_s)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


class FloodGuard:
    """Of one connection. Each `on_...` says whether that was one too many."""

    __slots__ = ("_ping_interval_s", "_pinged", "_refused", "_resets", "_settings", "_strikes")

    def __init__(self, ping_interval_s: float) -> None:
        self._ping_interval_s = ping_interval_s
        self._pinged = float("-inf")
        self._strikes = 0
        self._settings = Allowance(SETTINGS_BURST, SETTINGS_EACH_S)
        self._resets = Allowance(RESETS_BURST, RESETS_EACH_S)
        self._refused = Allowance(REFUSED_BURST, REFUSED_EACH_S)

    def on_sent(self) -> None:
        """Part of an answer was sent: clients may ping to measure how fast it comes."""
        self._pinged = float("-inf")
        self._strikes = 0

    def on_ping(self, now: float) -> bool:
        early = now - self._pinged < self._ping_interval_s
        self._pinged = now
        self._strikes += early
        return self._strikes > PING_STRIKES

    def on_settings(self, now: float) -> bool:
        return not self._settings.take(now)

    def on_reset(self, now: float, began: float) -> bool:
        """A client gave a call up that began then."""
        return now - began < HASTY_S and not self._resets.take(now)

    def on_refused(self, now: float) -> bool:
        """A call was refused before anything was done for it."""
        return not self._refused.take(now)
