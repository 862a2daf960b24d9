"""The engines that are watched: by address, and by the worker id that each is registered under."""

import asyncio
import math
from collections.abc import Callable, ValuesView

import structlog

from ..process.supervised import stopped
from .dialects import EngineClient
from .engine_facts import EngineFacts
from .health_tracker import HealthTracker
from .registry import WorkerRegistry, WorkerState
from .trtllm_client import EngineIdentity
from .worker_url import WorkerUrl

PROBES_TO_LOSE_ID = 3
"""Failed probes in a row after which a successor may have an engine's id."""

log = structlog.get_logger(__name__)


class WatchedEngine:
    """What the health monitor keeps of an engine."""

    def __init__(
        self, url: WorkerUrl, tracker: HealthTracker, client: EngineClient, origin: str = "static"
    ) -> None:
        self.url = url
        self.origin = origin  # where we have it from
        self.tracker = tracker
        self.client = client
        self.facts = EngineFacts()
        self.worker_id: int | None = None  # the id it is registered under
        self.alive: bool | None = None  # ready and connected, as outlier detection knows it
        self.ejected = False
        self.draining = False  # it gets no new requests, whatever its health
        self.weight = url.weight
        self.was_ready = False  # what _publish saw last
        self.published: tuple[WorkerState, str, EngineFacts] | None = None
        self.probes = 0
        self.probing = False
        self.probed_at = -math.inf  # when the last probe began
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it answers its probes and is not ejected."""
        return self.tracker.state is WorkerState.READY and not self.ejected

    @property
    def takes_requests(self) -> bool:
        return self.is_ready and not self.draining

    @property
    def state(self) -> WorkerState:
        """What it is registered as, ejections apart."""
        return WorkerState.DRAINING if self.draining else self.tracker.state

    async def close(self) -> None:
        await stopped(self.task)
        await self.client.close()


class EngineTable:
    """Keeps the registry right about which engine has which worker id.

    An id belongs to one engine, an engine has one id or, where another one holds it, none.
    `on_released` is called with each id that is given up.
    """

    def __init__(self, registry: WorkerRegistry, on_released: Callable[[int], None]) -> None:
        self._registry = registry
        self._on_released = on_released
        self._by_address: dict[str, WatchedEngine] = {}
        self.by_id: dict[int, WatchedEngine] = {}
        """by worker id, those that have one; only to be read"""

    def add(self, engine: WatchedEngine) -> None:
        """Watch an engine whose address is not in the table; it has no id yet."""
        self._by_address[engine.url.address] = engine

    def remove(self, engine: WatchedEngine) -> None:
        """Forget an engine and its worker."""
        if self._by_address.get(engine.url.address) is engine:
            del self._by_address[engine.url.address]
        self.release(engine)

    def clear(self) -> list[WatchedEngine]:
        """Watch none of them any more; their workers stay registered. Returns them."""
        engines, self._by_address = list(self._by_address.values()), {}
        return engines

    def at(self, address: str) -> WatchedEngine | None:
        return self._by_address.get(address)

    @property
    def watched(self) -> ValuesView[WatchedEngine]:
        return self._by_address.values()

    def claim(self, engine: WatchedEngine, identity: EngineIdentity) -> WatchedEngine:
        """Register an engine under its id, unless another one holds that; return who holds it."""
        worker_id = engine.url.default_id if identity.worker_id is None else identity.worker_id
        holder = self.by_id.get(worker_id, engine)
        if holder is not engine:
            if holder.tracker.failed_probes < PROBES_TO_LOSE_ID:
                return holder
            self._evict(holder, engine)
        self.by_id[worker_id] = engine
        if engine.worker_id not in (None, worker_id):
            log.info("worker has a new id", address=engine.url.address, worker_id=worker_id)
            self.release(engine)
        engine.worker_id = worker_id
        settings = engine.facts.settings
        self._registry.add(
            worker_id,
            dp_size=engine.url.dp_size if identity.dp_size is None else identity.dp_size,
            dp_start=engine.url.dp_start,
            address=engine.url.address,
            total_kv_blocks=settings.get("total_kv_blocks"),
            max_num_batched_tokens=settings.get("max_num_batched_tokens"),
            max_num_seqs=settings.get("max_num_seqs") or engine.facts.max_batch_size or None,
            publisher_ids=identity.publisher_ids or (),
            weight=engine.weight,
            dialect=engine.client.dialect,
            origin=engine.origin,
            state=engine.state,
        )
        return engine

    def release(self, engine: WatchedEngine) -> None:
        """Take an engine's worker out of the registry. Nothing if it has none."""
        worker_id = engine.worker_id
        if worker_id is not None:
            del self.by_id[worker_id]
            self._registry.remove(worker_id)
            self._on_released(worker_id)
            engine.worker_id, engine.alive = None, None

    def _evict(self, holder: WatchedEngine, successor: WatchedEngine) -> None:
        """Take the id of an engine that is gone: it is registered by its address again."""
        log.warning(
            "worker id taken over",
            worker_id=holder.worker_id,
            address=successor.url.address,
            held_by=holder.url.address,
        )
        self.release(holder)
        default = holder.url.default_id
        if default not in self.by_id:
            self.claim(holder, EngineIdentity(worker_id=default))
