"""The server of `serve`: gRPC and admin routes in front of one pool."""

from collections.abc import Callable, Iterable, Sequence

from ..workers.trtllm_proto import SERVICE as TRTLLM_SERVICE
from .admin import AdminRoutes, CacheClearingRoute, ReloadRoute
from .dashboard import DashboardRoutes
from .fronts import (
    SharedChanges,
    SharedPages,
    share_aborts,
    share_bookings,
    share_forgetting,
)
from .live_settings import LiveSettings
from .metrics import MetricsPage
from .pool import ConfiguredPool
from .server import Listener, Server
from .server_parts import ServerParts
from .services import (
    ROUTER_SERVICE,
    GrpcServer,
    HealthRoutes,
    HttpServer,
    MetricsRoute,
    PoolRoutes,
    RecordRoute,
    RouterService,
    TrtllmService,
    WorkersRoute,
)


def router_server(
    parts: ServerParts,
    pool: ConfiguredPool,
    also: Callable[[MetricsPage], Sequence[HttpServer]] = lambda page: (),
    more: Sequence[Listener] = (),
    exposed: Callable[[], Iterable[str]] = lambda: (),
) -> Server:
    """`also` makes other HTTP listeners in front of the pool, with the metrics of this process;
    `more` are listeners of other kinds, and `exposed` what those leave open to others."""
    workers = pool.workers
    changes = SharedChanges(workers.admin, workers.router.limits, parts.siblings)
    grpc = grpc_server(parts, pool, changes)
    page, settings = parts.metrics_page(pool.metrics_pages), LiveSettings(parts, pool)
    http = admin_server(parts, pool, page, settings, changes)
    others = also(page)
    watch_servers(parts, [http, *others])
    return Server(
        parts,
        pool,
        [grpc, http, *others, *more],
        settings,
        changes,
        exposed=lambda: [
            *parts.security.exposed(grpc.port, http.port, http.admin),
            *exposed(),
        ],
    )


def grpc_server(parts: ServerParts, pool: ConfiguredPool, changes: SharedChanges) -> GrpcServer:
    """The engine's own protocol, and RouterService."""
    config, workers, tls = parts.config, pool.workers, parts.security.server_tls
    generate = TrtllmService(
        workers.dispatcher,
        workers.monitor,
        model_id=config.model_id,
        mode=config.router.mode,
        policy=config.router.policy_name,
        abort_elsewhere=share_aborts(parts.siblings, workers.dispatcher),
    )
    select = RouterService(
        workers.router,
        workers.reader,
        changes,
        booked_elsewhere=share_bookings(parts.siblings, workers.router),
    )
    server = GrpcServer(
        {TRTLLM_SERVICE: generate.methods, ROUTER_SERVICE: select.methods},
        ready=(TRTLLM_SERVICE,),
        host=config.host,
        port=config.port,
        is_ready=lambda: workers.monitor.any_ready and not parts.draining,
        access=parts.security.access,
        calls=parts.calls,
        workers=pool.most_workers,
        max_message_bytes=config.connection.max_message_bytes,
        tls=None if tls is None else tls.http2_context(),
        reuse_port=parts.shares_ports,
        access_log=config.observability.access_log,
    )
    workers.monitor.listeners.append(server.update)
    parts.on_draining.append(server.update)
    return server


def admin_server(
    parts: ServerParts,
    pool: ConfiguredPool,
    page: MetricsPage,
    settings: LiveSettings,
    changes: SharedChanges,
) -> HttpServer:
    """What there is to see and to change of the pool and the process."""
    workers = pool.workers
    shared = SharedPages(parts.siblings, lambda: pool.shown)
    return HttpServer(
        {
            **MetricsRoute(page).routes,
            **RecordRoute(parts.recorder).routes,
            **HealthRoutes(pool.health, parts).routes,
            **WorkersRoute(
                lambda: [(labels, each.router) for labels, each in pool.labelled]
            ).routes,
            **PoolRoutes(workers.router, workers.reader, changes.change_limits).routes,
            **AdminRoutes(changes).routes,
            **CacheClearingRoute(
                lambda: [({}, workers.clearing)],
                share_forgetting(parts.siblings, lambda: [workers.clearing]),
            ).routes,
            **ReloadRoute(settings.shared).routes,
            **DashboardRoutes(shared.shown, parts.read_overview).routes,
            **parts.plan.routes,
        },
        parts,
        name="http",
        port=parts.config.http_port,
        key="http_port",
        admin_at=parts.security.admin_address,
        workers=pool.most_workers,
    )


def watch_servers(parts: ServerParts, http: Sequence[HttpServer]) -> None:
    """Show in the metrics what callers have open there."""
    parts.metrics.watch_servers(parts.calls.open_calls, lambda: sum(server.open for server in http))
