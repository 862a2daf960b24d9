"""What a connection to NATS is opened with: TLS, credentials. Read anew for each connection."""

import importlib.util
from typing import Any

from ...process.settings import bad_setting
from .certificates import client_context, load_key_pair
from .config import NatsAuthConfig
from .secret_files import read_file, read_secret, warn_if_shared


class NatsAuth:
    """Checks its files at once (ConfigError), and again whenever `options` is asked for."""

    def __init__(self, config: NatsAuthConfig) -> None:
        self._config = config
        if (config.creds or config.nkey_seed) and importlib.util.find_spec("nkeys") is None:
            key = "nats_auth.creds" if config.creds else "nats_auth.nkey_seed"
            raise bad_setting(key, "needs the package nkeys: pip install 'dynamo-router[nkeys]'")
        for path in (config.creds, config.nkey_seed, config.key):
            if path is not None:
                warn_if_shared(path)
        self.options()

    def check_url(self, url: str) -> None:
        """ConfigError if something was given that a plain connection would leave without effect."""
        parts = url.split(",")
        if self._config.tls and not all(part.strip().startswith("tls://") for part in parts):
            key = "nats_auth.ca" if self._config.ca is not None else "nats_auth.cert"
            raise bad_setting(key, "needs a tls:// address in nats")

    def options(self) -> dict[str, Any]:
        """Arguments for nats-py's connect."""
        config = self._config
        options: dict[str, Any] = {}
        context = client_context(config.ca, "nats_auth.ca")
        if config.cert is not None and config.key is not None:
            load_key_pair(context, config.cert, config.key, "nats_auth")
        options["tls"] = context
        if config.creds is not None:
            if b"BEGIN NATS USER JWT" not in read_file(config.creds, "nats_auth.creds"):
                raise bad_setting("nats_auth.creds", f"{config.creds} holds no credentials")
            options["user_credentials"] = config.creds
        if config.nkey_seed is not None:
            seed = read_secret(config.nkey_seed, "nats_auth.nkey_seed")
            if not (seed.startswith("SU") and len(seed) == 58):
                raise bad_setting("nats_auth.nkey_seed", f"{config.nkey_seed} holds no user seed")
            options["nkeys_seed_str"] = seed
        if config.password_file is not None:
            options["password"] = read_secret(config.password_file, "nats_auth.password_file")
        if config.token_file is not None:
            options["token"] = read_secret(config.token_file, "nats_auth.token_file")
        return options
