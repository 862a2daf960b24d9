"""Long answers in short steps, so that an event loop can have turns between them.

A computation in steps is a generator that yields now and then, and returns its result.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
Steps = Generator[None, None, T]

STEP = 64
"""Items of one step: a few microseconds each, so that a step takes well below a millisecond."""


def by_steps(items: Iterable[T], step: int = STEP) -> Iterable[list[T]]:
    """The items in order, in lists of `step`; the last one may be shorter."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == step:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class LoopShare:
    """How much of an event loop's time answers of one kind take, however often they are asked for.

    One answer goes ahead at once, up to `saved_s` of work; many go on when their share allows.
    """

    def __init__(
        self,
        share: float = 0.2,
        saved_s: float = 0.02,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._share, self._most, self.now = share, saved_s, now
        self._left, self._at = saved_s, now()

    def spend(self, seconds: float) -> None:
        """So much work was done in one go."""
        self._left -= seconds

    def owed_s(self) -> float:
        """How long the next step should wait; 0 if it may be taken now."""
        now = self.now()
        self._left = min(self._most, self._left + (now - self._at) * self._share)
        self._at = now
        return max(0.0, -self._left / self._share)

    async def pause(self) -> None:
        """Between two steps: let others have a turn, and as long as this kind took too much."""
        await asyncio.sleep(self.owed_s())


async def in_turns(items: Iterable[T], share: LoopShare) -> AsyncIterator[T]:
    """The items; the event loop has a turn after what was done with each, and before the first."""
    await share.pause()
    began = share.now()
    for item in items:
        yield item
        share.spend(share.now() - began)
        await share.pause()
        began = share.now()


async def made_in_turns(make: Callable[[T], R], items: Iterable[T], share: LoopShare) -> list[R]:
    """What `make` makes of each item; the event loop has a turn after each step."""
    made: list[R] = []
    async for chunk in in_turns(by_steps(items), share):
        made += map(make, chunk)
    return made


def finish(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def finish_in_turns(steps: Steps[T], share: LoopShare) -> T:
    """The result; the event loop has a turn after each step."""
    result: list[T] = []

    def through() -> Steps[None]:
        result.append((yield from steps))

    async for _ in in_turns(through(), share):
        pass
    return result[0]
