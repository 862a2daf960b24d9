"""TenantShares: what each tenant has had of the fleet, and who is to leave some to others. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, 1996), in tokens of work: a tenant's virtual time
grows by what its requests cost, divided by its weight, and one that comes back begins where the
others are, so that no tenant saves up turns, or pays for what was idle.

A share is enforced by four answers of TenantShares, each asked for in one place: `virtual` orders
tenants that wait, `has_more` puts one behind the others and keeps it waiting, `most_waiting` keeps
places in the queue for the others, `below_share` has the forecast shed one with less later.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from ...base.errors import InvalidRequestError
from ...process.settings import bad_setting, is_finite, option
from .holdings import TenantHoldings

CACHE_NAMESPACE, CALLER = "cache_namespace", "caller"
MAX_NAME = 256  # characters of a tenant's name that count
REQUEST_TOKENS = 256  # that a request counts for beside those of its prompt that are computed
RECENT_S = 30.0  # use that is so old counts for 1/e
KEPT_PART = 8  # of this many places one is kept for tenants that have no more than others
LEAST_RECENT = 0.01  # share of a request's tokens below which a tenant has had nothing of late
EQUAL_SHARE = 0.05  # more than its share that is as good as equal
MOST_WEIGHT = 1e6  # and 1 over it the least: sums of weights stay exact enough
_KEY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class TenantConfig:
    """Between whom the router is fair. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Queue and objectives"

    tenant_key: str | None = option(
        CACHE_NAMESPACE,
        "What names a request's tenant, between which engines and queue are shared fairly:"
        " cache_namespace, caller, or the name of a metadata key or header; none: all requests are"
        " one tenant's.",
        "--router-tenant-key",
    )
    tenant_weights: str | None = option(
        None,
        "Shares of tenants, NAME=WEIGHT with commas, from 1e-6 to 1e6; 1 for tenants not listed.",
        "--router-tenant-weights",
    )
    max_tenants: int = option(
        1024,
        "Most tenants whose use is remembered; beyond, that of use longest ago is forgotten.",
        "--router-max-tenants",
    )

    def __post_init__(self) -> None:
        key = self.tenant_key
        if key is not None and not _KEY.fullmatch(key):
            text = f"{key!r} is not {CACHE_NAMESPACE}, {CALLER}, or the name of a metadata key"
            raise bad_setting("tenant_key", text)
        if self.max_tenants < 1:
            raise bad_setting("max_tenants", f"{self.max_tenants!r} must be at least 1")
        self.weights  # noqa: B018  # refuses what cannot be

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """By tenant."""
        found = {}
        for part in filter(None, (self.tenant_weights or "").split(",")):
            name, _, text = part.strip().rpartition("=")
            try:
                weight = float(text)
            except ValueError:
                weight = math.nan
            if not (name and is_finite(weight) and 1 / MOST_WEIGHT <= weight <= MOST_WEIGHT):
                text = f"{part!r} is not NAME=WEIGHT from {1 / MOST_WEIGHT:g} to {MOST_WEIGHT:g}"
                raise bad_setting("tenant_weights", text)
            found[name] = weight
        return found

    def tenant_of(
        self,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        caller: str = "",
        cache_namespace: str | None = None,
    ) -> str:
        """Whose request it is; "" is a tenant, too: of those that name none.

        Of a key that comes twice the last one counts, of a namespace what is before a slash: behind
        it stands what else its blocks depend on. InvalidRequestError for a name in bytes.
        """
        name = ""
        if self.tenant_key == CACHE_NAMESPACE:
            name = (cache_namespace or "").partition("/")[0]
        elif self.tenant_key == CALLER:
            name = caller
        elif self.tenant_key is not None:
            for key, value in metadata or ():
                if key.lower() == self.tenant_key:
                    if isinstance(value, bytes):
                        raise InvalidRequestError(f"{key} must be text to name a tenant")
                    name = value
        return name[:MAX_NAME]


class RecentUse(NamedTuple):
    """How the work of late was divided between tenants."""

    tenants: int  # that had any
    over: int  # that had more than their share of it
    largest: float  # part of it that one of them had


class _Tenant:
    __slots__ = ("recent", "seen", "virtual", "weight")

    def __init__(self, weight: float, virtual: float) -> None:
        self.weight = weight
        self.virtual = virtual
        self.recent = 0.0  # tokens, faded up to `seen`
        self.seen = 0.0


class TenantShares:
    """What each tenant has had, and has now. Times are seconds of one clock.

    At most `max_tenants` are known; a forgotten one comes back as one that was never there. Nothing
    is counted until a request has named one.
    """

    def __init__(self, config: TenantConfig) -> None:
        self.config = config
        self.enabled = False
        """whether there is more than one tenant"""
        self._holdings = TenantHoldings(config.weights, config.max_tenants)
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._now = 0.0  # virtual: the start of the latest turn
        self.forgotten = 0
        """tenants, ever, because too many were known"""

    def __len__(self) -> int:
        return len(self._tenants)

    def counts(self, tenant: str) -> bool:
        """Whether this tenant's requests are counted here."""
        if tenant and not self.enabled:
            self.enabled = self.config.tenant_key is not None
        return self.enabled

    def on_asked(self, tenant: str, now: float) -> bool:
        """A tenant has a request: whether it has more in the engines than its share, while others
        are about."""
        if not self.counts(tenant):
            return False
        self._holdings.on_asked(tenant, now)
        return self._holdings.has_more(tenant, now)

    def has_more(self, tenant: str, now: float) -> bool:
        """The same of one that waits."""
        return self.enabled and self._holdings.has_more(tenant, now)

    def on_booked(self, request_id: str, tenant: str, isl: int) -> None:
        """A request with so long a prompt went to an engine."""
        self._holdings.on_booked(request_id, tenant, isl + REQUEST_TOKENS)

    def on_ends(self, request_ids: Iterable[str], now: float) -> None:
        """Requests are there no more, whatever became of them."""
        if self.enabled:
            self._holdings.on_ends(request_ids, now)

    def begin(self, tenant: str) -> float:
        """A tenant begins to wait: its virtual time, not before that of the latest turn."""
        if not self.counts(tenant):
            return 0.0
        found = self._tenant(tenant)
        found.virtual = max(found.virtual, self._now)
        return found.virtual

    def virtual(self, tenant: str) -> float:
        """What it has had by its weight, in tokens; who has less goes first."""
        known = self._tenants.get(tenant) if self.enabled else None
        return 0.0 if known is None else known.virtual

    def most_waiting(self, limit: int, waiting: int, of_tenant: int, tenants: int) -> int:
        """How many may wait when a tenant's request comes, of the `limit`: fewer if as many of its
        requests wait as those of others do on average, or more."""
        keeps = self.enabled and of_tenant * max(2, tenants) > waiting  # others may come
        return limit - limit // KEPT_PART if keeps else limit

    def on_given(self, tenant: str, tokens: int, now: float) -> None:
        """A tenant's request with `tokens` to compute was sent to a worker."""
        if not self.counts(tenant):
            return
        found, cost = self._tenant(tenant), tokens + REQUEST_TOKENS
        start = max(found.virtual, self._now)
        self._now = start
        found.virtual = start + cost / found.weight
        found.recent = self._recent(found, now) + cost
        found.seen = now
        self._tenants.move_to_end(tenant)

    def below_share(self, tenant: str, now: float) -> float:
        """How many times less than its share a tenant has in the engines, from 1 to MOST_BELOW."""
        return self._holdings.below_share(tenant, now) if self.enabled else 1.0

    def recent_use(self, now: float) -> RecentUse:
        """How the work of late was divided."""
        recents = [
            (used, each.weight)
            for each in list(self._tenants.values())
            if (used := self._recent(each, now)) > LEAST_RECENT * REQUEST_TOKENS
        ]
        if not recents:
            return RecentUse(0, 0, 0.0)
        recent, weights = sum(used for used, _ in recents), sum(weight for _, weight in recents)
        over = sum(used / recent > (1 + EQUAL_SHARE) * weight / weights for used, weight in recents)
        return RecentUse(len(recents), over, max(used for used, _ in recents) / recent)

    def _recent(self, tenant: _Tenant, now: float) -> float:
        return tenant.recent * math.exp(min(0.0, tenant.seen - now) / RECENT_S)

    def _tenant(self, name: str) -> _Tenant:
        found = self._tenants.get(name)
        if found is None:
            if len(self._tenants) >= self.config.max_tenants:
                self._tenants.popitem(last=False)
                self.forgotten += 1
            weight = self.config.weights.get(name, 1.0)
            found = self._tenants[name] = _Tenant(weight, self._now)
        return found
