"""DiscoveredWorkers: the workers that a key-value store lists, kept as it has them."""

from collections.abc import Collection, Mapping
from typing import Protocol

import structlog

from ...base.clock import Clock
from ...runtime.discovery import Reconciler, Watch
from ...runtime.request_planes import RequestClient
from ...workers.dialects import DynamoClient
from ...workers.engine_table import WatchedEngine
from ...workers.health import HealthMonitor
from ...workers.records import Departures, DiscoveredWorker
from .worker_admin import WorkerAdmin

log = structlog.get_logger(__name__)


class WorkerSource(Watch, Protocol):
    """Who is registered."""

    @property
    def workers(self) -> Mapping[int, DiscoveredWorker]:
        """Those that can be called, by their ids."""
        ...

    @property
    def elsewhere(self) -> Collection[int]:
        """Workers that are registered as others' now: that is no loss of the store's."""
        ...


class DiscoveredWorkers:
    """Adds those who register, from `start` to `close`; who registers no more, retires.

    Beside them there may be others, whom it leaves alone. Those that an admin call has drained
    or removed are not brought back while they stay registered.
    """

    def __init__(
        self,
        backend: str,
        watch: WorkerSource,
        admin: WorkerAdmin,
        monitor: HealthMonitor,
        plane: RequestClient | None,
        clock: Clock,
    ) -> None:
        """`backend` is the store's name. `plane` is started and closed by its owner, `watch` by
        us. None: no worker is called over one."""
        self._backend = backend
        self._admin, self._monitor, self._plane, self._clock = admin, monitor, plane, clock
        self._watch = watch
        self._departures = Departures()
        self._ours: dict[int, DiscoveredWorker] = {}
        self._logged: set[int] = set()
        self._reconciler = Reconciler(f"workers in {backend}", backend, watch, self.reconcile)

    async def start(self) -> None:
        """Returns once those that are there are known, or the store takes long. ConfigError if it
        refuses us."""
        await self._reconciler.start()

    async def close(self) -> None:
        """Follow the store no more. Idempotent."""
        await self._reconciler.close()

    async def reconcile(self) -> None:
        """Let the workers be those that are registered now."""
        now, wanted = self._clock.now(), self._watch.workers
        for worker_id, worker in wanted.items():
            self._departures.on_here(worker_id)
            await self._have(worker_id, worker)
        for worker_id in [known for known in self._ours if known not in wanted]:
            if worker_id in self._watch.elsewhere:
                self._departures.on_moved(worker_id)
                self._retire(worker_id)
            elif self._departures.on_gone(worker_id, now):
                self._retire(worker_id)
            elif worker_id in self._departures.kept and worker_id not in self._logged:
                self._logged.add(worker_id)
                self._ask_at_once(worker_id)
                log.warning("registration gone with most others, the worker stays for a while",
                            worker_id=worker_id)  # fmt: skip
        for worker_id in [*self._departures.overdue(now), *self._departures.kept]:
            if worker_id not in self._departures.kept or not self._answers(worker_id):
                self._departures.forget(worker_id)
                self._retire(worker_id)
        self._logged &= self._departures.kept

    async def _have(self, worker_id: int, worker: DiscoveredWorker) -> None:
        known = self._ours.get(worker_id)
        if known is not None and known == worker and not self._is_retiring(known):
            return
        if known is not None and (known.url, known.incarnation) != (worker.url, worker.incarnation):
            await self._forget(worker_id)  # the same name at another place, or another one here
            known = None
        engine = self._monitor.find(worker.url.address)
        if engine is not None and engine.origin != self._backend:
            if worker_id not in self._ours:
                log.info("a registered worker is there already", address=worker.url.address)
                self._ours[worker_id] = worker
            return
        if engine is None:
            if known is not None:
                return  # an admin call removed it
            client = None
            if worker.route is not None:
                assert self._plane is not None
                client = DynamoClient(worker.route, self._plane, self._clock)
            self._monitor.add(worker.url, client=client, origin=self._backend)
        else:
            if self._admin.is_retiring(engine):
                self._admin.resume(engine)
            if isinstance(engine.client, DynamoClient) and worker.route is not None:
                engine.client.route = worker.route
            engine.tracker.on_suspicion(self._clock.now())  # another engine may be at its place
            engine.wake.set()
        self._ours[worker_id] = worker

    def _ask_at_once(self, worker_id: int) -> None:
        engine = self._engine(self._ours[worker_id])
        if engine is not None:
            if isinstance(engine.client, DynamoClient):
                engine.client.doubt()
            engine.tracker.on_suspicion(self._clock.now())
            engine.wake.set()

    def _answers(self, worker_id: int) -> bool:
        """Whether it is well, by its probes: then it serves on without a registration."""
        engine = self._engine(self._ours[worker_id]) if worker_id in self._ours else None
        return engine is not None and engine.is_ready

    def _is_retiring(self, worker: DiscoveredWorker) -> bool:
        engine = self._engine(worker)
        return engine is not None and self._admin.is_retiring(engine)

    def _engine(self, worker: DiscoveredWorker) -> WatchedEngine | None:
        engine = self._monitor.find(worker.url.address)
        return engine if engine is not None and engine.origin == self._backend else None

    def _retire(self, worker_id: int) -> None:
        worker = self._ours.pop(worker_id, None)
        if worker is None or worker.url.address in {w.url.address for w in self._ours.values()}:
            return  # another worker is at its place
        if (engine := self._engine(worker)) is not None:
            log.info("registration gone, the worker is drained",
                     worker_id=worker_id, address=worker.url.address)  # fmt: skip
            self._admin.retire(engine)

    async def _forget(self, worker_id: int) -> None:
        worker = self._ours.pop(worker_id)
        if self._engine(worker) is not None:
            await self._monitor.remove(worker.url.address)
