"""ModelServer: the frontend that finds its models in a store, put together."""

from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from ..base.clock import SystemClock
from ..base.limit_hits import LimitHits
from ..base.urls import DEFAULT_NATS_URL, redact_url
from ..process.off_loop import OffLoop
from ..runtime.event_planes import probe
from ..server.access import Security, is_loopback
from ..server.dispatch import NoTrace, RequestReader
from ..server.metrics import MetricsPage, build_metrics, pooled_metrics, process_metrics
from ..server.pool import MOST_WORKERS, WorkerPlane
from ..server.tracing import span_export_of
from .application import HttpCall
from .asgi import send_whole
from .config import ModelFrontendConfig
from .frontend import Frontend
from .models import (
    ModelManager,
    ModelRoutes,
    ModelWatcher,
    NamespaceFilter,
    PoolDashboard,
    Shared,
)

log = structlog.get_logger(__name__)


class ModelServer:
    """The whole frontend in one event loop. `close` undoes whatever `start` did, in reverse."""

    models: ModelManager
    """once it was started"""

    def __init__(self, config: ModelFrontendConfig) -> None:
        self._config = config
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self.security = Security(config, self._clock)
        self._spans = span_export_of(config.observability.otel_endpoint)
        self._plane = WorkerPlane(config, self.security.nats)
        self._off_loop = OffLoop()
        self._frontend: Frontend | None = None
        self._events = "from engines"
        self._metrics = MetricsPage(
            process_metrics, build_metrics, pooled_metrics(lambda: self.models.metrics_pages())
        )

    @property
    def config(self) -> ModelFrontendConfig:
        return self._config

    @property
    def address(self) -> str:
        """Of OpenAI's HTTP API: HOST:PORT, once it was started."""
        assert self._frontend is not None
        return self._frontend.address

    @property
    def ready_line(self) -> str:
        names = ", ".join(entry.name for entry in self.models.entries) or "none yet"
        return f"dynamo-router ready: openai {self.address} models {names} events {self._events}"

    def reload(self) -> None:
        """The models are read all the time; the settings are those of the start."""
        log.warning("SIGHUP: the frontend's settings are not read again")

    async def start(self) -> None:
        """Find the models, and serve them. ConfigError if the store refuses us or the port cannot
        be had. Call `close` in any case."""
        config, stack = self._config, self._stack
        stack.callback(self._off_loop.close)
        if self._spans is not None:
            stack.push_async_callback(self._spans.close)
        self.security.watch.start()
        stack.push_async_callback(self.security.watch.close)
        stack.push_async_callback(self._plane.close)
        await self._plane.listen()
        config = await self._with_events(config)
        store = config.discovery.open(config.backend)
        assert store is not None, "the configuration was checked"
        wanted = NamespaceFilter(config.namespace, config.namespace_prefix or "")
        shared = Shared(
            config=config,
            frontend=config.frontend,
            security=self.security,
            clock=self._clock,
            tracing=NoTrace() if self._spans is None else self._spans.tracing,
            plane=self._plane,
            off_loop=self._off_loop,
            store=config.backend,
        )
        self.models = ModelManager(ModelWatcher(store, wanted), shared)
        stack.push_async_callback(self.models.close)
        hits = LimitHits()
        reader = RequestReader(config.router.block_size, config.peers, hits)
        stack.callback(reader.close)
        routes = {
            **ModelRoutes(self.models, reader=reader).routes,
            **PoolDashboard(self.models).routes,
            "GET /metrics": self._show_metrics,
        }
        frontend = self._frontend = Frontend(
            routes, config, self.security, hits, workers=MOST_WORKERS
        )
        stack.push_async_callback(frontend.close)
        await frontend.listen(config.http_port)
        if self.security.access.open and not is_loopback(config.host):
            log.warning(
                f"http {self.address} is open: whoever reaches it may have requests answered"
                " (--auth-tokens or --tls-client-ca)"
            )
        await self.models.start()

    def turn_away(self) -> None:
        """Say by health that nobody should come any more, and go on serving."""
        self.models.draining = True

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""
        self.turn_away()
        if self._frontend is not None:
            await self._frontend.drain(grace_s)

    async def close(self) -> None:
        """End what is left. No task, thread or socket of it survives. Idempotent."""
        await self._stack.aclose()

    async def _show_metrics(self, call: HttpCall) -> None:
        """Those of the process, and those of all pools with their labels."""
        asked = call.headers
        page = await self._metrics.render(asked.get("accept", ""), asked.get("accept-encoding", ""))
        headers = {"content-type": page.content_type, "vary": "Accept, Accept-Encoding"}
        if page.gzip:
            headers["content-encoding"] = "gzip"
        await send_whole(call.send, 200, page.body, {**headers, **call.told})

    async def _with_events(self, config: ModelFrontendConfig) -> ModelFrontendConfig:
        """The configuration with the NATS server that all pools hear events from; where there is
        none, engines are asked."""
        if config.event_sources not in ("auto", "nats"):
            return config
        url = config.nats
        if url is None and await probe(DEFAULT_NATS_URL):
            url = DEFAULT_NATS_URL
        if url is None:
            return replace(config, event_sources="grpc")
        self._events = redact_url(url)
        return replace(config, nats=url)
