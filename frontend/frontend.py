"""Frontend: OpenAI's HTTP API in front of a router in the same process."""

from functools import partial
from pathlib import Path

from ..router.access import HostCheck
from ..router.serve import Server
from ..router.services import HttpConnections, plan_connections
from ..runtime.off_loop import OffLoop
from .application import Application
from .completions import Completions
from .config import ServeFrontendConfig
from .listener import HttpListener
from .processor import ModelText


class Frontend:
    """Answers OpenAI clients by a server's fleet; attached to the server, it lives as long.

    ConfigError if the model's files are no good.
    """

    def __init__(self, server: Server, config: ServeFrontendConfig, own_tokenizer: Path) -> None:
        self._config = config
        self._security = server.security
        self._off_loop = OffLoop()
        given = config.frontend.model_path
        text = ModelText(own_tokenizer if given is None else Path(given), self._off_loop)
        self.vocab_size = text.vocab_size
        server.dashboard.tokenize = partial(text.encode, add_special_tokens=True)
        reader = server.dispatcher.reader
        completions = Completions(
            server.dispatcher, server.monitor, reader, text, config.frontend, config.model_id
        )
        application = Application(
            completions.routes,
            access=server.security.access,
            hosts=HostCheck(config.allowed_hosts),
            max_body_bytes=reader.limits.max_body_bytes,
        )
        workers = len(config.workers) + config.mock_engines.mockers
        connections = HttpConnections(
            plan_connections(reader.limits, workers).http,
            reader.limits.connection_idle_s,
            reader.hits,
            reader.limits.max_connection_share,
        )
        self._listener = HttpListener(application, connections.bounded)

    @property
    def address(self) -> str:
        return f"{self._config.host}:{self._listener.port}"

    @property
    def description(self) -> str:
        return f"openai {self.address} "

    async def start(self) -> None:
        tls = self._security.server_tls
        port = self._config.frontend.http_frontend
        assert port is not None
        await self._listener.start(
            self._config.host, port, None if tls is None else tls.ssl_context()
        )

    async def drain(self, grace_s: float) -> None:
        await self._listener.drain(grace_s)

    async def close(self) -> None:
        await self._listener.close()
        self._off_loop.close()
