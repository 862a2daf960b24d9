"""What a watch has not read yet: of each key the last change, so it is bounded by the keys."""

import asyncio

from .store import Deleted, Entry


class PendingChanges:
    """Changes of the keys that begin with one prefix, in the order of their revisions."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._changes: dict[str, Entry | Deleted] = {}
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._changes)

    def add(self, change: Entry | Deleted) -> None:
        key = change.key
        if key.startswith(self._prefix):
            self._changes.pop(key, None)  # to the end: in the order of revisions
            self._changes[key] = change
            self._changed.set()

    def wake(self) -> None:
        """Let `wait` return without a change."""
        self._changed.set()

    async def wait(self, seconds: float | None) -> None:
        """Until there may be a change, or `seconds` are over."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def take(self) -> list[Entry | Deleted]:
        """All of them; they are forgotten."""
        taken, self._changes = list(self._changes.values()), {}
        return taken
