"""Monotonic time, injected wherever a decision depends on it, so that tests own it."""

from time import monotonic
from typing import Protocol

STALLED_S = 0.1
"""A timer that fires later than this was held up with the whole event loop: what came meanwhile may
not be read yet, as a loop runs its timers first."""


class Clock(Protocol):
    """Seconds since some fixed point; never goes back, knows nothing of the wall clock."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    now = staticmethod(monotonic)  # without a call around it: a request reads it a dozen times


class ManualClock:
    """A clock that stands still between calls of `advance`: for tests and simulations."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`; ValueError if negative, for a Clock is monotonic."""
        if not seconds >= 0:
            raise ValueError(f"a clock cannot advance by {seconds} s")
        self._now += seconds
