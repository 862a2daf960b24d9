"""A policy of your own for mode kv: stay with the longest cached prefix unless it is too busy.

In a frontend, pass the strategy:       KvRouter(config, strategy=patient(config))
On the command line, offer it by name. In the pyproject.toml of a package of yours:

    [project.entry-points."dynamo_router.policies"]
    patient = "custom_policy:patient"

    pip install . && dynamo-router serve --policy patient --mockers 4
    dynamo-router simulate trace.jsonl --compare patient,forecast,dynamo:16

python examples/custom_policy.py shows it at work without any engine.
"""

import numpy as np
import numpy.typing as npt

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.router.policy.selection import Candidates, Strategy, pick_lowest

MOST_REQUESTS = 2  # more than the least busy worker has, before a prefix is given up


def not_too_busy(candidates: Candidates) -> npt.NDArray[np.bool_]:
    """A filter: of the eligible workers, those that may be scored."""
    requests = candidates.active_requests
    least: int = requests[candidates.eligible].min()
    return requests <= least + MOST_REQUESTS


def uncached_tokens(candidates: Candidates) -> npt.NDArray[np.float64]:
    """A score: the cost of each worker, inf where it is not eligible. Equal costs are drawn."""
    overlaps = candidates.overlaps
    cached = 0 if overlaps is None else overlaps.astype(np.float64) * candidates.block_size
    return np.where(candidates.eligible, candidates.isl - cached, np.inf)


def patient(config: KvRouterConfig) -> Strategy:
    """The policy: from the router's settings to a strategy."""
    return Strategy(uncached_tokens, pick_lowest, filter=not_too_busy, needs_overlaps=True)


def main() -> None:
    config = KvRouterConfig(block_size=16, use_kv_events=False, seed=1)
    with KvRouter(config, strategy=patient(config)) as router:
        for worker_id in range(3):
            router.add_worker(worker_id)
        prompt = list(range(64))
        for turn in range(5):
            worker_id, _, overlap = router.best_worker(prompt, f"request-{turn}")
            print(f"request {turn} -> worker {worker_id}, {overlap} blocks cached there")


if __name__ == "__main__":
    main()
