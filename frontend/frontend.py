"""The listener for OpenAI clients: in front of the one pool of `serve`, and in front of all pools
of the models that `frontend` finds."""

from ..server.access import is_loopback
from ..server.admin import AdminRoutes, CacheClearingRoute, PoolAdmins, ReloadRoute
from ..server.dashboard import DashboardRoutes
from ..server.fronts import SharedChanges, SharedPages, share_forgetting
from ..server.live_settings import LiveSettings
from ..server.metrics import MetricsPage
from ..server.pool import MOST_WORKERS, ConfiguredPool
from ..server.router_server import watch_servers
from ..server.server import Listener, Server
from ..server.server_parts import ServerParts
from ..server.services import (
    AdminAt,
    HealthRoutes,
    HttpServer,
    MetricsRoute,
    RecordRoute,
    WorkersRoute,
)
from ..transport.http1 import Routes
from ..workers.records import STATIC
from .agents import error_form_of
from .completions import MODEL_ROUTES, Completions
from .config import FrontendConfig, ModelFrontendConfig
from .epp import EnvoyListeners, ModelTargets
from .models import ModelManager, ModelRoutes, OneModel
from .openai import error_answer
from .processor import ModelText


def openai_server(
    parts: ServerParts,
    models: ModelRoutes,
    more: Routes,
    *,
    port: int,
    key: str,
    workers: int,
    admin_at: AdminAt = lambda port: (None, False),
) -> HttpServer:
    """The listener. `more` are its routes beside OpenAI's; `key` is the setting of its port."""
    parts.answers.counts.expect_models(MODEL_ROUTES, lambda: models.names)
    return HttpServer(
        {**models.routes, **HealthRoutes(models.health, parts).routes, **more},
        parts,
        name="openai",
        port=port,
        key=key,
        admin_at=admin_at,
        form=error_answer,
        form_of=error_form_of,
        workers=workers,
        drains=True,
    )


def router_listener(
    parts: ServerParts,
    pool: ConfiguredPool,
    text: ModelText,
    config: FrontendConfig,
    port: int,
    page: MetricsPage,
) -> HttpServer:
    """In front of a router's one model."""
    workers = pool.workers
    completions = Completions(
        workers.dispatcher,
        workers.monitor,
        workers.reader,
        text,
        config,
        parts.config.model_id,
        card=None if parts.config.backend == STATIC else lambda: pool.card,
        calls=parts.calls,
    )
    if not parts.config.model_id:
        workers.dashboard.model = lambda: completions.name
    models = ModelRoutes(OneModel(completions, workers), parts.calls, reader=workers.reader)
    return openai_server(
        parts,
        models,
        MetricsRoute(page).routes,
        port=port,
        key="http_frontend",
        workers=pool.most_workers,
    )


def frontend_server(config: ModelFrontendConfig, parts: ServerParts) -> Server:
    """The server of `frontend`: OpenAI's API, and all that is to be seen, on one port."""
    models = ModelManager(config, parts)
    page, settings = parts.metrics_page(models.metrics_pages), LiveSettings(parts, models)
    changes = SharedChanges(PoolAdmins(models.admins), None, parts.siblings)
    shared = SharedPages(parts.siblings, lambda: models.shown)
    routes = {
        **DashboardRoutes(shared.shown, parts.read_overview, models.refused_cards).routes,
        **parts.plan.routes,
        **WorkersRoute(models.routers).routes,
        **AdminRoutes(changes).routes,
        **CacheClearingRoute(
            models.clearings,
            share_forgetting(parts.siblings, lambda: [each for _, each in models.clearings()]),
        ).routes,
        **ReloadRoute(settings.shared).routes,
        **MetricsRoute(page).routes,
        **RecordRoute(parts.recorder).routes,
    }
    listener = openai_server(
        parts,
        ModelRoutes(models, parts.calls, reader=models.reader),
        routes,
        port=config.http_port,
        key="http_port",
        workers=MOST_WORKERS,
        admin_at=parts.security.own_admin_address,
    )
    watch_servers(parts, [listener])
    picking = EnvoyListeners(
        parts,
        ModelTargets(models, config.envoy.endpoint_port),
        config.envoy,
        models.on_ready_changed,
        workers=MOST_WORKERS,
    )

    def exposed() -> list[str]:
        if not parts.security.access.open or is_loopback(config.host):
            return []
        return [
            f"http {listener.address} is open: any host that reaches it may send requests"
            " (--auth-tokens or --tls-client-ca)",
            *picking.exposed(),
        ]

    listeners: list[Listener] = [listener, *picking.listeners]
    return Server(parts, models, listeners, settings, changes, exposed=exposed)
