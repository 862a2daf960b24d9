"""PulledCall: a subscription to an engine's events that is read as a gRPC stream is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Message = TypeVar("Message")


class EventsRefused(Exception):
    """The engine's events cannot be indexed, now or later; the message says why."""


class EventsEnded(Exception):
    """The subscription is over; the message says why. It may be tried again."""


class EventsLost(EventsEnded):
    """It is over, and whether the events so far still hold is unknown."""


class PulledCall(Generic[Message]):
    """Reads what `_pull` gives, one message at a time, until that raises EventsEnded."""

    def __init__(self) -> None:
        self._reading: asyncio.Future[Message] | None = None
        self._cancelled = False

    async def initial_metadata(self) -> None:
        """Returns once the engine is connected. EventsRefused if it offers no events at all."""
        raise NotImplementedError

    async def why_silent(self) -> str:
        """After `initial_metadata` took too long: what is known of the cause, for people."""
        return ""

    async def _pull(self) -> Message:
        """Wait for the next message."""
        raise NotImplementedError

    def _pull_now(self) -> Message | None:
        """What `_pull` would give, if that needs no waiting."""
        return None

    async def read(self) -> Message:
        """The next message; EventsEnded at the end, CancelledError after `cancel`."""
        if self._cancelled:
            raise asyncio.CancelledError
        if (message := self._pull_now()) is not None:
            return message
        self._reading = asyncio.ensure_future(self._pull())
        try:
            return await self._reading
        finally:
            self._reading = None

    async def deliver(
        self, take: Callable[[Message], bytes | None], wait: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Give all further messages to `take`, those that are here without waiting; what it returns
        is given to `wait` before the next one. Fails as they do, and as `read`."""
        while True:
            message: Message | None = await self.read()
            while message is not None:
                rest = take(message)
                if rest is not None:
                    await wait(rest)
                message = None if self._cancelled else self._pull_now()

    def cancel(self) -> None:
        """End it: a read that waits is cancelled."""
        self._cancelled = True
        if self._reading is not None:
            self._reading.cancel()
