"""WorkerPool: workers that requests are routed among, and all that decides and carries that."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import structlog

from ...base.backoff import Backoff
from ...base.clock import Clock
from ...base.limit_hits import LimitHits
from ...base.urls import DEFAULT_NATS_URL
from ...indexer.event_index import EventIndex
from ...kv_events import SYNC_RETRY_S, EventIntake, StateReset, WorkerQueries
from ...process.off_loop import OffLoop
from ...router.decider import Decider
from ...router.kv_router import KvRouter
from ...runtime.event_planes import EventPlane, NatsPlane
from ...runtime.event_planes.zmq import ZmqPlane
from ...workers.health import HealthMonitor
from ...workers.registry import WorkerState
from ..access import Security
from ..admin import ADMISSION, DISAGG, HEALTH, KNOBS, OUTLIERS, REQUESTS, CacheClearing, WorkerAdmin
from ..config import ServeConfig
from ..dashboard import Dashboard, Tokenize
from ..dispatch import (
    AccessLog,
    Dispatcher,
    DispatchObserver,
    OutputTracking,
    RequestReader,
    Tracing,
)
from ..handoff import Handoffs, Partners
from ..metrics import RouterMetrics
from ..record import PoolRecord, Recorder
from ..replica_sync import ReplicaSync
from ..request_limits import DispatchLimits

FIRST_PROBES_S = 2.0
"""How long a starting server waits for the first answers of all workers."""

log = structlog.get_logger(__name__)


class WorkerPool:
    """The index, slots, health, admission and dispatch of one set of workers.

    Once workers are known, `dispatcher.start` begins to serve. `close` undoes all of it; who serves
    its index over HTTP too closes the parts in turn, the router last.
    """

    def __init__(
        self,
        config: ServeConfig,
        security: Security,
        clock: Clock,
        tracing: Tracing,
        off_loop: OffLoop | None = None,
        *,
        pool: str = "",
        elsewhere: Callable[[], Collection[int]] = frozenset,
        reset: StateReset | None = None,
        hits: LimitHits | None = None,
        tokenize: Tokenize | None = None,
        prefill: Partners | None = None,
        recorder: Recorder | None = None,
        model: str = "",
    ) -> None:
        """`off_loop`: where long requests are read, if not on threads of its own; `pool`: which set
        of the endpoint's workers these are, by a name that every router has for it, empty: all;
        `elsewhere`: those that are of another set; `reset` is shared by all pools of a process;
        `hits`: what limits are counted by, if the pool does not show them; `tokenize`: how its
        model reads text, if that is known; `prefill`: which workers may compute a prompt for these,
        if any ever do; `recorder`: of requests, if they are to be recorded; `model`: its name, if
        the configuration has none."""
        self._config, self._security, self._clock = config, security, clock
        self._pool, self._elsewhere, self._reset = pool, elsewhere, reset
        self.prefills = 0
        """prompts of other pools' requests that are computed here, or were not read yet"""
        self.events: EventIntake | None = None
        self.replicas: ReplicaSync | None = None
        self._own_plane: EventPlane | None = None
        self._queries: WorkerQueries | None = None
        self.router = KvRouter(config.router, clock=clock)
        self.monitor = HealthMonitor(
            self.router.registry,
            clock,
            block_size=config.router.block_size,
            policy=config.health,
            outliers=config.outliers,
            connection=config.connection,
            mixed_models=config.mixed_models,
            tls=security.worker_tls,
            key=security.engine_key,
        )
        self.metrics = RouterMetrics(self.router, clock, lambda: self.dispatcher.in_flight)
        observer: DispatchObserver = self.metrics.requests
        if config.router.router_track_output_blocks:
            observer = OutputTracking(self.router, observer)
        if config.observability.access_log:
            observer = AccessLog(clock, observer)
        if recorder is not None:
            observer = PoolRecord(recorder, model, self.router, clock, observer)
        self.dashboard = Dashboard(
            self.router,
            clock,
            lambda: self.dispatcher.requests,
            observer,
            tokenize,
            counts=lambda: self.metrics.requests.counts(config.router.block_size),
            load=lambda: (self.dispatcher.in_flight, len(self.decider.queue or ())),
            model=lambda: model or config.model_id or "",
        )
        before_decision = self.dashboard.receipts.before_decision
        self.decider = Decider(self.router, before_decision=before_decision)
        self.hits = LimitHits() if hits is None else hits
        self.reader = RequestReader(
            config.router.block_size,
            config.peers,
            self.hits,
            off_loop,
            hashes=self.router.uses_caches or recorder is not None,
        )
        self.handoffs = Handoffs(
            self.decider, self.monitor, clock, config.disagg, config.handoff, prefill
        )
        self.handoffs.outcomes.on_pair.append(self.dashboard.receipts.on_pair)
        self.handoffs.outcomes.on_regret_s.append(self.dashboard.receipts.on_regret)
        self.dispatcher = Dispatcher(
            self.decider,
            self.monitor,
            clock,
            dispatch_limits(config),
            observer=self.dashboard.observer,
            hits=self.hits,
            reader=self.reader,
            tracing=tracing,
            handoffs=self.handoffs,
            notes_forecasts=recorder is not None,
        )
        self.metrics.watch_pool(
            self.dispatcher,
            self.monitor.reports,
            max_workers=config.observability.metrics_max_workers,
            queue=self.decider.queue,
            hits=self.hits if hits is None else None,
        )
        self.admin = WorkerAdmin(
            self.monitor,
            clock,
            booked=self.router.requests_of,
            unbooked=self.dispatcher.plain.requests_of,
        )
        self.clearing = CacheClearing(self.monitor, self.router)
        self.monitor.listeners.append(self.decider.poll)
        self.dashboard.incidents.watch(self.monitor.listeners)

    def has_worker(self, worker_id: int) -> bool:
        """Whether a worker of this id is known here."""
        return self.router.registry.entry(worker_id) is not None

    @property
    def in_flight(self) -> int:
        """Requests in flight, and prompts that are computed here for other pools."""
        return self.dispatcher.in_flight + self.prefills

    @property
    def states(self) -> dict[str, int]:
        """How many workers are in each state."""
        states: dict[str, int] = {}
        for entry in self.router.registry.entries():
            states[entry.state.value] = states.get(entry.state.value, 0) + 1
        return states

    @property
    def health(self) -> dict[str, Any]:
        """How its workers and its event plane are, and how much is under way."""
        events = self.events
        return {
            "workers": self.states,
            "event_plane": {
                "state": events.plane_state.value if events else "off",
                "server": events.description if events else "off",
            },
            "in_flight": self.in_flight,
        }

    @property
    def has_queue(self) -> bool:
        """Whether requests can wait here."""
        return self.decider.queue is not None

    def change(self, new: ServeConfig, keys: frozenset[str]) -> None:
        """Use the settings of these keys, which were checked, from now on."""
        if keys.intersection(HEALTH):
            self.monitor.set_policy(new.health)
        if keys.intersection(OUTLIERS):
            self.monitor.reports.outliers.policy = new.outliers
        if keys.intersection(REQUESTS):
            self.dispatcher.set_limits(dispatch_limits(new))
        if keys.intersection(DISAGG):
            self.handoffs.change(new.disagg, new.handoff)
        if keys.intersection((*KNOBS, *ADMISSION)):
            self._change_router(new, keys)

    def _change_router(self, new: ServeConfig, keys: frozenset[str]) -> None:
        # Thresholds that are not among the keys may have been set by admin calls since.
        names = [key.rpartition(".")[2] for key in ADMISSION if key in keys]
        changed = {name: getattr(new.router.admission, name) for name in names}
        admission = replace(self.router.limits.config, **changed)
        self.decider.change(replace(new.router, admission=admission))

    async def start_events(
        self, ask_workers: Callable[[EventIndex], WorkerQueries] | None = None
    ) -> str | None:
        """Connect the index to the event plane; the URL of its server. `ask_workers` makes, for an
        index, the way to ask workers themselves. ConfigError if the plane cannot be had."""
        index = self.router.index
        if not isinstance(index, EventIndex):
            return None
        self._queries = None if ask_workers is None else ask_workers(index)
        events = self.events = EventIntake(
            self._config,
            index,
            self.router.registry,
            self._clock,
            client_of=self.monitor.client,
            url_of=self.monitor.url,
            auth=self._security.nats,
            on_unannounced=self.monitor.suspect,
            hits=self.hits,
            ask_worker=None if self._queries is None else self._queries.ask,
            pool=self._pool,
            reset=self._reset,
        )
        await events.start()
        self.metrics.watch_events(index, events)
        return events.nats_url

    async def start_replicas(self) -> None:
        """Count what other routers have booked, if that is wanted; after `start_events`."""
        config = self._config
        if not config.router.router_replica_sync:
            return
        plane = None if self.events is None else self.events.plane
        if not isinstance(plane, ZmqPlane if config.plane.is_zmq else NatsPlane):
            plane = self._own_plane = self._sync_plane()
        elif self.events is not None and self.events.is_embedded:
            log.warning("other routers are out of reach: give all of them the same --nats")
        self.replicas = ReplicaSync(
            self.router.count_peers(),
            plane,
            self._clock,
            self.router.sessions,
            namespace=config.namespace,
            component=config.component,
            endpoint=config.endpoint,
            pool=self._pool,
            elsewhere=self._elsewhere,
            name=config.router_id,
            on_load_fell=self.decider.poll,
        )
        replica = self.replicas.replica
        self.handoffs.meetings.join(replica.own.router_id, replica.peers.present)
        await self.replicas.start()
        self.metrics.watch_replicas(self.replicas)

    def _sync_plane(self) -> EventPlane:
        """A plane for other routers alone. ConfigError if it cannot be had."""
        config = self._config
        if config.plane.is_zmq:
            return config.plane.open(config.discovery, config.backend, config.host)
        url, backoff = config.nats or DEFAULT_NATS_URL, Backoff(cap=SYNC_RETRY_S)
        return NatsPlane(url, auth=self._security.nats, backoff=backoff)

    async def wait_for_probes(self, at_most_s: float = FIRST_PROBES_S) -> None:
        """Wait until every worker was probed once, at most so long."""
        probed = asyncio.Event()

        def look() -> None:
            states = [entry.state for entry in self.router.registry.entries()]
            if WorkerState.CONNECTING not in states:
                probed.set()

        self.monitor.listeners.append(look)
        look()
        try:
            async with asyncio.timeout(at_most_s):
                await probed.wait()
        except TimeoutError:
            pass
        finally:
            self.monitor.listeners.remove(look)

    async def close_workers(self) -> None:
        """End what runs, and watch no worker any more. Idempotent."""
        self.dashboard.close()
        await self.dispatcher.close()
        await self.handoffs.readings.close()
        await self.admin.close()
        await self.monitor.close()

    async def close_events(self) -> None:
        """Take no more events, and no messages of other routers. Idempotent."""
        if self.replicas is not None:
            await self.replicas.close()
        if self._own_plane is not None:
            await self._own_plane.close()
        if self.events is not None:
            await self.events.close()
        if self._queries is not None:
            await self._queries.close()

    async def close(self) -> None:
        """Undo all of it. Idempotent."""
        await self.close_workers()
        await self.close_events()
        self.router.close()


def dispatch_limits(config: ServeConfig) -> DispatchLimits:
    return DispatchLimits(config.limits, config.max_attempts, config.request_timeout_s)
