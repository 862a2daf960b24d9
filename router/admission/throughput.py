"""Throughput: how fast requests that wait leave the queue. Pure."""

MOST_COUNTED = 256
"""Requests that a rate is taken over, at most; beyond, the older half of them is forgotten."""


class Throughput:
    """Counts those that leave while any wait; what was before the queue was last empty is no guide.

    Times are seconds of one clock.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._gone = 0

    def on_first(self, now: float) -> None:
        """A request waits where none did."""
        self._since, self._gone = now, 0

    def on_gone(self, now: float) -> None:
        """One waits no more."""
        self._gone += 1
        if self._gone >= MOST_COUNTED:
            self._since, self._gone = (self._since + now) / 2, self._gone // 2

    def seconds(self, waiting: int, now: float) -> float:
        """Until as many have left; while none has, one is taken to take as long as has passed."""
        passed = now - self._since
        return waiting * passed / max(1, self._gone) if passed > 0 else 0.0
