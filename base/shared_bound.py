"""SharedBound: how much of something all callers together, and each, may have in use."""

import sys

from ._shared_bound import AmountInUse
from .errors import CapacityError
from .limit_hits import LimitHits


class SharedBound(AmountInUse):
    """Counts an amount in use, of calls or bytes: at most `most` in all, `share` of it by a caller.

    What finds no room is counted in `hits` under `limit`, and under `limit`_per_caller if it is
    the caller's own share that has none. `on_given_back` is called with each amount that is in use
    no more. Memory is that of the callers that have something in use.

    `take` takes an amount into use; what it returns stands in the way if there is no room, and
    nothing is taken. `give_back`: an amount that was taken is no longer in use. `of`: what a caller
    has in use.
    """

    def __init__(self, limit: str, most: int, share: float, hits: LimitHits) -> None:
        super().__init__(min(most, sys.maxsize), min(max(1, int(most * share)), sys.maxsize))
        self.limit = limit
        self._hits = hits

    def refusal(self, caller: str, amount: int = 1) -> str | None:
        """What stands in the way of an amount, if there is no room for it; nothing is taken."""
        if self.used + amount > self.most:
            self._hits.hit(self.limit)
            return f"{self.limit}: all callers together may have {self.most}"
        if self.of(caller) + amount > self.most_each:
            self._hits.hit(f"{self.limit}_per_caller")
            return f"{self.limit}: one caller may have {self.most_each}"
        return None

    def held(self, caller: str, amount: int = 1) -> "_Held":
        """Have an amount in use within a `with`; CapacityError there if there is no room for it."""
        return _Held(self, caller, amount)


class _Held:
    """An amount in use for the length of a `with`. No generator: each request has one."""

    __slots__ = ("_amount", "_bound", "_caller")

    def __init__(self, bound: SharedBound, caller: str, amount: int) -> None:
        self._bound, self._caller, self._amount = bound, caller, amount

    def __enter__(self) -> None:
        if self._amount and (refusal := self._bound.take(self._caller, self._amount)) is not None:
            raise CapacityError(f"no capacity for the request: {refusal}")

    def __exit__(self, *raised: object) -> None:
        if self._amount:
            self._bound.give_back(self._caller, self._amount)
