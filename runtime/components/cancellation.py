"""Tokens that say when to stop, in a tree: cancelling one cancels those made from it."""

import asyncio
from weakref import WeakSet


class CancellationToken:
    """Cancelled once and for ever. A child may be cancelled alone."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._children: WeakSet[CancellationToken] = WeakSet()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def child(self) -> "CancellationToken":
        token = CancellationToken()
        if self.cancelled:
            token.cancel()
        else:
            self._children.add(token)
        return token

    def cancel(self) -> None:
        """Cancel this token and its children. Idempotent."""
        if self.cancelled:
            return
        self._event.set()
        for child in list(self._children):
            child.cancel()

    async def wait(self) -> None:
        """Return once it is cancelled."""
        await self._event.wait()
