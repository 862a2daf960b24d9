"""Bounds: what the fleet at its best would have done for recent requests, as far as it is known.

Two that no choice of a worker can beat: the prompt blocks that some worker held, as if all caches
were one, and the time in which an idle engine computes what is left of the prompt.
"""

from collections import OrderedDict
from typing import NamedTuple

from ...router.kv_router import KvRouter
from ...router.placement import Placement

KEPT_BOUNDS = 1024


class Bound(NamedTuple):
    """Of one request, as of its decision."""

    held_blocks: int
    """leading blocks of the prompt that the worker which held most of it had"""
    ttft_s: float | None
    """an idle engine of the usual speed with these blocks, by what was learnt; None: unknown"""


class Bounds:
    """Of the newest requests that were looked at, by request id. Costs a match of the prompt."""

    def __init__(self, router: KvRouter) -> None:
        self._router = router
        self._kept: OrderedDict[str, Bound] = OrderedDict()

    def note(self, placement: Placement) -> None:
        """Look at a request that is about to be decided."""
        router, prompt = self._router, placement.prompt
        left = router.uncached_tokens(prompt)
        held = (prompt.isl - left) // prompt.block_size
        self._kept[placement.request_id] = Bound(held, router.limits.cold_s(max(1, left)))
        while len(self._kept) > KEPT_BOUNDS:
            self._kept.popitem(last=False)

    def of(self, request_id: str) -> Bound | None:
        """None of a request that was not looked at."""
        return self._kept.get(request_id)
