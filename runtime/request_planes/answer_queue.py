"""What came of an answer and was not read yet."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Generic, Protocol, TypeVar

WAITING_ITEMS = 64
"""Items that wait for a slow reader before the worker has to."""
T = TypeVar("T")


class Source(Protocol):
    """Where it comes from."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class AnswerQueue(Generic[T]):
    """For one reader, who iterates `items` once. What comes after `end` is left out."""

    def __init__(self) -> None:
        self._ready: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._paused: Source | None = None
        self.ended = False

    def put(self, item: T, source: Source) -> None:
        """One more item. `source` is paused while too many wait."""
        if self.ended:
            return
        self._ready.append(item)
        if self._paused is None and len(self._ready) > WAITING_ITEMS:
            self._paused = source
            source.pause()
        self._wake()

    def end(self, failure: BaseException | None = None) -> None:
        """No more items: the reader gets those that wait, then the failure. Idempotent."""
        if not self.ended:
            self.ended, self._failure, self._paused = True, failure, None
            self._wake()

    def clear(self) -> None:
        """Drop what waits."""
        self._ready.clear()

    async def items(self) -> AsyncGenerator[T, None]:
        """Each item once, then the failure, if there is one."""
        ready = self._ready
        while True:
            while ready:
                item = ready.popleft()
                if self._paused is not None and len(ready) < WAITING_ITEMS // 2:
                    source, self._paused = self._paused, None
                    source.resume()
                yield item
            if self.ended:
                if self._failure is not None:
                    raise self._failure
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
