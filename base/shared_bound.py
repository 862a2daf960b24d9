"""SharedBound: how much of something all callers together, and each, may have in use."""

from collections.abc import Callable

from .errors import CapacityError
from .limit_hits import LimitHits


class SharedBound:
    """Counts an amount in use, of calls or bytes: at most `most` in all, `share` of it by a caller.

    What finds no room is counted in `hits` under `limit`, and under `limit`_per_caller if it is
    the caller's own share that has none. `on_given_back` is called with each amount that is in use
    no more. Memory is that of the callers that have something in use.
    """

    def __init__(self, limit: str, most: int, share: float, hits: LimitHits) -> None:
        self.limit = limit
        self.most = most
        self.most_each = max(1, int(most * share))
        self.used = 0
        self._hits = hits
        self.on_given_back: Callable[[int], None] | None = None
        self._by_caller: dict[str, int] = {}

    def take(self, caller: str, amount: int = 1) -> str | None:
        """Take an amount into use; what stands in the way if there is no room, and nothing is
        taken."""
        used, own = self.used + amount, self._by_caller.get(caller, 0) + amount
        if used > self.most or own > self.most_each:
            return self.refusal(caller, amount)
        self._by_caller[caller], self.used = own, used
        return None

    def refusal(self, caller: str, amount: int = 1) -> str | None:
        """The same of an amount that would be given back before anything else is taken."""
        if self.used + amount > self.most:
            self._hits.hit(self.limit)
            return f"{self.limit}: all callers together may have {self.most}"
        if self._by_caller.get(caller, 0) + amount > self.most_each:
            self._hits.hit(f"{self.limit}_per_caller")
            return f"{self.limit}: one caller may have {self.most_each}"
        return None

    def give_back(self, caller: str, amount: int = 1) -> None:
        """An amount that was taken is no longer in use."""
        left = self._by_caller[caller] - amount
        assert left >= 0
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]
        self.used -= amount
        if self.on_given_back is not None:
            self.on_given_back(amount)

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
