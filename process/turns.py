"""Turns: whose item comes next, of callers that each have some waiting. Pure."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

MOST_REMEMBERED = 256
"""Callers without a waiting item whose due cost is kept: of more, those that had most."""


class Turns(Generic[T]):
    """The first item of the caller that is due least comes next.

    A caller is due what its items cost (start-time fair queuing): however many it has waiting, the
    cost that it is given grows no faster than that of another one that has some waiting, and a
    pause earns it nothing. No two items are equal.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[T, float]] = {}  # with their costs
        self._due: dict[str, float] = {}
        self._now = 0.0  # the due cost of the caller that was served last

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, caller: str, cost: float, item: T) -> None:
        """One more item of this caller."""
        queue = self._waiting.get(caller)
        if queue is None:
            queue = self._waiting[caller] = OrderedDict()
            self._due[caller] = max(self._due.get(caller, 0.0), self._now)
        queue[item] = cost

    def take(self) -> T | None:
        """The next item; None: there is none."""
        if not self._waiting:
            return None
        caller = min(self._waiting, key=self._due.__getitem__)
        queue = self._waiting[caller]
        item, cost = queue.popitem(last=False)
        self._now = self._due[caller]
        self._due[caller] += cost
        if not queue:
            self._forget(caller)
        return item

    def remove(self, caller: str, item: T) -> None:
        """This item does not wait any more; nothing if it did not."""
        queue = self._waiting.get(caller)
        if queue is not None:
            queue.pop(item, None)
            if not queue:
                self._forget(caller)

    def rest(self) -> None:
        """Nothing is under way: the next caller does not pay for earlier ones."""
        if not self._waiting:
            self._due.clear()
            self._now = 0.0

    def _forget(self, caller: str) -> None:
        del self._waiting[caller]
        if len(self._due) > len(self._waiting) + 2 * MOST_REMEMBERED:
            waiting, due = self._waiting, self._due
            others = sorted((who for who in due if who not in waiting), key=due.__getitem__)
            for who in others[:-MOST_REMEMBERED]:
                del due[who]
