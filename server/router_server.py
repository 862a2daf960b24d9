"""The server of `serve`: gRPC and admin routes in front of one pool."""

from collections.abc import Sequence

from .admin import AdminRoutes, ReloadRoute
from .dashboard import DashboardRoutes
from .live_settings import LiveSettings
from .metrics import MetricsPage
from .pool import ConfiguredPool
from .server import Server
from .server_parts import ServerParts
from .services import (
    CallLimits,
    GrpcServer,
    HealthRoutes,
    HttpServer,
    MetricsRoute,
    PoolRoutes,
    RouterService,
    TrtllmService,
    WorkersRoute,
)


def router_server(
    parts: ServerParts, pool: ConfiguredPool, also: Sequence[HttpServer] = ()
) -> Server:
    """`also`: other HTTP listeners in front of the pool."""
    grpc = grpc_server(parts, pool)
    page, settings = parts.metrics.page(pool.metrics_pages), LiveSettings(parts, pool)
    http = admin_server(parts, pool, page, settings)
    watch_servers(parts, pool.calls, [http, *also])
    return Server(
        parts,
        pool,
        [grpc, http, *also],
        settings,
        exposed=lambda: parts.security.exposed(grpc.port, http.port, http.admin),
    )


def grpc_server(parts: ServerParts, pool: ConfiguredPool) -> GrpcServer:
    """The engine's own protocol, and RouterService."""
    config, workers = parts.config, pool.workers
    server = GrpcServer(
        TrtllmService(
            workers.dispatcher,
            workers.monitor,
            model_id=config.model_id,
            mode=config.router.mode,
            policy=config.router.policy_name,
        ),
        RouterService(workers.router, workers.reader, workers.admin),
        host=config.host,
        port=config.port,
        is_ready=lambda: workers.monitor.any_ready and not parts.draining,
        access=parts.security.access,
        calls=pool.calls,
        workers=pool.most_workers,
        max_message_bytes=config.connection.max_message_bytes,
        tls=parts.security.server_tls,
        reuse_port=parts.reuse_port,
    )
    workers.monitor.listeners.append(server.update)
    parts.on_draining.append(server.update)
    return server


def admin_server(
    parts: ServerParts, pool: ConfiguredPool, page: MetricsPage, settings: LiveSettings
) -> HttpServer:
    """What there is to see and to change of the pool and the process."""
    workers = pool.workers
    return HttpServer(
        {
            **MetricsRoute(page).routes,
            **HealthRoutes(pool.health, parts).routes,
            **WorkersRoute(lambda: [({}, workers.router)]).routes,
            **PoolRoutes(workers.router, workers.reader).routes,
            **AdminRoutes(workers.admin).routes,
            **ReloadRoute(settings.reloader).routes,
            **DashboardRoutes(lambda: pool.shown).routes,
        },
        parts,
        name="http",
        port=parts.config.http_port,
        key="http_port",
        admin_at=parts.security.admin_address,
        workers=pool.most_workers,
    )


def watch_servers(parts: ServerParts, calls: CallLimits, http: Sequence[HttpServer]) -> None:
    """Show in the metrics what callers have open there."""
    parts.metrics.watch_servers(calls.open_calls, lambda: sum(server.open for server in http))
