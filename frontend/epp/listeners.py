"""The listeners for Envoy: external processing, and health apart from it."""

import ssl
from collections.abc import Callable, Iterator

from ...base.errors import ConfigError
from ...server.access import is_loopback
from ...server.call_limits import PROCESSOR
from ...server.server_parts import ServerParts
from ...server.services import GrpcServer
from ...transport.grpc_methods import Methods
from ..config import EnvoyConfig
from .objectives import ObjectiveView
from .picker import Picker
from .rewrites import RewriteView
from .self_signed import self_signed_context
from .targets import Targets

READINESS, LIVENESS = "readiness", "liveness"
"""Services of grpc.health.v1 that gateways ask about, beside that of external processing itself."""


class EnvoyListeners:
    """Of a server in front of the pools of `targets`, if the settings want them. Listed as
    `listeners`: external processing, then health."""

    def __init__(
        self,
        parts: ServerParts,
        targets: Targets,
        config: EnvoyConfig,
        on_ready_changed: list[Callable[[], None]],
        *,
        workers: int,
        objectives: ObjectiveView | None = None,
        rewrites: RewriteView | None = None,
        key: str = "ext_proc_port",
    ) -> None:
        """`on_ready_changed` is called when a worker begins or ceases to take requests; `workers`:
        for how many a share of the open files is kept. `key` is the setting of the port.
        ConfigError if TLS cannot be had."""
        self._parts, self.listeners = parts, list[GrpcServer]()
        if config.ext_proc_port is None:
            return
        picker = Picker(parts, targets, config, objectives, rewrites)

        def listener(
            name: str, key: str, port: int, services: dict[str, Methods], tls: ssl.SSLContext | None
        ) -> None:
            server = GrpcServer(
                services | {LIVENESS: {}},
                ready=(READINESS, PROCESSOR),
                name=name,
                key=key,
                host=parts.config.host,
                port=port,
                is_ready=lambda: targets.any_ready and not parts.draining,
                access=parts.security.access,
                calls=parts.calls,
                workers=workers,
                max_message_bytes=parts.config.connection.max_message_bytes,
                tls=tls,
                reuse_port=parts.shares_ports,
                access_log=parts.config.observability.access_log,
            )
            on_ready_changed.append(server.update)
            parts.on_draining.append(server.update)
            self.listeners.append(server)

        processing = {PROCESSOR: picker.methods}
        listener("ext_proc", key, config.ext_proc_port, processing, _tls(config, parts))
        if config.grpc_health_port is not None:
            listener("health", "grpc_health_port", config.grpc_health_port, {}, None)

    def exposed(self) -> Iterator[str]:
        """What others than this machine may do there without being asked who they are."""
        security, host = self._parts.security, self._parts.config.host
        if self.listeners and security.access.open and not is_loopback(host):
            yield (
                f"ext_proc {self.listeners[0].address} is open: any host that reaches it may have"
                " requests placed and booked (--auth-tokens or --tls-client-ca)"
            )


def _tls(config: EnvoyConfig, parts: ServerParts) -> ssl.SSLContext | None:
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
