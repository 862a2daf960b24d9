"""dynamo-router serve, with a listener for OpenAI clients if one was asked for; and frontend."""

from contextlib import closing
from functools import partial
from typing import Any

from ..process.logs import LogOutput
from ..process.off_loop import OffLoop
from ..process.settings import SettingsSource
from ..server.command import Service, run_service
from ..server.fronts import Siblings
from ..server.metrics import MetricsPage
from ..server.pool import ConfiguredPool
from ..server.router_server import router_server
from ..server.server import Server
from ..server.server_parts import ServerParts
from ..server.services import HttpServer
from .config import ModelFrontendConfig, ServeFrontendConfig


def run(config: ServeFrontendConfig, source: SettingsSource[Any] | None = None) -> int:
    """The command `serve`: 1, and a line on why, if it cannot start."""

    def make(
        config: ServeFrontendConfig,
        source: SettingsSource[Any] | None,
        output: LogOutput,
        siblings: Siblings,
    ) -> Service:
        return new_router(config, ServerParts(config, source, output, siblings))

    def vocab_size() -> int | None:
        if config.frontend.http_frontend is None:
            return None
        from .token_cache import model_text

        with closing(OffLoop()) as off_loop:
            return model_text(config.frontend, off_loop).vocab_size

    return run_service(config, source, make, vocab_size)


def new_router(config: ServeFrontendConfig, parts: ServerParts) -> Server:
    """The server of `serve`. ConfigError if the files of the model cannot be used that OpenAI's
    clients or Envoy are to be served."""
    port, envoy = config.frontend.http_frontend, config.envoy
    if port is None and not envoy.is_served:
        return router_server(parts, ConfiguredPool(parts))
    # Not before: the router alone needs none.
    from .epp import EnvoyListeners, OneTarget, PickPool
    from .frontend import router_listener
    from .token_cache import model_text, piece_cache

    text = model_text(config.frontend, parts.off_loop, piece_cache(config.frontend, parts))
    tokenize = partial(text.encode, add_special_tokens=True)
    pool = ConfiguredPool(parts, tokenize=tokenize, vocab_size=text.vocab_size)
    workers = pool.workers
    picking = EnvoyListeners(
        parts,
        OneTarget(PickPool(workers, text, envoy.endpoint_port), config.model_id),
        envoy,
        workers.monitor.listeners,
        workers=pool.most_workers,
    )

    def openai(page: MetricsPage) -> list[HttpServer]:
        if port is None:
            return []
        return [router_listener(parts, pool, text, config.frontend, port, page)]

    return router_server(parts, pool, openai, picking.listeners, picking.exposed)


def run_models(
    config: ModelFrontendConfig, source: SettingsSource[ModelFrontendConfig] | None = None
) -> int:
    """The command `frontend`: 1, and a line on why, if it cannot start."""

    def make(
        config: ModelFrontendConfig,
        source: SettingsSource[ModelFrontendConfig] | None,
        output: LogOutput,
        siblings: Siblings,
    ) -> Service:
        from .frontend import frontend_server

        return frontend_server(config, ServerParts(config, source, output, siblings))

    return run_service(config, source, make)
