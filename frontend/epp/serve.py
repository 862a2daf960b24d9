"""dynamo-router epp: Envoy's external processing in front of one pool."""

import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.errors import ConfigError
from ...process.logs import LogOutput
from ...process.settings import SettingsSource
from ...server.call_limits import PROCESSOR
from ...server.command import Service, run_service
from ...server.fronts import SharedChanges, Siblings
from ...server.live_settings import LiveSettings
from ...server.pool import ConfiguredPool, Sources
from ...server.router_server import admin_server, watch_servers
from ...server.server import Server
from ...server.server_parts import ServerParts
from ...server.services import GrpcServer
from ...transport.grpc_methods import Methods
from ..frontend import model_text
from ..serve import check_installed
from ..token_cache import piece_cache
from .config import PickerConfig
from .picker import Picker
from .self_signed import self_signed_context

if TYPE_CHECKING:
    from .pod_watch import PodWatch

READINESS, LIVENESS = "readiness", "liveness"
"""Services of grpc.health.v1 that gateways ask about, beside that of external processing itself."""


def run(config: PickerConfig, source: SettingsSource[Any] | None = None) -> int:
    """The command `epp`: 1, and a line on why, if it cannot start."""

    def make(
        config: PickerConfig,
        source: SettingsSource[Any] | None,
        output: LogOutput,
        siblings: Siblings,
    ) -> Service:
        check_installed("model_path")
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
    picker = Picker(parts, workers, text, config, None if watch is None else watch.objectives)
    changes = SharedChanges(workers.admin, workers.router.limits, parts.siblings)

    def listener(
        name: str, key: str, port: int, services: dict[str, Methods], tls: ssl.SSLContext | None
    ) -> GrpcServer:
        server = GrpcServer(
            services | {LIVENESS: {}},
            ready=(READINESS, PROCESSOR),
            name=name,
            key=key,
            host=config.host,
            port=port,
            is_ready=lambda: workers.monitor.any_ready and not parts.draining,
            access=parts.security.access,
            calls=parts.calls,
            workers=pool.most_workers,
            max_message_bytes=config.connection.max_message_bytes,
            tls=tls,
            reuse_port=parts.shares_ports,
        )
        workers.monitor.listeners.append(server.update)
        parts.on_draining.append(server.update)
        return server

    processing = {PROCESSOR: picker.methods}
    grpc = listener("ext_proc", "grpc_port", config.grpc_port, processing, _tls(config, parts))
    health = listener("health", "grpc_health_port", config.grpc_health_port, {}, None)
    page, settings = parts.metrics_page(pool.metrics_pages), LiveSettings(parts, pool)
    http = admin_server(parts, pool, page, settings, changes)
    watch_servers(parts, [http])
    return Server(
        parts,
        pool,
        [grpc, health, http],
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


def _tls(config: PickerConfig, parts: ServerParts) -> ssl.SSLContext | None:
    """What external processing is served with; None: it is in plain text."""
    if not config.secure_serving:
        return None
    if parts.security.server_tls is not None:
        return parts.security.server_tls.http2_context()
    try:
        return self_signed_context()
    except ImportError:
        text = (
            "secure_serving: needs --tls-cert and --tls-key, or the package cryptography for a"
            " certificate of its own (pip install cryptography); --no-secure-serving: no TLS"
        )
        raise ConfigError(text, key="secure_serving") from None
