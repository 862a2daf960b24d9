"""When a lease is granted, renewed and taken anew: decisions, without a store or a clock, and the
one function that asks the store accordingly."""

from enum import Enum
from random import Random

from ...base.backoff import Backoff
from ...base.clock import Clock
from ..kv_stores import LEASE_TTL_S, KeyValueStore, LeaseLostError, StoreError


class LeaseStep(Enum):
    """What to ask of the store next."""

    GRANT = "grant"
    RENEW = "renew"


class LeaseKeepAlive:
    """One lease, for as long as its owner lives. Times are of a monotonic clock.

    Ask `step` for what to do at `due`, do it, and report what came of it. A lease is renewed when
    half of its remaining time has passed, less some jitter. Failures are tried again with
    back-off, also beyond the lease's end: a store that was away may have kept it. Only when the
    store says that it ended is it granted again, under the same id, so that what it stands for
    keeps its name.
    """

    def __init__(
        self, ttl_s: float = LEASE_TTL_S, *, now: float = 0.0, rng: Random | None = None
    ) -> None:
        """Due at once. ValueError if `ttl_s` is not positive."""
        if not ttl_s > 0:
            raise ValueError(f"a lease needs a time to live, not {ttl_s} s")
        self.ttl_s = ttl_s
        self._rng = rng or Random()
        self._backoff = Backoff(first=0.05, cap=5.0, rng=self._rng)
        self.lease: int | None = None
        """its id, from the first grant on"""
        self.step = LeaseStep.GRANT
        self.due = now
        self.ends: float | None = None
        """when it ends unless it is renewed, by what we know"""
        self.grants = 0
        """times it was granted: above 1 it has been lost in between"""

    def held(self, now: float) -> bool:
        """Whether the store surely has it still."""
        return self.ends is not None and now < self.ends

    def on_granted(self, lease: int, asked: float, now: float) -> None:
        """The store gave `lease` to a question of the time `asked`."""
        self.lease, self.step = lease, LeaseStep.RENEW
        self.grants += 1
        self._keep(self.ttl_s, asked, now)

    def on_renewed(self, ttl_s: float, asked: float, now: float) -> None:
        """It lives for `ttl_s` since the store answered the question, at least since `asked`."""
        self._keep(ttl_s, asked, now)

    def on_failed(self, now: float) -> None:
        """No answer: ask again soon, and before the lease ends if that is still possible."""
        self.due = now + self._backoff.next()

    def on_lost(self, now: float) -> None:
        """The store says that the lease has ended."""
        self.step, self.ends = LeaseStep.GRANT, None
        # A whole fleet loses its leases at the same moment.
        self.due = now + self._rng.uniform(0.0, min(1.0, self.ttl_s / 10))

    def _keep(self, ttl_s: float, asked: float, now: float) -> None:
        self._backoff.reset()
        self.ends = asked + ttl_s
        self.due = now + max(0.0, self.ends - now) / 2 * self._rng.uniform(0.8, 1.0)


async def renew_lease(keep_alive: LeaseKeepAlive, store: KeyValueStore, clock: Clock) -> LeaseStep:
    """Grant or renew the lease, whichever is due; returns which it was.

    Raises LeaseLostError if the store has ended the lease, StoreError if it gave no answer; the
    keep-alive has noted the latter.
    """
    step, asked = keep_alive.step, clock.now()
    try:
        if step is LeaseStep.GRANT:
            lease = await store.grant(keep_alive.ttl_s, keep_alive.lease)
            keep_alive.on_granted(lease, asked, clock.now())
        else:
            assert keep_alive.lease is not None
            ttl_s = await store.renew(keep_alive.lease)
            keep_alive.on_renewed(ttl_s, asked, clock.now())
    except LeaseLostError:
        raise
    except StoreError:
        keep_alive.on_failed(clock.now())
        raise
    return step
