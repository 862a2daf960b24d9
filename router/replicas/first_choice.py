"""FirstChoice: which workers each of several routers in step takes first, so that they differ.

Requests that reach several routers within the same few milliseconds are decided before any router
knows of the others' decisions. As all know the same, all would choose the same workers. So each
has workers of its own, which it prefers where costs are equal. How much the others have sent to
theirs unheard it expects by what they booked after decisions of its own of late: a burst that
reaches one router alone is spread over all workers.
"""

from collections import deque
from collections.abc import Collection

import numpy as np

from ...workers.registry import WorkerRegistry
from ..policy import Floats

ARRIVES_S = 0.005
"""What another router booked arrives within this long: see BATCH_S, and a way over the net."""
NEAR_S = 0.02
"""Bookings of others that arrive within this long of one of ours were of the same moment: the
way over the net may be slow, or the batch was lost."""
FIRST = 0.25
"""Requests that a worker of another router's may have got before this one has booked any, where
the others book when this one does."""
LEAST = 1e-6
"""And where they do not: it decides between equal costs alone."""
KEPT = 1 - 1 / 64
"""Of what was counted of the others before, at each decision."""
PRIOR = 4.0
"""Requests that the others were expected to send, and did not, before any were counted."""
LOOK_S = 1.0
"""How often the workers are divided anew."""


class FirstChoice:
    """Not thread-safe: its KvRouter's lock is held around every call. Times are its clock's."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._booked: deque[float] = deque()  # when this router booked something within ARRIVES_S
        self._near: deque[float] = deque()  # and within NEAR_S
        self._expected, self._near_count = PRIOR, 0.0  # the others' bookings near ours, faded
        self._routers: tuple[int, ...] = ()
        self._divided_at = float("-inf")
        self._workers = 0
        self._others = np.zeros(0)  # by worker number: 1 where it is another router's first choice

    def on_booked(self, now: float) -> None:
        """This router has sent a request to a worker."""
        self._forget(now)
        others = max(1, len(self._routers) - 1)
        self._expected = KEPT * self._expected + others * (FIRST + len(self._near))
        self._near_count *= KEPT
        self._booked.append(now)
        self._near.append(now)

    def on_peer_booked(self, now: float) -> None:
        """Another router has: unheard, when this one decided on what it booked of late."""
        self._forget(now)
        self._near_count += len(self._near)

    @property
    def coincidence(self) -> float:
        """In 0 to 1: requests that the others send when this router sends one, of as many."""
        return min(1.0, self._near_count / self._expected)

    def unheard(self, own_id: int, peers: Collection[int], now: float) -> Floats | None:
        """Requests, by worker number, that others are expected to have sent there unheard.

        None where this router is alone. Each of k routers begins with one in k of the workers; the
        others are taken to have had as many requests within ARRIVES_S as this one, times how far
        they did so of late.
        """
        if not peers:
            return None
        routers = tuple(sorted((own_id, *peers)))
        changed = routers != self._routers or len(self._others) != self._registry.capacity
        if changed or now - self._divided_at >= LOOK_S:
            self._divide(routers, own_id, now)
        self._forget(now)
        each = len(self._booked) * len(routers) / max(1, self._workers)
        return self._others * max(LEAST, self.coincidence * (FIRST + each))

    def _divide(self, routers: tuple[int, ...], own_id: int, now: float) -> None:
        """By the order of ids, which is the same in every router; numbers are not."""
        self._routers, self._divided_at = routers, now
        self._others = np.zeros(self._registry.capacity)
        mine, count = routers.index(own_id), len(routers)
        numbers = sorted((worker, number) for number, worker in self._registry.numbered())
        self._workers = len(numbers)
        for place, (_, number) in enumerate(numbers):
            self._others[number] = place % count != mine

    def _forget(self, now: float) -> None:
        for times, seconds in ((self._booked, ARRIVES_S), (self._near, NEAR_S)):
            while times and now - times[0] > seconds:
                times.popleft()
