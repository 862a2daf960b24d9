"""WeightedShares: holds workers of a lower weight to their share of the requests. Pure."""

import numpy as np

from ...workers.registry import WorkerRegistry
from ..policy import Floats, Mask

MOST_CREDIT = 4.0
"""Requests that a worker may make up for after others were preferred to it."""


class WeightedShares:
    """For each request that the workers of the highest weight get on average, one of weight w may
    get w, counted relative to that weight.

    A token bucket per worker, in requests: credit comes with what the others get, a request costs
    one, and who has less than one is left alone while there are others. No clock: what counts is
    how requests were divided, not how fast they came. One mechanism for every policy, since it
    works on who may be chosen. Arrays are by worker number.
    """

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._credit: Floats = np.ones(0)

    def spent(self, eligible: Mask) -> Mask | None:
        """Who of these has had its share; None: none of them, and never all."""
        if not self._registry.is_weighted or not eligible.any():
            return None
        self._reach()
        weights = self._registry.weights
        mask: Mask = eligible & (weights < weights[eligible].max()) & (self._credit < 1.0)
        return mask if mask.any() else None

    def on_given(self, number: int, eligible: Mask) -> None:
        """One of these, or another one, got a request."""
        if not self._registry.is_weighted:
            return
        self._reach()
        weights, credit = self._registry.weights, self._credit
        top = weights[eligible].max(initial=0.0)
        if weights[number] < top:
            credit[number] = max(credit[number] - 1.0, -MOST_CREDIT)  # pinned: it may go below
            return
        reference = eligible & (weights == top)
        lower = eligible & (weights < top)
        share = weights[lower] / (top * max(1, int(reference.sum())))
        credit[lower] = np.minimum(credit[lower] + share, MOST_CREDIT)

    def on_worker(self, number: int) -> None:
        """A worker came: it begins with one request."""
        self._reach()
        self._credit[number] = 1.0

    def _reach(self) -> None:
        missing = self._registry.capacity - len(self._credit)
        if missing > 0:
            self._credit = np.append(self._credit, np.ones(missing))
