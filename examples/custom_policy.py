"""A policy of your own for mode kv: stay with the longest cached prefix unless it is too busy.

In a frontend, pass the policy:         KvRouter(config, strategy=Sticky())
On the command line, offer it by name. In the pyproject.toml of a package of yours:

    [project.entry-points."dynamo_router.policies"]
    sticky = "custom_policy:sticky"

    pip install . && dynamo-router serve --policy sticky --mockers 4
    dynamo-router simulate trace.jsonl --compare sticky,forecast,dynamo:16

python examples/custom_policy.py shows it at work without any engine.
"""

import numpy as np

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.router.policy import Candidates, Floats, Policy

MOST_REQUESTS = 2  # more than the least busy worker has, before a prefix is given up


class Sticky(Policy):
    """Costs are prompt tokens to compute; the lowest wins, equal ones are drawn."""

    def score(self, candidates: Candidates) -> Floats:
        """The cost of each worker, inf where it is not eligible or too busy."""
        requests, overlaps = candidates.active_requests, candidates.overlaps
        least = requests[candidates.eligible].min()
        cached = 0 if overlaps is None else overlaps.astype(np.float64) * candidates.block_size
        usable = candidates.eligible & (requests <= least + MOST_REQUESTS)
        return np.where(usable, candidates.isl - cached, np.inf)


def sticky(config: KvRouterConfig) -> Policy:
    """What the entry point names: from the router's settings to a policy."""
    return Sticky()


def main() -> None:
    config = KvRouterConfig(block_size=16, use_kv_events=False, seed=1)
    with KvRouter(config, strategy=Sticky()) as router:
        for worker_id in range(3):
            router.add_worker(worker_id)
        prompt = list(range(64))
        for turn in range(5):
            worker_id, _, overlap = router.best_worker(prompt, f"request-{turn}")
            print(f"request {turn} -> worker {worker_id}, {overlap} blocks cached there")


if __name__ == "__main__":
    main()
