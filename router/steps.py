"""Long answers in short steps, so that an event loop can have turns between them.

A computation in steps is a generator that yields now and then, and returns its result.
"""

from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
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


def finish(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
