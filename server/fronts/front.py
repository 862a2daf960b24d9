"""Front: one process of several that take requests on the same port, and let the decider decide."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import structlog

from ...base.clock import SystemClock
from ...base.limit_hits import LimitHits
from ...process.supervised import stopped, supervise
from ...router.config import KvRouterConfig
from ...router.kv_router import KvRouter
from ..access import Security
from ..config import ServeConfig
from ..dispatch import NoTrace, RequestReader
from ..metrics import (
    RouterMetrics,
    dispatch_metrics,
    fault_metrics,
    limit_metrics,
    loop_metrics,
)
from ..pool import new_dispatcher, new_monitor, request_observer, wait_for_probes
from ..services import CallLimits, GrpcServer, TrtllmService, router_service_paths
from ..tracing import span_export_of
from .calls import RelayedService
from .engine_follower import EngineFollower
from .front_totals import totals_of
from .link import DeciderLink
from .load_picture import LoadPicture
from .messages import Status, Welcome
from .process_folder import SOCKET_FILE
from .pulse import Pulse
from .remote_decisions import RemoteDecisions
from .told_reports import ToldReports

TOTALS_EVERY_S = 0.5

log = structlog.get_logger(__name__)


class FrontPlace(NamedTuple):
    """Which front it is, the gRPC port that all have, and the folder of the router's processes."""

    number: int
    port: int
    folder: Path


class Front:
    """Parses requests, sends them where the decider says, and streams the answers.

    Implements what a serving process runs. Requests that come while the decider is away go by the
    loads known last.
    """

    def __init__(self, config: ServeConfig, place: FrontPlace) -> None:
        self._config, self._place = config, place
        self._draining = False
        self._stack = AsyncExitStack()
        clock = self._clock = SystemClock()
        self._security = Security(config, clock)
        self._spans = span_export_of(config.observability.otel_endpoint)
        # It decides nothing: what else a router has is used by the dispatcher.
        settings = KvRouterConfig(
            mode="least-loaded",
            use_kv_events=False,
            block_size=config.router.block_size,
            admission=config.router.admission,
            affinity=config.router.affinity,  # what engines are to keep of sessions
        )
        self._router = router = KvRouter(settings, clock=clock)
        self._monitor = monitor = new_monitor(
            config, self._security, router.registry, clock, ToldReports
        )
        self._decisions = RemoteDecisions(
            router.registry, monitor, clock, LoadPicture(), config.router.block_size
        )
        self._link = DeciderLink(
            str(place.folder / SOCKET_FILE),
            place.number,
            clock,
            timeout_s=config.fronts.decider_timeout_s,
            bookings=self._decisions.told_anew,
        )
        self._decisions.attach(self._link)
        assert isinstance(monitor.reports, ToldReports)
        monitor.reports.tell = self._link.note
        hits = LimitHits()
        reader = RequestReader(config.router.block_size, config.peers, hits)
        self._metrics = RouterMetrics(router, clock, lambda: self._dispatcher.in_flight)
        observer = request_observer(config, self._metrics.requests, self._decisions, clock)
        tracing = NoTrace() if self._spans is None else self._spans.tracing
        self._dispatcher = new_dispatcher(
            config,
            router,
            monitor,
            clock,
            observer=observer,
            decisions=self._decisions,
            hits=hits,
            reader=reader,
            tracing=tracing,
        )
        self._follower = EngineFollower(monitor, self._in_flight_on)
        self._link.on_engines = self._follower.tell
        self._link.on_ready.append(self._on_welcome)
        self._grpc = GrpcServer(
            TrtllmService(
                self._dispatcher,
                monitor,
                model_id=config.model_id,
                mode=config.router.mode,
                policy=config.router.policy_name,
            ),
            RelayedService(router_service_paths(), self._link),
            host=config.host,
            port=place.port,
            is_ready=lambda: monitor.any_ready and not self._draining,
            access=self._security.access,
            calls=CallLimits(config.peers, hits, self._metrics.requests.on_refused),
            workers=len(config.workers),
            max_message_bytes=config.connection.max_message_bytes,
            tls=self._security.server_tls,
            reuse_port=True,
        )
        self._totals = (
            self._metrics.requests.collect,
            dispatch_metrics(self._dispatcher),
            fault_metrics(router, self._dispatcher),
            limit_metrics(hits),
            loop_metrics,
        )
        monitor.listeners.append(self._on_workers)

    @property
    def config(self) -> ServeConfig:
        return self._config

    @property
    def ready_line(self) -> str:
        return f"dynamo-router front {self._place.number} ready"

    def reload(self) -> None:
        """Its settings stay."""

    async def start(self) -> None:
        """Know the engines, then take a share of the port's connections."""
        stack = self._stack
        stack.callback(self._router.close)
        pulse = Pulse(self._place.folder, 1 + self._place.number)
        stack.push_async_callback(pulse.close)
        if self._spans is not None:
            stack.push_async_callback(self._spans.close)
        self._security.watch.start()
        stack.push_async_callback(self._security.watch.close)
        stack.push_async_callback(self._link.close)
        stack.push_async_callback(self._monitor.close)
        stack.push_async_callback(self._dispatcher.close)
        stack.push_async_callback(self._follower.close)
        self._link.start()
        self._follower.start()
        self._dispatcher.start()
        beat = supervise("beat", self._beat)
        stack.push_async_callback(stopped, beat)
        await self._follower.followed.wait()
        await wait_for_probes(self._monitor, self._router.registry)
        await self._grpc.listen()
        await self._grpc.start()
        self._on_workers()

    def turn_away(self) -> None:
        self._draining = True
        self._on_workers()

    async def drain(self, grace_s: float) -> None:
        self.turn_away()
        self._tell_status()
        await self._grpc.drain(grace_s)

    async def close(self) -> None:
        """End what is left; the decider hears of all that was counted. Idempotent."""
        self._draining = True
        await self._grpc.close()
        self._tell_totals()
        await self._stack.aclose()

    async def _beat(self) -> None:
        pause, told = self._config.fronts.decider_timeout_s / 4, self._clock.now()
        while True:
            self._decisions.look()
            self._tell_status()
            now = self._clock.now()
            if now - told >= TOTALS_EVERY_S:
                told = now
                self._tell_totals()
            await asyncio.sleep(min(pause, TOTALS_EVERY_S))

    def _tell_status(self) -> None:
        in_flight, fallbacks = self._dispatcher.in_flight, self._decisions.fallbacks
        self._link.beat(Status(in_flight, fallbacks, self._draining))

    def _tell_totals(self) -> None:
        counts = self._metrics.workers.counts
        workers = [
            (entry.worker_id, known)
            for entry in self._router.registry.entries()
            if (known := counts(entry.worker_id)) is not None
        ]
        self._link.tell(totals_of(self._totals, workers))

    def _in_flight_on(self, worker_id: int) -> int:
        on = sum(
            flight.decision.worker.worker_id == worker_id
            for flight in self._dispatcher.flights
            if flight.decision is not None and flight.call is not None
        )
        return on + self._dispatcher.plain.requests_of(worker_id)

    def _on_welcome(self, welcome: Welcome) -> None:
        self._follower.on_welcome()

    def _on_workers(self) -> None:
        self._decisions.look()
        self._grpc.update()
