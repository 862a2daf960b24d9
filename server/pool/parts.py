"""What takes requests to workers, made as a configuration says: for a pool, and for a front."""

from ...base.clock import Clock
from ...base.limit_hits import LimitHits
from ...router.kv_router import KvRouter
from ...workers.health import HealthMonitor
from ...workers.registry import WorkerRegistry
from ...workers.request_reports import RequestReports
from ..access import Security
from ..config import ServeConfig
from ..dispatch import (
    AccessLog,
    Bookings,
    Decisions,
    Dispatcher,
    DispatchObserver,
    OutputTracking,
    RequestReader,
    Tracing,
)


def new_monitor(
    config: ServeConfig,
    security: Security,
    registry: WorkerRegistry,
    clock: Clock,
    reports: type[RequestReports] = RequestReports,
) -> HealthMonitor:
    """Who watches the workers. `reports`: the kind of `reports` that it has."""
    return HealthMonitor(
        registry,
        clock,
        block_size=config.router.block_size,
        policy=config.health,
        outliers=config.outliers,
        connection=config.connection,
        mixed_models=config.mixed_models,
        tls=security.worker_tls,
        key=security.engine_key,
        reports=reports,
    )


def request_observer(
    config: ServeConfig, metrics: DispatchObserver, bookings: Bookings, clock: Clock
) -> DispatchObserver:
    """Who hears of requests: their metrics, and what the configuration asks for beside."""
    observer = metrics
    if config.router.router_track_output_blocks:
        observer = OutputTracking(bookings, observer)
    if config.observability.access_log:
        observer = AccessLog(clock, observer)
    return observer


def new_dispatcher(
    config: ServeConfig,
    router: KvRouter,
    monitor: HealthMonitor,
    clock: Clock,
    *,
    observer: DispatchObserver,
    decisions: Decisions,
    hits: LimitHits,
    reader: RequestReader,
    tracing: Tracing,
) -> Dispatcher:
    return Dispatcher(
        router,
        monitor,
        clock,
        max_attempts=config.max_attempts,
        silence_s=config.request_timeout_s,
        limits=config.limits,
        observer=observer,
        decisions=decisions,
        hits=hits,
        reader=reader,
        tracing=tracing,
    )
