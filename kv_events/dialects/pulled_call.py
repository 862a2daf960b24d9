"""PulledCall: a subscription to an engine's events that is read as a gRPC stream is."""

import asyncio
from collections.abc import Awaitable, Callable

NO_EVENTS = (
    AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading something as events raises that is none, or nests too deep."""


class EventsRefused(Exception):
    """What the engine tells cannot be indexed, now or later; the message says why."""


class EventsEnded(Exception):
    """The subscription is over; the message says why. It may be tried again."""


class EventsLost(EventsEnded):
    """It is over, and of what was told until now nobody knows any more whether it holds."""


class PulledCall:
    """Reads what `pull` gives, one serialized KvEventBatch at a time, until it raises EventsEnded.

    `open` is awaited first, by `initial_metadata`. `at_once` gives what `pull` would, if that needs
    no waiting; None: `pull` is to be asked.
    """

    def __init__(
        self,
        open: Callable[[], Awaitable[None]],
        pull: Callable[[], Awaitable[bytes]],
        at_once: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._open, self._pull, self._at_once = open, pull, at_once
        self._reading: asyncio.Future[bytes] | None = None
        self._cancelled = False

    async def initial_metadata(self) -> None:
        """EventsRefused if it cannot be had at all."""
        await self._open()

    async def read(self) -> bytes:
        """The next batch; EventsEnded at the end. CancelledError once it was cancelled."""
        if self._cancelled:
            raise asyncio.CancelledError
        if (batch := self._at_once()) is not None:
            return batch
        self._reading = asyncio.ensure_future(self._pull())
        try:
            return await self._reading
        finally:
            self._reading = None

    def cancel(self) -> None:
        """End it: a read that waits is cancelled."""
        self._cancelled = True
        if self._reading is not None:
            self._reading.cancel()
