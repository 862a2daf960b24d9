"""Policies without a model: those of the modes, Dynamo's cost and LMetric. forecast.py has one.

None of them learns. RoundRobin remembers its turn, so make one and keep it.
"""

import numpy as np

from ...base.errors import InvalidRequestError
from .base import Candidates, Mode, Policy
from .draw import Rng, pick_lowest, pick_of_two
from .dynamo_cost import CostInputs, CostParams, Floats, score


class DynamoCost(Policy):
    """The lowest cost in blocks, by Dynamo's function with these weights: see dynamo_cost.py."""

    def __init__(self, params: CostParams | None = None, temperature: float = 0.0) -> None:
        self._params = params or CostParams()
        self._needs_requests = self._params.decode_active_request_weight > 0
        self.temperature = temperature

    def score(self, candidates: Candidates) -> Floats:
        return score(
            self._params,
            CostInputs(
                candidates.isl,
                candidates.block_size,
                candidates.overlaps,
                candidates.prefill_tokens,
                candidates.potential_blocks,
                candidates.active_requests if self._needs_requests else None,
                candidates.eligible,
                candidates.host_overlaps,
                candidates.disk_overlaps,
            ),
        )


class LMetric(Policy):
    """The least product of two loads: new prefill tokens times batch size.

    LMetric (Zhang et al. 2026, arXiv 2603.15202): new prefill tokens are those the worker would
    have to compute if it got the request, its queue included; the batch is the requests in flight
    there, here with this one, so that an idle worker's product still shows its cache.
    """

    def score(self, candidates: Candidates) -> Floats:
        """Tokens times requests by worker number, inf where it is not eligible."""
        tokens = candidates.prefill_tokens + candidates.uncached_tokens()
        products = tokens * (candidates.active_requests + 1.0)
        return np.where(candidates.eligible, products, np.inf)


class RandomWorker(Policy):
    """Any eligible worker, each as likely."""

    needs_overlaps = False

    def score(self, candidates: Candidates) -> Floats:
        return np.where(candidates.eligible, 0.0, np.inf)


class RoundRobin(RandomWorker):
    """The next eligible worker by number after the one picked last, around the end."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, costs: Floats, rng: Rng) -> int:
        numbers = np.flatnonzero(np.isfinite(costs))
        if not len(numbers):
            return pick_lowest(costs, rng)
        turn = int(np.searchsorted(numbers, self._last, side="right")) % len(numbers)
        self._last = int(numbers[turn])
        return self._last


class LeastLoaded(Policy):
    """The worker with the fewest requests in flight."""

    needs_overlaps = False

    def score(self, candidates: Candidates) -> Floats:
        return np.where(candidates.eligible, candidates.active_requests, np.inf)


class PowerOfTwo(LeastLoaded):
    """Of two workers drawn at random the one with fewer requests in flight."""

    def pick(self, costs: Floats, rng: Rng) -> int:
        return pick_of_two(costs, rng)


class Direct(Policy):
    """No choice: a request has to name its worker."""

    needs_overlaps = False

    def score(self, candidates: Candidates) -> Floats:
        return np.full(len(candidates.eligible), np.inf)

    def pick(self, costs: Floats, rng: Rng) -> int:
        raise InvalidRequestError(
            "in mode direct a request must name its worker", field="pinned_worker"
        )


def mode_policy(mode: Mode, params: CostParams | None = None, temperature: float = 0.0) -> Policy:
    """A mode's policy, for `kv` Dynamo's cost; only that has use for `params` and `temperature`.

    KeyError for a mode that does not exist.
    """
    if mode == "kv":
        return DynamoCost(params, temperature)
    return _MODES[mode]()


_MODES: dict[str, type[Policy]] = {
    "round-robin": RoundRobin,
    "random": RandomWorker,
    "least-loaded": LeastLoaded,
    "power-of-two": PowerOfTwo,
    "direct": Direct,
}
