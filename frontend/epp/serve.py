"""dynamo-router epp: Envoy's external processing in front of one pool."""

from functools import partial
from typing import TYPE_CHECKING, Any

from ...process.logs import LogOutput
from ...process.settings import SettingsSource
from ...server.command import Service, run_service
from ...server.fronts import SharedChanges, Siblings
from ...server.live_settings import LiveSettings
from ...server.pool import ConfiguredPool, Sources
from ...server.router_server import admin_server, watch_servers
from ...server.server import Server
from ...server.server_parts import ServerParts
from ..picker_config import PickerConfig
from ..token_cache import model_text, piece_cache
from .listeners import EnvoyListeners
from .targets import OneTarget, PickPool

if TYPE_CHECKING:
    from .pod_watch import PodWatch


def run(config: PickerConfig, source: SettingsSource[Any] | None = None) -> int:
    """The command `epp`: 1, and a line on why, if it cannot start."""

    def make(
        config: PickerConfig,
        source: SettingsSource[Any] | None,
        output: LogOutput,
        siblings: Siblings,
    ) -> Service:
        return picker_server(config, ServerParts(config, source, output, siblings))

    return run_service(config, source, make)


def picker_server(config: PickerConfig, parts: ServerParts) -> Server:
    """The server of `epp`. ConfigError if the model's files or those of TLS are invalid."""
    text = model_text(config.frontend, parts.off_loop, piece_cache(config.frontend, parts))
    watch, sources = _pods(config)
    tokenize = partial(text.encode, add_special_tokens=True)
    pool = ConfiguredPool(parts, tokenize=tokenize, sources=sources)
    workers = pool.workers
    if watch is not None:
        workers.handoffs.rule.aggregated = watch.view.aggregated
    envoy = EnvoyListeners(
        parts,
        OneTarget(PickPool(workers, text, config.endpoint_port), config.model_id),
        config.envoy,
        workers.monitor.listeners,
        workers=pool.most_workers,
        objectives=None if watch is None else watch.objectives,
        rewrites=None if watch is None else watch.rewrites,
        key="grpc_port",
    )
    changes = SharedChanges(workers.admin, workers.router.limits, parts.siblings)
    page, settings = parts.metrics_page(pool.metrics_pages), LiveSettings(parts, pool)
    http = admin_server(parts, pool, page, settings, changes)
    watch_servers(parts, [http])
    grpc = envoy.listeners[0]
    return Server(
        parts,
        pool,
        [*envoy.listeners, http],
        settings,
        changes,
        exposed=lambda: parts.security.exposed(grpc.port, http.port, http.admin),
    )


def _pods(config: PickerConfig) -> "tuple[PodWatch | None, Sources | None]":
    """The watch of the pods that are endpoints, if any are. ConfigError without its packages, or
    if the environment names no API server."""
    if not config.pods.are_watched:
        return None, None
    from .pod_watch import PodWatch  # an extra

    watch = PodWatch(config.pods)
    return watch, Sources("kubernetes", watch.decode, watch.prefill)
