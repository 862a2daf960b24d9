"""Which workers come next after the chosen one, by the costs of the same moment. Pure."""

import math
from copy import copy

import numpy as np

from ..workers.registry import WorkerRegistry
from .policy import Candidates, Mask, Policy


def rank_others(
    policy: Policy,
    candidates: Candidates,
    masks: tuple[Mask, Mask | None, Mask | None],
    registry: WorkerRegistry,
    number: int,
    count: int,
) -> tuple[int, ...]:
    """Ids of at most `count` workers, the cheapest first, without that of the chosen `number`.

    `masks`: those that can take the request; those that it allows, None for all; those that are
    busy, None for none. A worker is as good as the best of its ranks.
    """
    if not count:
        return ()
    able, allowed, busy = masks
    if allowed is not None:
        able = able & allowed
    found = copy(candidates)
    found.eligible, found.chosen = able if busy is None else able & ~busy, None
    costs, worker = policy.score(found), registry.worker
    chosen, others = worker(number).worker_id, dict[int, None]()
    for each in np.argsort(costs, kind="stable"):
        if len(others) == count or not math.isfinite(costs[each]):
            break
        if (worker_id := worker(int(each)).worker_id) != chosen:
            others[worker_id] = None
    return tuple(others)
