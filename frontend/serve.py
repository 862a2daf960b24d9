"""dynamo-router serve, with a listener for OpenAI clients if one was asked for; and frontend."""

from functools import partial
from importlib.util import find_spec
from typing import Any

import structlog

from ..base.errors import ConfigError
from ..process.logs import LogOutput
from ..process.settings import SettingsSource
from ..server.command import Service, run_service
from ..server.command import run as run_router
from ..server.config_check import vain_settings
from ..server.pool import ConfiguredPool
from ..server.router_server import router_server
from ..server.server import Server
from ..server.server_parts import ServerParts
from .config import ModelFrontendConfig, ServeFrontendConfig

NEEDED = ("jinja2", "tokenizers")

log = structlog.get_logger(__name__)


def run(config: ServeFrontendConfig, source: SettingsSource[Any] | None = None) -> int:
    """The command `serve`: 1, and a line on why, if it cannot start."""

    def make(output: LogOutput) -> Service:
        return new_router(config, ServerParts(config, source, output))

    return run_router(config, source, make)


def new_router(config: ServeFrontendConfig, parts: ServerParts) -> Server:
    """The server of `serve`.

    ConfigError if OpenAI clients are to be served and the extra `frontend` is not installed, or the
    model's files are no good.
    """
    port = config.frontend.http_frontend
    if port is None:
        return router_server(parts, ConfiguredPool(parts))
    check_installed("http_frontend")
    from .frontend import model_text, router_listener  # not before: the router alone needs none

    text = model_text(config.frontend, parts)
    tokenize = partial(text.encode, add_special_tokens=True)
    pool = ConfiguredPool(parts, tokenize=tokenize, vocab_size=text.vocab_size)
    return router_server(parts, pool, [router_listener(parts, pool, text, config.frontend, port)])


def check_installed(key: str) -> None:
    """ConfigError, naming the key, if the extra `frontend` is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the frontend needs {', '.join(missing)}: pip install 'dynamo-router[frontend]'",
            key=key,
        )


def run_models(
    config: ModelFrontendConfig, source: SettingsSource[ModelFrontendConfig] | None = None
) -> int:
    """The command `frontend`: 1, and a line on why, if it cannot start."""

    def make(output: LogOutput) -> Service:
        check_installed("http_port")
        for text in vain_settings(source.current) if source is not None else ():
            log.warning(text)
        from .frontend import frontend_server

        return frontend_server(config, ServerParts(config, source, output))

    return run_service(config, make)
