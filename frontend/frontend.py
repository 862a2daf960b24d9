"""Frontend: a listener for OpenAI clients, and the one of `serve` in front of its router."""

from functools import partial
from pathlib import Path

from ..base.limit_hits import LimitHits
from ..process.off_loop import OffLoop
from ..server.access import Security
from ..server.config import ServeConfig
from ..server.server import Server
from ..server.services import HttpServer
from ..transport.http1 import Routes
from .completions import Completions
from .config import ServeFrontendConfig
from .models import ModelRoutes, OneModel
from .openai import error_answer
from .processor import ModelText


def openai_server(
    routes: Routes,
    config: ServeConfig,
    security: Security,
    hits: LimitHits,
    *,
    port: int,
    key: str,
    workers: int,
) -> HttpServer:
    """The listener for OpenAI clients. `key` is the setting of its port."""
    return HttpServer(
        routes,
        security,
        config.peers,
        hits,
        name="openai",
        host=config.host,
        port=port,
        key=key,
        admin_at=security.own_admin_address,
        form=error_answer,
        workers=workers,
        drains=True,
    )


class AttachedFrontend:
    """In front of a server's one model; attached to the server, it lives as long.

    ConfigError if the model's files are no good.
    """

    def __init__(self, server: Server, config: ServeFrontendConfig, own_tokenizer: Path) -> None:
        self._off_loop = OffLoop()
        given = config.frontend.model_path
        text = ModelText(own_tokenizer if given is None else Path(given), self._off_loop)
        self.vocab_size = text.vocab_size
        server.dashboard.tokenize = partial(text.encode, add_special_tokens=True)
        pool = server.pool
        completions = Completions(
            pool.dispatcher,
            pool.monitor,
            pool.reader,
            text,
            config.frontend,
            config.model_id,
            card=lambda: server.card,
        )
        assert config.frontend.http_frontend is not None
        self._http = openai_server(
            ModelRoutes(OneModel(completions, pool), reader=pool.reader).routes,
            config,
            server.security,
            pool.hits,
            port=config.frontend.http_frontend,
            key="http_frontend",
            workers=len(config.workers) + config.mock_engines.mockers,
        )

    @property
    def address(self) -> str:
        return self._http.address

    @property
    def description(self) -> str:
        return f"{self._http.description} "

    async def start(self) -> None:
        await self._http.listen()

    async def drain(self, grace_s: float) -> None:
        await self._http.drain(grace_s)

    async def close(self) -> None:
        await self._http.close()
        self._off_loop.close()
