"""What the author of a policy writes: it passes mypy --strict and pyright as it stands."""

from typing import reveal_type

import numpy as np

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.router.policy import Candidates, Floats, Policy


class LeastToCompute(Policy):
    def score(self, candidates: Candidates) -> Floats:
        reveal_type(candidates.isl)  # int
        cached = 0 if candidates.overlaps is None else candidates.overlaps * candidates.block_size
        return np.where(candidates.eligible, candidates.isl - cached, np.inf)


def policy(config: KvRouterConfig) -> Policy:
    return LeastToCompute()


def main(config: KvRouterConfig) -> None:
    KvRouter(config, strategy=policy(config)).close()
