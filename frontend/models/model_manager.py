"""ModelManager: a pool for each set of workers that the store tells of; the models they make."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog

from ...runtime.discovery import Reconciler
from ...server.metrics import MetricsPage
from .model_pool import ModelPool, Shared
from .model_watcher import ModelWatcher
from .routes import Answering, ModelEntry
from .worker_sets import Refusal, SetName, WorkerSet

FIRST_POOLS_S = 5.0
"""How long `start` waits for the first pools, and first answers of their workers."""

log = structlog.get_logger(__name__)


class ModelManager:
    """The models of a store as a Directory, from `start` to `close`.

    A pool begins with the first card of its set and ends when nobody is registered for it and
    nothing runs there any more: then the last of its requests have ended.
    """

    def __init__(self, watcher: ModelWatcher, shared: Shared) -> None:
        self._watcher, self._shared = watcher, shared
        self._pools: dict[SetName, ModelPool] = {}
        self._refused: list[Refusal] = []
        name = f"models in {shared.store}"
        self._reconciler = Reconciler(name, shared.store, watcher, self.reconcile)
        self.draining = False
        """nobody should come any more"""

    @property
    def pools(self) -> Sequence[ModelPool]:
        """All that there are, those too that cannot serve."""
        return list(self._pools.values())

    @property
    def entries(self) -> Sequence[ModelEntry]:
        """The models, then their adapters and other names."""
        built = self._answering
        limits: dict[str, int] = {}
        for pool in built:
            model = pool.name.model
            limits[model] = max(limits.get(model, 0), pool.context_limit)
        found = {model: ModelEntry(model, limit) for model, limit in sorted(limits.items())}
        for pool in built:
            model = pool.name.model
            for other in (*sorted(pool.found.adapters), *pool.found.card.aliases):
                found.setdefault(other, ModelEntry(other, limits[model], model))
        return list(found.values())

    @property
    def any_ready(self) -> bool:
        serving = (pool.share > 0 for pool in self._answering)
        return not self.draining and any(serving)

    def find(self, name: str) -> Sequence[Answering]:
        """A model's own name goes before other names of another one; of those the first claim
        counts. An adapter is answered for by the pools that have it."""
        for entry in self.entries:
            if entry.name != name:
                continue
            model = entry.parent or name
            pools = [pool for pool in self._answering if pool.name.model == model]
            with_adapter = [pool for pool in pools if entry.parent and name in pool.found.adapters]
            return [pool.adapter(name) for pool in with_adapter] or pools
        return []

    @property
    def _answering(self) -> list[ModelPool]:
        """The pools that clients' requests go to."""
        return [pool for pool in self._pools.values() if pool.is_built and pool.answers]

    @property
    def report(self) -> dict[str, Any]:
        """Each pool with its workers, and each card that gets no requests with the reason."""
        return {
            "pools": [_told(pool) for pool in self._pools.values()],
            "refused": [refusal._asdict() for refusal in self._refused],
        }

    def metrics_pages(self) -> Iterator[tuple[dict[str, str], MetricsPage]]:
        """Of each pool its labels and what is counted of it."""
        for pool in self._pools.values():
            if (page := pool.metrics) is not None:
                yield {"model": pool.name.model, "pool": pool.label}, page

    async def start(self) -> None:
        """Returns once the models that are there can be had, or that takes long. ConfigError if the
        store refuses us."""
        await self._reconciler.start()
        waiting = (pool.wait_for_probes(FIRST_POOLS_S) for pool in self.pools)
        await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """Follow the store no more, and end all pools. Idempotent."""
        await self._reconciler.close()
        pools, self._pools = self.pools, {}
        await asyncio.gather(*(pool.close() for pool in pools))

    async def reconcile(self) -> None:
        """Let the pools be those of the sets that are registered now."""
        sets, refused = self._watcher.sets
        sources = self._watcher.sources
        for refusal in set(refused) - set(self._refused):
            log.warning("a card gets no requests", card=refusal.key, model=refusal.model,
                        reason=refusal.reason)  # fmt: skip
        self._refused = refused
        for name, found in sets.items():
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = ModelPool(found, self._shared)
                pool.start()
            pool.become(found, sources, _elsewhere(name, sets))
        for name in [name for name in self._pools if name not in sets]:
            pool = self._pools[name]
            pool.become(None, sources, _elsewhere(name, sets))
            if pool.is_idle:
                del self._pools[name]
                await pool.close()
                log.info("a pool is gone", pool=str(name))
        pools = self.pools
        for pool in pools:
            pool.partners = [each for each in pools if pool.found.shares_requests_with(each.found)]


def _elsewhere(name: SetName, sets: Mapping[SetName, WorkerSet]) -> frozenset[int]:
    """Workers at a set's endpoint whose cards are of other sets."""
    others = (o for o in sets.values() if o.name.endpoint == name.endpoint and o.name != name)
    return frozenset(worker_id for other in others for worker_id in other.cards)


def _told(pool: ModelPool) -> dict[str, Any]:
    name, card = pool.name, pool.found.card
    return {
        "model": name.model,
        "endpoint": str(name.endpoint),
        "checksum": name.checksum,
        "worker_type": card.worker_type,
        "prefill_pools": [each.label for each in pool.partners],
        "state": pool.state,
        "reason": pool.reason,
        "block_size": card.block_size,
        "context_length": pool.context_limit,
        "aliases": list(card.aliases),
        "adapters": sorted(pool.found.adapters),
        "workers": pool.states,
        "worker_ids": sorted(pool.found.instances),
        "refused_workers": {str(each): reason for each, reason in pool.refused.items()},
        "share": pool.share,
        "in_flight": pool.in_flight,
    }
