"""Policies that place a prompt by its first blocks, whatever is cached where: the baselines.

Both keep prompts that begin alike together. The bounded form moves on from a worker that has more
than its share, and so loses less where one beginning is very popular.
"""

import math

import numpy as np
import numpy.typing as npt

from ...base.errors import ConfigError
from ...router.policy import Candidates, Floats, Policy
from ..traces import mix_values

VIRTUAL_NODES = 128  # points of a worker on the ring; the shares differ by about a tenth


class PrefixHash(Policy):
    """The worker that the hash of the prompt's first `blocks` blocks names.

    Prompts with fewer full blocks go by those they have, prompts with none to any worker.
    """

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ConfigError(f"policy: cannot hash the first {blocks} blocks", key="policy")
        self._blocks = blocks

    def score(self, candidates: Candidates) -> Floats:
        costs = np.full(len(candidates.eligible), np.inf)
        numbers = np.flatnonzero(candidates.eligible)
        key = _prefix_key(candidates, self._blocks)
        if key is None or not len(numbers):
            costs[numbers] = 0.0
        else:
            costs[numbers[key % len(numbers)]] = 0.0
        return costs


class BoundedConsistentHash(Policy):
    """The next worker on a ring of hashes that is not full: consistent hashing with bounded loads.

    A worker is full with `load_factor` times the mean of requests in flight, this request counted.
    Prompts are hashed as by `PrefixHash`.
    """

    def __init__(self, load_factor: float, blocks: int) -> None:
        if blocks < 1:
            raise ConfigError(f"policy: cannot hash the first {blocks} blocks", key="policy")
        if not (1 <= load_factor < math.inf):
            raise ConfigError(
                f"policy: the load factor {load_factor:g} must be finite and at least 1",
                key="policy",
            )
        self._blocks = blocks
        self._factor = load_factor
        self._points = np.zeros(0, np.uint64)
        self._owners = np.zeros(0, np.int64)

    def score(self, candidates: Candidates) -> Floats:
        eligible, loads = candidates.eligible, candidates.active_requests
        costs = np.full(len(eligible), np.inf)
        count = int(eligible.sum())
        key = _prefix_key(candidates, self._blocks)
        if key is None or not count:
            costs[eligible] = loads[eligible]
            return costs
        # Some worker is below the bound, because the factor is at least 1.
        bound = math.ceil(self._factor * (int(loads[eligible].sum()) + 1) / count)
        not_full = eligible & (loads < bound)
        points, owners = self._ring(len(eligible))
        place = int(np.searchsorted(points, np.uint64(key)))
        while not not_full[owners[place % len(owners)]]:
            place += 1
        costs[owners[place % len(owners)]] = 0.0
        return costs

    def _ring(self, workers: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        if len(self._points) != workers * VIRTUAL_NODES:
            points = np.arange(workers * VIRTUAL_NODES, dtype=np.uint64)
            mix_values(points)  # spread evenly, and the same way in every process
            order = np.argsort(points, kind="stable")
            self._points, self._owners = points[order], order // VIRTUAL_NODES
        return self._points, self._owners


def _prefix_key(candidates: Candidates, blocks: int) -> int | None:
    hashes = candidates.sequence_hashes
    if hashes is None or len(hashes) == 0:
        return None
    return int(hashes[min(blocks, len(hashes)) - 1])
