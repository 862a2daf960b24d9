"""Seeded randomness: one independent stream per purpose, the same on every platform."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Stream:
    """Random numbers for one purpose."""

    def __init__(self, seed: int, purpose: str) -> None:
        # Only Random.random() is drawn from: the one method that Python promises never to change.
        self.random = Random(f"{seed}/{purpose}").random

    def index(self, size: int) -> int:
        """A number from 0 to size - 1."""
        return int(self.random() * size)

    def shuffle(self, items: list[T]) -> None:
        """Reorder `items` in place."""
        for last in range(len(items) - 1, 0, -1):
            at = int(self.random() * (last + 1))
            items[at], items[last] = items[last], items[at]


class Streams:
    """The streams of one seed: drawing more of one changes nothing in another."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __getitem__(self, purpose: str) -> Stream:
        return Stream(self._seed, purpose)


def passes(items: Sequence[T], stream: Stream, held: int | None = None) -> Iterator[T]:
    """Draw from `items` for ever without putting back: each pass has every item exactly once.

    A pass is a full shuffle, or with `held`, a local one: each draw takes one of the next `held`
    items, so that a pass keeps its course. Ends at once if there are no items.
    """
    size = len(items) if held is None else max(1, held)
    while items:
        pool = list(items[:size])
        for item in items[size:]:
            at = stream.index(len(pool))
            yield pool[at]
            pool[at] = item
        stream.shuffle(pool)
        yield from pool
