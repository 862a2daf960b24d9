"""TLS of what listens: one certificate for gRPC and HTTP, read again when its files change."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .certificates import KeyPair, load_key_pair, load_roots
from .config import ServerTlsConfig
from .watched_files import WatchedFiles


@dataclass(frozen=True)
class _Material:
    pair: KeyPair
    context: ssl.SSLContext
    http2: ssl.SSLContext  # the same, for HTTP/2 alone


class ServerTls:
    """What listeners of a process show, and whom they let in. ConfigError if a file cannot be used.

    New connections see a new certificate, or another list of authorities, as soon as `files` was
    polled after the change; those that are open go on.
    """

    def __init__(self, config: ServerTlsConfig) -> None:
        paths = [path for path in (config.cert, config.key, config.client_ca) if path is not None]
        self._config = config
        self.files = WatchedFiles("TLS certificate", paths, self._read)

    @property
    def asks_clients(self) -> bool:
        """Whether clients must show a certificate."""
        return self._config.client_ca is not None

    @property
    def not_after(self) -> float:
        """When the certificate ends, in Unix time."""
        return self.files.value.pair.not_after

    def ssl_context(self) -> ssl.SSLContext:
        """For asyncio servers; each connection is held by the context of the moment it began."""
        return _LiveContext.of(self.files, lambda material: material.context)

    def http2_context(self) -> ssl.SSLContext:
        """The same, for a server of our own that speaks HTTP/2 and nothing else."""
        return _LiveContext.of(self.files, lambda material: material.http2)

    def _read(self) -> _Material:
        config = self._config
        assert config.cert is not None and config.key is not None
        contexts = []
        for _ in range(2):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            pair = load_key_pair(context, config.cert, config.key, "tls")
            if config.client_ca is not None:
                load_roots(context, config.client_ca, "tls.client_ca")
                context.verify_mode = ssl.CERT_REQUIRED
            contexts.append(context)
        contexts[1].set_alpn_protocols(["h2"])
        return _Material(pair, *contexts)


class _LiveContext(ssl.SSLContext):
    """A context that is another one at each connection. Loading new files into a context that is in
    use would add authorities to the old ones, and never take one away."""

    _now: Callable[[], ssl.SSLContext]

    @classmethod
    def of(
        cls, files: WatchedFiles[_Material], which: Callable[[_Material], ssl.SSLContext]
    ) -> "_LiveContext":
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._now = lambda: which(files.value)
        return context

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        return self._now().wrap_bio(*args, **more)
