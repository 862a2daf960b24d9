"""Which workers come next after the chosen one, by the costs of the same moment. Pure."""

import math

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
    kept = candidates.eligible, candidates.chosen
    candidates.eligible, candidates.chosen = able if busy is None else able & ~busy, None
    try:
        costs = policy.score(candidates)
    finally:
        candidates.eligible, candidates.chosen = kept
    worker = registry.worker
    others = {worker(number).worker_id: None}
    known: list[float] = costs.tolist()
    for each in costs.argsort(kind="stable").tolist():
        if len(others) > count or not math.isfinite(known[each]):
            break
        others[worker(each).worker_id] = None
    return tuple(others)[1:]
