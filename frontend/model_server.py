"""ModelServer: the frontend that finds its models in a store, put together."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import structlog

from ..base.clock import SystemClock
from ..base.limit_hits import LimitHits
from ..base.urls import DEFAULT_NATS_URL, redact_url
from ..process.logs import LogOutput
from ..process.off_loop import OffLoop
from ..process.settings import SettingsSource
from ..runtime.event_planes import probe
from ..server.access import Security, is_loopback
from ..server.admin import Reloader, ReloadRoute
from ..server.config import ServeConfig
from ..server.dashboard import DashboardRoutes
from ..server.dispatch import NoTrace, RequestReader
from ..server.metrics import MetricsPage, build_metrics, pooled_metrics, process_metrics
from ..server.pool import MOST_WORKERS, LiveSettings, WorkerPlane
from ..server.services import HttpServer, MetricsRoute
from ..server.tracing import span_export_of
from .config import ModelFrontendConfig
from .frontend import openai_server
from .models import (
    ModelManager,
    ModelPool,
    ModelRoutes,
    ModelWatcher,
    NamespaceFilter,
    Shared,
)

log = structlog.get_logger(__name__)


class ModelServer:
    """The whole frontend in one event loop. `close` undoes whatever `start` did, in reverse."""

    models: ModelManager
    """once it was started"""

    def __init__(
        self,
        config: ModelFrontendConfig,
        source: SettingsSource[ModelFrontendConfig] | None = None,
        output: LogOutput | None = None,
    ) -> None:
        """`source`: where the settings are read again from; None: nowhere."""
        self._config = config
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self.security = Security(config, self._clock)
        self._spans = span_export_of(config.observability.otel_endpoint)
        self._plane = WorkerPlane(config, self.security.nats)
        self._off_loop = OffLoop()
        self._started = False
        self._frontend: HttpServer | None = None
        self._events = "from engines"
        self._metrics = MetricsPage(
            process_metrics, build_metrics, pooled_metrics(lambda: self.models.metrics_pages())
        )

        self._live = LiveSettings(config, self._pools, output=output)
        self._found: dict[str, Any] = {}  # settings that were worked out at the start
        self._reloader = None
        if source is not None:
            self._reloader = Reloader(source, check=self._live.check, apply=self._apply)

    @property
    def config(self) -> ServeConfig:
        """What it is run by now."""
        return self._live.config

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
        """Read the settings again; what comes of it is in the log."""
        if self._reloader is None or not self._started:
            log.warning("SIGHUP: the settings are not read again, the frontend is starting")
        else:
            self._reloader.on_signal()

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
        self._found = await self._find_events()
        config = self._live.config = replace(config, **self._found)
        store = config.discovery.open(config.backend)
        assert store is not None, "the configuration was checked"
        wanted = NamespaceFilter(config.namespace, config.namespace_prefix or "")
        shared = Shared(
            live=self._live,
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
            **DashboardRoutes(self._shown_pools, self._refused_cards).routes,
            **ReloadRoute(self._reloader).routes,
            **MetricsRoute(self._metrics).routes,
        }
        frontend = self._frontend = openai_server(
            routes,
            config,
            self.security,
            hits,
            port=config.http_port,
            key="http_frontend",
            workers=MOST_WORKERS,
        )
        stack.push_async_callback(frontend.close)
        await frontend.listen()
        if self.security.access.open and not is_loopback(config.host):
            log.warning(
                f"http {self.address} is open: whoever reaches it may have requests answered"
                " (--auth-tokens or --tls-client-ca)"
            )
        await self.models.start()
        self._started = True

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

    def _shown_pools(self) -> Sequence[ModelPool]:
        return sorted(self.models.pools, key=lambda pool: pool.name)

    def _refused_cards(self) -> dict[str, Any]:
        return {"refused_cards": len(self.models.report["refused"])}

    def _apply(self, new: ServeConfig, keys: frozenset[str]) -> None:
        self._live.apply(replace(new, **self._found), keys)

    def _pools(self) -> Sequence[ModelPool]:
        return self.models.pools

    async def _find_events(self) -> dict[str, Any]:
        """Settings that name the NATS server which all pools hear events from; where there is none,
        engines are asked."""
        config = self._config
        if config.event_sources not in ("auto", "nats"):
            return {}
        url = config.nats
        if url is None and await probe(DEFAULT_NATS_URL):
            url = DEFAULT_NATS_URL
        if url is None:
            return {"event_sources": "grpc"}
        self._events = redact_url(url)
        return {"nats": url}
