"""LenientTimer: a time-out for a peer, which a stall of this process does not make the peer's."""

import asyncio
from collections.abc import Callable

from ..base.clock import STALLED_S


class LenientTimer:
    """Calls once, `seconds` from now, unless it is cancelled. Where the event loop is late by more
    than STALLED_S, what the peer sent may be unread: then it calls STALLED_S later.

    One timer of the loop, which looks again when it fires too early.
    """

    def __init__(
        self,
        seconds: float,
        callback: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._callback = callback
        self.put_off(seconds)
        self._timer = self._loop.call_at(self._due, self._on_due)

    def put_off(self, seconds: float) -> None:
        """Call that many seconds from now instead, which is no sooner than it was to be."""
        self._due, self._was_late = self._loop.time() + seconds, False

    def cancel(self) -> None:
        """Idempotent. Who is to be called, and mostly has it, is let go of: no circle is left to
        the collector."""
        self._timer.cancel()
        self._callback = _nothing

    def _on_due(self) -> None:
        now = self._loop.time()
        if now < self._due:
            self._timer = self._loop.call_at(self._due, self._on_due)
        elif now > self._due + STALLED_S and not self._was_late:
            self._was_late = True
            self._timer = self._loop.call_at(now + STALLED_S, self._on_due)
        else:
            callback = self._callback
            self.cancel()
            callback()


def _nothing() -> None:
    """What one that is over calls."""
