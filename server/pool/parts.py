"""What takes requests to workers, made as a configuration says: for a pool, and for a front."""

from ...base.clock import Clock
from ...base.limit_hits import LimitHits
from ...router.decider import Decider
from ...router.kv_router import KvRouter
from ...workers.health import HealthMonitor
from ...workers.registry import WorkerRegistry
from ...workers.request_reports import RequestReports
from ..access import Security
from ..config import ServeConfig
from ..dispatch import (
    AccessLog,
    Dispatcher,
    DispatchObserver,
    OutputTracking,
    RequestReader,
    Tracing,
)
from ..request_limits import DispatchLimits


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
    config: ServeConfig, metrics: DispatchObserver, router: KvRouter, clock: Clock
) -> DispatchObserver:
    """Who hears of requests: their metrics, and what the configuration asks for beside."""
    observer = metrics
    if config.router.router_track_output_blocks:
        observer = OutputTracking(router, observer)
    if config.observability.access_log:
        observer = AccessLog(clock, observer)
    return observer


def dispatch_limits(config: ServeConfig) -> DispatchLimits:
    return DispatchLimits(config.limits, config.max_attempts, config.request_timeout_s)


def new_dispatcher(
    config: ServeConfig,
    decider: Decider,
    monitor: HealthMonitor,
    clock: Clock,
    *,
    observer: DispatchObserver,
    hits: LimitHits,
    reader: RequestReader,
    tracing: Tracing,
) -> Dispatcher:
    return Dispatcher(
        decider,
        monitor,
        clock,
        dispatch_limits(config),
        observer=observer,
        hits=hits,
        reader=reader,
        tracing=tracing,
    )
