"""Secrecy: TLS of listeners and of connections, secrets in files, both read again on change."""

from .certificates import certificate_names, client_context
from .client_tls import ClientTls
from .config import NatsAuthConfig, ServerTlsConfig, WorkerTlsConfig
from .engine_key import EngineKey, read_engine_key
from .nats_auth import NatsAuth
from .secret_files import read_file, read_secret, shared_mode, warn_if_shared
from .server_tls import ServerTls
from .watched_files import FileWatch, WatchedFiles
