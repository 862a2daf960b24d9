"""Everything about secrecy and rights that a running service needs, made from its configuration."""

from ...base.clock import Clock
from ...base.urls import redact_url
from ...transport.security import (
    ClientTls,
    FileWatch,
    NatsAuth,
    ServerTls,
    WorkerTlsConfig,
    read_engine_key,
)
from ..config import ServeConfig
from .access import Access
from .allowed_origins import AllowedOrigins
from .exposure import open_to_others
from .http_guard import AdminAddress, HttpGuard
from .loopback import is_everywhere, is_loopback, parse_ip

LOOPBACK = "127.0.0.1"


class Security:
    """Reads the files of a configuration. ConfigError if one is not valid.

    `watch` reads them again when they change; start and close it with the service.
    """

    SECRETS = ("TLS certificate", "TLS files for engines", "key of engines", "file of tokens")
    """What `watch` may have."""

    def __init__(self, config: ServeConfig, clock: Clock) -> None:
        self._config = config
        self.server_tls = ServerTls(config.tls) if config.tls.on else None
        self.worker_tls = None
        if config.worker_tls != WorkerTlsConfig():
            self.worker_tls = ClientTls(config.worker_tls)
        self.engine_key = read_engine_key(config.worker_api_key_file)
        asks = self.server_tls is not None and self.server_tls.asks_clients
        self._origins = AllowedOrigins(config.allowed_origins)
        self.access = Access(config.auth_tokens, certificates=asks)
        self.nats = NatsAuth(config.nats_auth)
        self.watch = FileWatch(clock)
        for holder in (self.server_tls, self.worker_tls, self.engine_key, self.access):
            if holder is not None and holder.files is not None:
                self.watch.files.append(holder.files)

    def http_guard(self) -> HttpGuard:
        """Its admin address is settled once the HTTP port is known: see `admin_address`."""
        config = self._config
        listened = (config.host, config.admin_host or "")
        names = [host for host in listened if host and parse_ip(host) is None]
        return HttpGuard(self.access, (*names, *config.allowed_hosts), self._origins)

    def admin_address(self, http_port: int) -> tuple[AdminAddress, bool]:
        """Where admin routes are served, and whether that is another socket than the HTTP one."""
        config = self._config
        return admin_address(config.host, http_port, config.admin_host, config.admin_port)

    def own_admin_address(self, port: int) -> tuple[AdminAddress | None, bool]:
        """The same where there is one port for all routes, which others reach: admin routes are
        served there if callers are asked who they are, or only this machine can call."""
        config = self._config
        if config.admin_host is not None or config.admin_port is not None:
            return self.admin_address(port)
        own = is_loopback(config.host) or not self.access.open
        return (AdminAddress(config.host, port) if own else None), False

    def exposed(self, grpc_port: int, http_port: int, apart: AdminAddress | None) -> list[str]:
        """What is open to others, as `open_to_others` says it. `apart`: an admin listener of its
        own."""
        config = self._config
        admin = apart or self.admin_address(http_port)[0]
        plain = []
        if self.worker_tls is not None:
            secure = ("grpcs://", "grpcs+dns://")
            plain = [redact_url(url) for url in config.workers if not url.startswith(secure)]
        return open_to_others(
            host=config.host,
            port=grpc_port,
            http_port=http_port,
            admin=admin,
            tls=self.server_tls is not None,
            identified=not self.access.open,
            plain_workers=plain,
        )


def admin_address(
    host: str, http_port: int, admin_host: str | None, admin_port: int | None
) -> tuple[AdminAddress, bool]:
    """Where admin routes are served, and whether a socket of its own is needed for that.

    By default it is the HTTP port on loopback: the HTTP listener itself if that is on loopback, its
    connections over loopback if it is on all addresses.
    """
    if admin_host is None and admin_port is None and is_loopback(host):
        return AdminAddress(host, http_port), False
    wanted = admin_host or LOOPBACK
    port = http_port if admin_port is None else admin_port
    shared = port == http_port and port != 0 and (is_everywhere(host) or wanted == host)
    return AdminAddress(wanted, port), not shared
