"""Routers with some workers, that stand still in time."""

from collections.abc import Mapping
from typing import Any

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock


def router_among(
    *worker_ids: int,
    clock: ManualClock | None = None,
    seed: int = 1,
    facts: Mapping[str, Any] | None = None,
    **settings: Any,
) -> KvRouter:
    """A router of these workers, about each of which the `facts` are known; to be closed."""
    router = KvRouter(KvRouterConfig(**settings), clock=clock or ManualClock(), seed=seed)
    for worker_id in worker_ids:
        router.add_worker(worker_id, **(facts or {}))
    return router
