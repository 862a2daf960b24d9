"""Frontend: a listener for OpenAI clients, and the one of `serve` in front of its router."""

from functools import partial
from pathlib import Path

from ..base.limit_hits import LimitHits
from ..process.off_loop import OffLoop
from ..server.access import PageCheck, Security, is_loopback
from ..server.config import ServeConfig
from ..server.server import Server
from ..server.services import HttpConnections, plan_connections
from ..workers.records import STATIC
from .application import Application, Handler
from .completions import Completions
from .config import ServeFrontendConfig
from .listener import HttpListener
from .models import ModelRoutes, OneModel
from .processor import ModelText


class Frontend:
    """Answers OpenAI clients by the handlers of its routes, from `start` to `close`."""

    def __init__(
        self,
        routes: dict[str, Handler],
        config: ServeConfig,
        security: Security,
        hits: LimitHits,
        *,
        workers: int,
    ) -> None:
        """`workers` is for how many a share of the open files is kept."""
        self._host, self._shared = config.host, config.fronts.several
        self._security = security
        limits = config.peers
        application = Application(
            routes,
            access=security.access,
            pages=PageCheck(security.access, config.allowed_hosts),
            max_body_bytes=limits.max_body_bytes,
            admin=is_loopback(config.host) or not security.access.open,
        )
        connections = HttpConnections(
            plan_connections(limits, workers).http,
            limits.connection_idle_s,
            hits,
            limits.max_connection_share,
        )
        self._listener = HttpListener(application, connections.bounded)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    async def listen(self, port: int) -> None:
        """Begin to serve; port 0 takes a free one. ConfigError if it cannot be had."""
        tls = self._security.server_tls
        context = None if tls is None else tls.ssl_context()
        await self._listener.start(self._host, port, context, shared=self._shared)

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""
        await self._listener.drain(grace_s)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        await self._listener.close()


class AttachedFrontend(Frontend):
    """In front of a server's one model; attached to the server, it lives as long.

    ConfigError if the model's files are no good.
    """

    def __init__(self, server: Server, config: ServeFrontendConfig, own_tokenizer: Path) -> None:
        self._off_loop = OffLoop()
        self._wanted_port = config.frontend.http_frontend
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
            card=None if config.backend == STATIC else lambda: server.card,
        )
        super().__init__(
            ModelRoutes(
                OneModel(completions, pool), reader=pool.reader, fronts=server.siblings.health
            ).routes,
            config,
            server.security,
            pool.hits,
            workers=len(config.workers) + config.mock_engines.mockers,
        )

    @property
    def description(self) -> str:
        return f"openai {self.address} "

    async def start(self) -> None:
        assert self._wanted_port is not None
        await self.listen(self._wanted_port)

    async def close(self) -> None:
        await super().close()
        self._off_loop.close()
