"""LenientTimer: a time-out for a peer, which a stall of this process does not make the peer's."""

import asyncio
from collections.abc import Callable

from ..base.clock import STALLED_S


class LenientTimer:
    """Calls once, `seconds` from now, unless it is cancelled. Where the event loop is late by more
    than STALLED_S, what the peer sent may be unread: then it calls STALLED_S later.
    """

    def __init__(
        self,
        seconds: float,
        callback: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._callback = callback
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._on_due)

    def cancel(self) -> None:
        """Idempotent."""
        self._timer.cancel()

    def _on_due(self) -> None:
        late = self._loop.time() - self._due
        if late > STALLED_S:
            self._timer = self._loop.call_later(STALLED_S, self._callback)
        else:
            self._callback()
