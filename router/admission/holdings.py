"""TenantHoldings: what each tenant has in the engines now, and who has more than its share. Pure.

A tenant's share is that of its weight among those that are about: that have something in an engine,
and together one more of weight 1 where another one asked within ABOUT_S. So names that are
used once do not thin the shares of others out, and a tenant that is alone has all.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

ABOUT_S = 30.0
"""A tenant that has nothing in the engines is about for this long after it last asked."""
MORE = 1.1
"""Times its share that a tenant may have before it counts as more: equals differ by chance."""
MOST_BELOW = 4.0
"""Times less than its share, beyond which what a tenant has makes no difference."""
OF_THE_LARGE = 0.5
"""Of what the tenant of an average token has: who has less is not among those who crowd others."""


class TenantHoldings:
    """What tenants have in the engines, in tokens of requests. Times are seconds of one clock.

    Memory is that of the requests in flight and of `most` tenants beside. What a tenant has is
    taken by its weight, 1 where `weights` says nothing.
    """

    def __init__(self, weights: Mapping[str, float], most: int) -> None:
        self._weights = weights
        self._most = most
        self._requests: dict[str, tuple[str, int]] = {}
        self._tokens: dict[str, int] = {}  # of those that have any
        self._away: OrderedDict[str, float] = OrderedDict()  # without any; when last asked
        self._all = 0  # tokens
        self._weight = 0.0  # of those that have any
        self._squares = 0.0  # of what each has, by its weight

    def on_asked(self, tenant: str, now: float) -> None:
        """A tenant has asked for something."""
        if tenant not in self._tokens:
            self._away[tenant] = now
            self._away.move_to_end(tenant)
            if len(self._away) > self._most:
                self._away.popitem(last=False)

    def on_booked(self, request_id: str, tenant: str, tokens: int) -> None:
        """A request went to an engine."""
        if request_id in self._requests:
            return
        self._requests[request_id] = tenant, tokens
        self._away.pop(tenant, None)
        if tenant not in self._tokens:
            self._weight += self._weight_of(tenant)
        self._change(tenant, tokens)

    def on_end(self, request_id: str, now: float) -> None:
        """It is there no more; nothing happens for one that is not known."""
        tenant, tokens = self._requests.pop(request_id, ("", 0))
        if not tokens:
            return
        self._change(tenant, -tokens)
        if not self._tokens[tenant]:
            del self._tokens[tenant]
            self._weight -= self._weight_of(tenant)
            self.on_asked(tenant, now)
        if not self._requests:
            self._weight = self._squares = 0.0  # what rounding has left

    def on_ends(self, request_ids: Iterable[str], now: float) -> None:
        """Several are there no more."""
        for request_id in request_ids:
            self.on_end(request_id, now)

    def has_more(self, tenant: str, now: float) -> bool:
        """Whether a tenant has more than its share, and is among those who have most."""
        tokens = self._tokens.get(tenant)
        if tokens is None:
            return False
        own = tokens / self._weight_of(tenant)
        others = self._weight + self._is_any_away(now)
        return own * others > MORE * self._all and own * self._all >= OF_THE_LARGE * self._squares

    def below_share(self, tenant: str, now: float) -> float:
        """How many times less than its share a tenant has, from 1 to MOST_BELOW."""
        tokens = self._tokens.get(tenant, 0)
        others = self._weight + self._is_any_away(now)
        if not tokens:
            return MOST_BELOW if self._all else 1.0
        share = self._all * self._weight_of(tenant) / others
        return min(MOST_BELOW, max(1.0, share / tokens))

    def _is_any_away(self, now: float) -> bool:
        away = self._away
        while away:
            name, asked_at = next(iter(away.items()))
            if now - asked_at < ABOUT_S:
                return True
            del away[name]
        return False

    def _change(self, tenant: str, tokens: int) -> None:
        before = self._tokens.get(tenant, 0)
        after = self._tokens[tenant] = before + tokens
        self._all += tokens
        self._squares += (after * after - before * before) / self._weight_of(tenant)

    def _weight_of(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
