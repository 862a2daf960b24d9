"""TLS of connections that we open to engines, read again when its files change."""

import ssl
from typing import NamedTuple

from .certificates import client_context, load_key_pair
from .config import WorkerTlsConfig
from .watched_files import WatchedFiles


class _Material(NamedTuple):
    context: ssl.SSLContext
    http1_context: ssl.SSLContext


class ClientTls:
    """How engines are believed, and what they are shown. ConfigError if the files cannot be used.

    After a change connections are made anew: `files.listeners` are called.
    """

    def __init__(self, config: WorkerTlsConfig) -> None:
        paths = [path for path in (config.ca, config.cert, config.key) if path is not None]
        self._config = config
        self.files = WatchedFiles("TLS files for engines", paths, self._read)

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The same for a connection of our own that speaks HTTP/2."""
        return self.files.value.context

    @property
    def http1_context(self) -> ssl.SSLContext:
        """The same for one that speaks HTTP/1.1."""
        return self.files.value.http1_context

    def name_of(self, name: str | None) -> str | None:
        """Whom an engine's certificate must name, if not the host of its address."""
        return self._config.name or name

    def _read(self) -> _Material:
        config = self._config
        contexts = []
        for protocol in ("h2", "http/1.1"):
            context = client_context(config.ca, "worker_tls.ca")
            context.set_alpn_protocols([protocol])
            if config.cert is not None and config.key is not None:
                load_key_pair(context, config.cert, config.key, "worker_tls")
            contexts.append(context)
        return _Material(*contexts)
