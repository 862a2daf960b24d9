"""The way to a request's client: what messages become on it, and how they are written."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

Write: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Writes a message, and waits while the client does not read."""
Put: TypeAlias = Callable[[bytes], bool]
"""Writes a message if that need not wait. False: nothing was done."""
Change: TypeAlias = Callable[[bytes], bytes]
"""What an engine said as the client is to have it."""


class Reply:
    """Takes messages at once where `put` does; those that it does not are for `write`.

    Whoever gives it messages gives one after another: the next one when `write` has returned.
    Both raise ClientGoneError, or what a change does, in which case nothing was written.
    """

    __slots__ = ("_put", "changes", "write")

    def __init__(self, write: Write, put: Put | None = None) -> None:
        self.write = write
        self._put = put
        self.changes: list[Change] = []
        """of each message, in their order"""

    def take(self, message: bytes) -> bytes | None:
        """A message of an engine; what is left to be written, None: nothing."""
        for change in self.changes:
            message = change(message)
        if self._put is not None and self._put(message):
            return None
        return message

    async def send(self, message: bytes) -> None:
        """A message of an engine, from its change to its end."""
        rest = self.take(message)
        if rest is not None:
            await self.write(rest)
