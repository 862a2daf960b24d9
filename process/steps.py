"""Long answers in short steps, so that an event loop can have turns between them.

A computation in steps is a generator that yields now and then, and returns its result.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from time import perf_counter
from typing import TypeVar

from .time_share import TimeShare

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


def answer_share() -> TimeShare:
    """For answers of one kind: one goes ahead at once, many take a fifth of the loop's time."""
    return TimeShare(0.2, burst_s=0.02)


async def in_turns(items: Iterable[T], share: TimeShare) -> AsyncIterator[T]:
    """The items; others have a turn before the first, and after what was done with each.

    Whoever shares the `share` waits as long as they took too much of the time together.
    """
    await asyncio.sleep(share.wait_s(perf_counter()))
    share.begin()
    for item in items:
        yield item
        share.spent(share.lap(), perf_counter())
        await asyncio.sleep(share.wait_s(perf_counter()))
        share.begin()


async def made_in_turns(make: Callable[[T], R], items: Iterable[T], share: TimeShare) -> list[R]:
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


async def finish_in_turns(steps: Steps[T], share: TimeShare) -> T:
    """The result; the event loop has a turn after each step."""
    result: list[T] = []

    def through() -> Steps[None]:
        result.append((yield from steps))

    async for _ in in_turns(through(), share):
        pass
    return result[0]
