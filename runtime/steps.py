"""Long answers in short steps, so that an event loop can have turns between them.

A computation in steps is a generator that yields now and then, and returns its result.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable
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


async def made_in_turns(make: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What `make` makes of each item; the event loop has a turn after each step."""
    made: list[R] = []
    for chunk in by_steps(items):
        made += map(make, chunk)
        await asyncio.sleep(0)
    return made


def finish(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def finish_in_turns(steps: Steps[T]) -> T:
    """The result; the event loop has a turn after each step."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
