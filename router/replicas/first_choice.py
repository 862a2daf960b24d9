"""FirstChoice: which workers each of several routers in step takes first, so that they differ.

Requests that reach several routers within the same few milliseconds are decided before any router
has heard of the others' decisions. As all know the same, all would choose the same workers. So each
has workers of its own to begin with, and expects that the others have just sent something to
theirs, as it has to its own.
"""

from collections import deque
from collections.abc import Collection

import numpy as np

from ...workers.registry import WorkerRegistry
from ..policy import Floats

HEAR_S = 0.005
"""What another router booked is heard of within this long: see BATCH_S, and a way over the net."""
ALWAYS = 0.25
"""Requests that a worker of another router's may have got unheard, whatever happens here."""
LOOK_S = 1.0
"""How often the workers are divided anew."""


class FirstChoice:
    """Not thread-safe: its KvRouter's lock is held around every call. Times are its clock's."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._booked: deque[float] = deque()  # when this router booked something of late
        self._routers: tuple[int, ...] = ()
        self._divided_at = float("-inf")
        self._workers = 0
        self._others = np.zeros(0)  # by worker number: 1 where it is another router's first choice

    def on_booked(self, now: float) -> None:
        """This router has sent a request to a worker."""
        self._booked.append(now)
        self._forget(now)

    def unheard(self, own_id: int, peers: Collection[int], now: float) -> Floats | None:
        """Requests, by worker number, that others are expected to have sent there unheard.

        None where this router is alone. Each of k routers begins with one in k of the workers; the
        others are taken to have had as many requests within HEAR_S as this one.
        """
        if not peers:
            return None
        routers = tuple(sorted((own_id, *peers)))
        changed = routers != self._routers or len(self._others) != self._registry.capacity
        if changed or now - self._divided_at >= LOOK_S:
            self._divide(routers, own_id, now)
        self._forget(now)
        each = len(self._booked) * len(routers) / max(1, self._workers)
        return self._others * (ALWAYS + each)

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
        while self._booked and now - self._booked[0] > HEAR_S:
            self._booked.popleft()
