"""ModelManager: a pool for each set of workers that the store lists; the models they make."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from ...base.urls import DEFAULT_NATS_URL, redact_url
from ...router.kv_router import KvRouter
from ...runtime.discovery import Reconciler
from ...runtime.event_planes import probe
from ...server.admin import CacheClearing, WorkerAdmin
from ...server.config import ServeConfig
from ...server.dispatch import RequestReader
from ...server.metrics import Labels, MetricsPage
from ...server.pool import WorkerPlane, WorkerPool
from ...server.server_parts import ServerParts
from ..config import ModelFrontendConfig
from ..token_cache import piece_cache
from .model_pool import AdapterPool, ModelPool, Shared
from .model_watcher import ModelWatcher
from .routes import ModelEntry
from .worker_sets import NamespaceFilter, Refusal, SetName, WorkerSet

FIRST_POOLS_S = 5.0
"""How long `start` waits for the first pools, and first answers of their workers."""

log = structlog.get_logger(__name__)


class ModelManager:
    """The models of a store, as Directory and as Pools of a server, from `start` to `close`.

    A pool begins with the first card of its set and ends when no worker is registered for it
    and nothing runs there any more: then the last of its requests have ended.
    """

    def __init__(self, config: ModelFrontendConfig, parts: ServerParts) -> None:
        """ConfigError if the store's address cannot be used."""
        store = config.discovery.open(config.backend)
        assert store is not None, "the configuration was checked"
        wanted = NamespaceFilter(config.namespace, config.namespace_prefix or "")
        self._parts = parts
        self._plane = WorkerPlane(config, parts.security.nats)
        self._watcher = ModelWatcher(store, wanted)
        self._shared = Shared(
            parts=parts,
            settings=lambda: self._settings(parts.config),
            frontend=config.frontend,
            plane=self._plane,
            store=config.backend,
            pieces=piece_cache(config.frontend, parts),
        )
        self._events: dict[str, Any] = {}  # settings that were worked out at the start
        self._pools: dict[SetName, ModelPool] = {}
        self._refused: list[Refusal] = []
        name = f"models in {config.backend}"
        self._reconciler = Reconciler(name, config.backend, self._watcher, self.reconcile)
        self.reader = RequestReader(
            config.router.block_size, config.peers, parts.hits, parts.off_loop
        )
        """of requests that belong to no pool yet"""

    @property
    def description(self) -> str:
        """Its part of the ready line."""
        names = ", ".join(entry.name for entry in self.entries) or "none yet"
        url = self._events.get("nats")
        return f"models {names} events {redact_url(url) if url else 'from engines'}"

    @property
    def has_queue(self) -> bool:
        return all(pool.has_queue for pool in self.pools)

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
        return any(pool.share > 0 for pool in self._answering)

    @property
    def on_ready_changed(self) -> list[Callable[[], None]]:
        """Called when a worker of any model begins or ceases to take requests."""
        return self._shared.on_ready_changed

    def find(self, name: str) -> Sequence[ModelPool | AdapterPool]:
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
            "pools": [_pool_report(pool) for pool in self._pools.values()],
            "refused": [refusal._asdict() for refusal in self._refused],
        }

    def metrics_pages(self) -> Iterator[tuple[Labels, MetricsPage]]:
        """Each pool's labels and metrics."""
        return ((labels, workers.metrics.page) for labels, workers in self._labelled())

    def routers(self) -> Iterator[tuple[Labels, KvRouter]]:
        """The same with the router of each pool."""
        return ((labels, workers.router) for labels, workers in self._labelled())

    def clearings(self) -> Iterator[tuple[Labels, CacheClearing]]:
        """What clears the caches of each pool's workers."""
        return ((labels, workers.clearing) for labels, workers in self._labelled())

    def admins(self) -> Iterator[WorkerAdmin]:
        return (workers.admin for _, workers in self._labelled())

    def _labelled(self) -> Iterator[tuple[Labels, WorkerPool]]:
        for pool in self.pools:
            if pool.workers is not None:
                yield {"model": pool.name.model, "pool": pool.label}, pool.workers

    @property
    def running(self) -> Sequence[WorkerPool]:
        """Those that requests are routed in."""
        return [workers for _, workers in self._labelled()]

    @property
    def shown(self) -> Sequence[ModelPool]:
        """What the dashboard can look at."""
        return sorted(self.pools, key=lambda pool: pool.name)

    def refused_cards(self) -> dict[str, Any]:
        """What the dashboard shows beside the pools."""
        return {"refused_cards": len(self._refused)}

    def change(self, new: ServeConfig, old: ServeConfig, keys: frozenset[str]) -> None:
        """Let all pools use the settings of these keys, which were checked, from now on."""
        settings = self._settings(new)
        for pool in self.pools:
            pool.change(settings, keys)

    async def start(self) -> None:
        """Find the models. ConfigError if the store refuses us."""
        await self._plane.listen()
        self._events = await _find_events(self._parts.config)
        await self._reconciler.start()

    async def wait_for_probes(self) -> None:
        """Wait until the models that are there can be had, or that takes long."""
        waiting = (pool.wait_for_probes(FIRST_POOLS_S) for pool in self.pools)
        await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """Follow the store no more, and end all pools. Idempotent."""
        await self._reconciler.close()
        pools, self._pools = self.pools, {}
        await asyncio.gather(*(pool.close() for pool in pools))
        await self._plane.close()
        self.reader.close()

    def _settings(self, config: ServeConfig) -> ServeConfig:
        return replace(config, **self._events)

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
                for on_changed in self.on_ready_changed:
                    on_changed()
                log.info("a pool is gone, as no worker is registered for it", pool=str(name))
        pools = self.pools
        for pool in pools:
            pool.partners = [each for each in pools if pool.found.shares_requests_with(each.found)]


async def _find_events(config: ServeConfig) -> dict[str, Any]:
    """Settings that name the NATS server which all pools receive events from; where there is none,
    engines are asked."""
    if config.event_sources not in ("auto", "nats"):
        return {}
    url = config.nats
    if url is None and await probe(DEFAULT_NATS_URL):
        url = DEFAULT_NATS_URL
    return {"event_sources": "grpc"} if url is None else {"nats": url}


def _elsewhere(name: SetName, sets: Mapping[SetName, WorkerSet]) -> frozenset[int]:
    """Workers at a set's endpoint whose cards are of other sets."""
    others = (o for o in sets.values() if o.name.endpoint == name.endpoint and o.name != name)
    return frozenset(worker_id for other in others for worker_id in other.cards)


def _pool_report(pool: ModelPool) -> dict[str, Any]:
    name, card = pool.name, pool.found.card
    return {
        "model": name.model,
        "endpoint": str(name.endpoint),
        "checksum": name.checksum,
        "worker_type": card.worker_type,
        "prefill_pools": [each.label for each in pool.partners],
        "refused_prefill_pools": pool.refused_partners,
        "state": pool.state,
        "reason": pool.reason,
        "token_cache": pool.token_cache,
        "long_chats": pool.long_chats,
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
