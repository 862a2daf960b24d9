"""ConfiguredPool: the one pool of `serve`: workers that the configuration names, that are found at
its endpoint, and mock engines that are started; and the prefill workers in front of them."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

import structlog

from ...router.prompt import Prompt
from ...workers.records import PREFILL, ModelCard
from ..admin import DiscoveredWorkers, WorkerList, WorkerSource
from ..config import ServeConfig
from ..dashboard import PageData, PagedPool, Tokenize
from ..metrics import Labels, MetricsPage
from ..mock_process import MockProcess
from ..server_parts import ServerParts
from .worker_discovery import MOST_WORKERS, WorkerDiscovery, is_discovering
from .worker_pool import WorkerPool

log = structlog.get_logger(__name__)


class Sources(NamedTuple):
    """Where workers are found that take whole requests or their answers, and prefill workers."""

    name: str
    decode: WorkerSource
    prefill: WorkerSource

    @property
    def each(self) -> tuple[WorkerSource, WorkerSource]:
        return self.decode, self.prefill


class ConfiguredPool:
    """Implements Pools. `workers` is the pool itself, `prefill` that of the workers that compute
    prompts for it, if the configuration names any, or where they are found."""

    def __init__(
        self,
        parts: ServerParts,
        *,
        tokenize: Tokenize | None = None,
        vocab_size: int | None = None,
        sources: Sources | None = None,
    ) -> None:
        """`tokenize` is how the model reads text, `vocab_size` what mock engines generate from, if
        that is known. `sources` have workers, and prefill workers, beside those that are named."""
        config = self._config = parts.config
        self._parts, self._vocab_size = parts, vocab_size
        self._stack = AsyncExitStack()
        self.workers = WorkerPool(
            config,
            parts.security,
            parts.clock,
            parts.tracing,
            parts.off_loop,
            hits=parts.hits,
            tokenize=tokenize,
            prefill=self._partner if _has_prefill(config) or sources else None,
            recorder=parts.recorder,
        )
        self.prefill: WorkerPool | None = None
        if _has_prefill(config) or sources is not None:
            self.prefill = WorkerPool(
                config,
                parts.security,
                parts.clock,
                parts.tracing,
                parts.off_loop,
                pool="prefill",
                elsewhere=partial(_ids_of, self.workers),
                hits=parts.hits,
            )
            self._stack.callback(self.prefill.router.close)
        parts.calls.on_request_refused = self.workers.metrics.requests.on_refused
        self._stack.callback(self.workers.router.close)
        admin, monitor = self.workers.admin, self.workers.monitor
        self._discovery: WorkerDiscovery | None = None
        if is_discovering(config):
            nats = parts.security.nats
            self._discovery = WorkerDiscovery(config, admin, monitor, parts.clock, nats)
        self._prefill_discovery: WorkerDiscovery | None = None
        if config.prefill_component is not None and self.prefill is not None:
            self._prefill_discovery = WorkerDiscovery(
                config,
                self.prefill.admin,
                self.prefill.monitor,
                parts.clock,
                parts.security.nats,
                component=config.prefill_component,
                only=PREFILL,
            )
        self._found: list[DiscoveredWorkers] = []
        """workers of `sources`, and prefill workers"""
        if sources is not None:
            assert self.prefill is not None
            for source, pool in zip(sources.each, (self.workers, self.prefill), strict=True):
                found = DiscoveredWorkers(
                    sources.name, source, pool.admin, pool.monitor, None, parts.clock
                )
                self._found.append(found)
        self._list = WorkerList(admin, monitor, refresh_s=config.dns_refresh_s)
        data = PageData(self.workers.dashboard, self.workers.reader, self.health)
        self.shown: Sequence[PagedPool] = (PagedPool(data),)
        """what the dashboard can look at"""

    @property
    def most_workers(self) -> int:
        """For how many a share of the open files is kept."""
        config = self._config
        found = MOST_WORKERS if self._discovery is not None or self._found else 0
        named = len(config.workers) + len(config.prefill_workers)
        return named + config.mock_engines.mockers + found

    @property
    def description(self) -> str:
        """Its part of the ready line."""
        pool, events = self.workers, self.workers.events
        prefill = f"prefill workers {len(self.prefill.router.registry)} " if self.prefill else ""
        return (
            f"mode {self._config.router.mode} workers {len(pool.router.registry)} {prefill}"
            f"events {events.description if events else 'off'}"
        )

    @property
    def card(self) -> ModelCard | None:
        """What discovered workers have published of their model, if any have."""
        return None if self._discovery is None else self._discovery.card

    @property
    def running(self) -> Sequence[WorkerPool]:
        return (self.workers,) if self.prefill is None else (self.workers, self.prefill)

    @property
    def labelled(self) -> Sequence[tuple[Labels, WorkerPool]]:
        """The pool, and that of the prefill workers with a label of its own."""
        others = () if self.prefill is None else (({"pool": "prefill"}, self.prefill),)
        return (({}, self.workers), *others)

    @property
    def has_queue(self) -> bool:
        return self.workers.has_queue

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether requests can be served, and what /health shows."""
        more = {
            **self.workers.health,
            "mode": self._config.router.mode,
            "data_path": "nghttp2",
            "draining": self._parts.draining,
        }
        if self.prefill is not None:
            refusal = self.workers.handoffs.refusal(self.prefill)
            more["prefill"] = {"workers": self.prefill.states, "refused": refusal}
        return bool(more["workers"].get("ready")) and not self._parts.draining, more

    def metrics_pages(self) -> Iterator[tuple[Labels, MetricsPage]]:
        yield from ((labels, pool.metrics.page) for labels, pool in self.labelled)

    def change(self, new: ServeConfig, old: ServeConfig, keys: frozenset[str]) -> None:
        for pool in self.running:
            pool.change(new, keys)
        self._list.refresh_s = new.dns_refresh_s
        if "workers" in keys:
            self._list.reconcile(old.workers, new.workers)

    async def start(self) -> None:
        """Find the event plane, start mock engines, find the workers, and take requests.

        ConfigError if the event plane or the store cannot be had.
        """
        config = self._config
        if not self.most_workers:
            log.warning("no workers are configured: give --worker URL or --discovery, or add some")
        await self._find(self.workers, self._discovery, self._list, config.workers)
        if (pool := self.prefill) is not None:
            named = WorkerList(pool.admin, pool.monitor, refresh_s=config.dns_refresh_s)
            await self._find(pool, self._prefill_discovery, named, config.prefill_workers)
            pool.dispatcher.start()
        for each in self._found:
            self._stack.push_async_callback(each.close)
            await each.start()
        self.workers.dispatcher.start()

    async def _find(
        self,
        pool: WorkerPool,
        discovery: WorkerDiscovery | None,
        named: WorkerList,
        urls: Sequence[str],
    ) -> None:
        """Watch the workers of a pool, those at these addresses among them, and follow their
        caches."""
        stack = self._stack
        if discovery is not None:
            stack.push_async_callback(discovery.close)
            await discovery.open()
        stack.push_async_callback(pool.close_events)
        nats_url = await pool.start_events(None if discovery is None else discovery.ask_about)
        await pool.start_replicas()
        mocks = self._mock_process(nats_url) if pool is self.workers else None
        if mocks is not None:
            stack.push_async_callback(mocks.stop)
            await mocks.start()
        # Closed before the engines stop: it would only report that they did.
        stack.push_async_callback(pool.close_workers)
        stack.push_async_callback(named.close)
        for url in () if mocks is None else mocks.urls:
            pool.monitor.add(url)
        await named.start(urls)
        if discovery is not None:
            stack.push_async_callback(discovery.stop)
            await discovery.start()

    def _partner(self, prompt: Prompt) -> WorkerPool | None:
        pool = self.prefill
        return pool if pool is not None and pool.monitor.any_ready else None

    async def wait_for_probes(self) -> None:
        """Wait until every worker was probed once, or that takes long."""
        await asyncio.gather(*(pool.wait_for_probes() for pool in self.running))

    async def close(self) -> None:
        """End it, started or not. Idempotent."""
        await self._stack.aclose()

    def _mock_process(self, nats_url: str | None) -> MockProcess | None:
        config = self._config
        if not config.mock_engines.mockers:
            return None
        return MockProcess(
            config.mock_engines,
            block_size=config.router.block_size,
            namespace=config.namespace,
            component=config.component,
            endpoint=config.endpoint,
            model_id=config.model_id,
            nats_url=nats_url,
            nats_auth=config.nats_auth,
            vocab_size=self._vocab_size,
        )


def _has_prefill(config: ServeConfig) -> bool:
    return bool(config.prefill_workers) or config.prefill_component is not None


def _ids_of(pool: WorkerPool) -> Collection[int]:
    return [entry.worker_id for entry in pool.router.registry.entries()]
