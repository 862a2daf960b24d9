"""Server: puts the service together, runs it, and takes it apart again."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import structlog

from ..base.clock import SystemClock
from ..process.logs import LogOutput
from ..process.settings import SettingsSource
from ..workers.records import ModelCard
from .access import Security
from .admin import AdminRoutes, Reloader, ReloadRoute, WorkerList
from .config import ServeConfig
from .dashboard import DashboardRoutes, PageData, PagedPool
from .dispatch import NoTrace
from .mock_process import MockProcess
from .pool import MOST_WORKERS, Discovery, LiveSettings, WorkerPool, is_discovering
from .services import (
    CallLimits,
    GrpcServer,
    HealthRoutes,
    HttpServer,
    MetricsRoute,
    PoolRoutes,
    RouterService,
    TrtllmService,
)
from .tracing import span_export_of

log = structlog.get_logger(__name__)


class Attachment(Protocol):
    """Another way in to a Server, made for it by a floor above."""

    @property
    def description(self) -> str:
        """Its part of the ready line."""
        ...

    @property
    def vocab_size(self) -> int:
        """What mock engines started for it generate from."""
        ...

    async def start(self) -> None:
        """Begin to serve. ConfigError if it cannot."""

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""

    async def close(self) -> None:
        """End what is left. Idempotent."""


class Server:
    """The whole service in one event loop. `close` undoes whatever `start` did, in reverse."""

    def __init__(
        self,
        config: ServeConfig,
        source: SettingsSource[ServeConfig] | None = None,
        output: LogOutput | None = None,
        *,
        listens: bool = True,
    ) -> None:
        """`listens`: on the gRPC port. Else requests come by what is attached."""
        self._config = config
        self._listens = listens
        self.more_health: list[Callable[[], tuple[bool, dict[str, Any]]]] = []
        """whether requests can be taken as far as it knows, and what /health is to say besides"""
        self._started = False
        self.attached: Attachment | None = None
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self._draining = False

        self.security = Security(config, self._clock)
        self._spans = span_export_of(config.observability.otel_endpoint)
        tracing = NoTrace() if self._spans is None else self._spans.tracing
        pool = self.pool = WorkerPool(config, self.security, self._clock, tracing)
        self.router, self.monitor, self.metrics = pool.router, pool.monitor, pool.metrics
        self.dispatcher, self.admin = pool.dispatcher, pool.admin
        self.dashboard = pool.dashboard
        self._discovery: Discovery | None = None
        if is_discovering(config):
            nats = self.security.nats
            self._discovery = Discovery(config, self.admin, self.monitor, self._clock, nats)
        self._workers = WorkerList(self.admin, self.monitor, refresh_s=config.dns_refresh_s)
        self._live = LiveSettings(config, lambda: [pool], workers=self._workers, output=output)
        self._reloader = None
        if source is not None:
            self._reloader = Reloader(source, check=self._live.check, apply=self._live.apply)
        calls = CallLimits(config.peers, pool.hits, self.metrics.requests.on_refused)
        self.metrics.watch_process(
            self.security,
            log=output,
            open_calls=calls.open_calls,
            http_connections=lambda: self._http.open,
        )
        workers = len(config.workers) + config.mock_engines.mockers
        workers += MOST_WORKERS if self._discovery is not None else 0
        shown = PagedPool(PageData(pool.dashboard, pool.reader, self._health))
        self._http = HttpServer(
            {
                **MetricsRoute(self.metrics.page).routes,
                **HealthRoutes(self._health).routes,
                **PoolRoutes(self.router, pool.reader).routes,
                **AdminRoutes(self.admin).routes,
                **ReloadRoute(self._reloader).routes,
                **DashboardRoutes(lambda: [shown]).routes,
            },
            self.security,
            config.peers,
            pool.hits,
            name="http",
            host=config.host,
            port=config.http_port,
            key="http_port",
            admin_at=self.security.admin_address,
            workers=workers,
        )
        self._grpc = GrpcServer(
            TrtllmService(
                self.dispatcher,
                self.monitor,
                model_id=config.model_id,
                mode=config.router.mode,
                policy=config.router.policy_name,
            ),
            RouterService(self.router, pool.reader, self.admin),
            access=self.security.access,
            calls=calls,
            workers=workers,
            max_message_bytes=config.connection.max_message_bytes,
            tls=self.security.server_tls,
        )
        self.monitor.listeners.append(self._on_workers)

    @property
    def config(self) -> ServeConfig:
        """What it is run by now."""
        return self._live.config

    @property
    def card(self) -> ModelCard | None:
        """What discovered workers have published of their model, if any have."""
        return None if self._discovery is None else self._discovery.card

    def reload(self) -> None:
        """Read the configuration again; what comes of it is in the log."""
        if self._reloader is None or not self._started:
            log.warning("SIGHUP: the configuration is not read again, the router is starting")
        else:
            self._reloader.on_signal()

    @property
    def grpc_address(self) -> str:
        return f"{self._config.host}:{self._grpc.port}"

    @property
    def http_address(self) -> str:
        return f"{self._config.host}:{self._http.port}"

    @property
    def ready_line(self) -> str:
        events = self.pool.events
        listeners = f"grpc {self.grpc_address} {self._http.description} "
        return (
            f"dynamo-router ready: {listeners}{self.attached.description if self.attached else ''}"
            f"mode {self._config.router.mode} workers {len(self.router.registry)} "
            f"events {events.description if events else 'off'}"
        )

    async def start(self) -> None:
        """Take the ports, find the event plane, start mock engines, wait for workers, serve.

        ConfigError if a port or the event plane cannot be had. Call `close` in any case.
        """
        config, stack = self._config, self._stack
        stack.callback(self.router.close)
        if self._spans is not None:
            stack.push_async_callback(self._spans.close)
        # Ports first: they are what fails, and nothing has been started yet.
        if self._listens:
            self._grpc.bind(config.host, config.port)
        await self._http.listen()
        stack.push_async_callback(self._http.close)
        port = self._grpc.port if self._listens else config.port
        for line in self.security.exposed(port, self._http.port, self._http.admin):
            log.warning(line)
        self.metrics.loop_lag.start()
        stack.callback(self.metrics.loop_lag.close)
        self.security.watch.start()
        stack.push_async_callback(self.security.watch.close)
        if self._discovery is not None:
            stack.push_async_callback(self._discovery.close)
            await self._discovery.open()
        discovery = self._discovery
        stack.push_async_callback(self.pool.close_events)
        nats_url = await self.pool.start_events(None if discovery is None else discovery.ask_about)
        await self.pool.start_replicas()
        urls = []
        if config.mock_engines.mockers:
            mocks = MockProcess(
                config.mock_engines,
                block_size=config.router.block_size,
                namespace=config.namespace,
                component=config.component,
                endpoint=config.endpoint,
                model_id=config.model_id,
                nats_url=nats_url,
                nats_auth=config.nats_auth,
                vocab_size=None if self.attached is None else self.attached.vocab_size,
            )
            stack.push_async_callback(mocks.stop)
            await mocks.start()
            urls = mocks.urls
        # Closed before the engines stop: it would only report that they did.
        stack.push_async_callback(self.pool.close_workers)
        stack.push_async_callback(self._workers.close)
        for url in urls:
            self.monitor.add(url)
        await self._workers.start(config.workers)
        if self._discovery is not None:
            stack.push_async_callback(self._discovery.stop)
            await self._discovery.start()
        self.dispatcher.start()
        if self._listens:
            await self._grpc.start()
        if self.attached is not None:
            await self.attached.start()
        await self.pool.wait_for_probes()
        self._on_workers()
        self._started = True

    def turn_away(self) -> None:
        """Say by health that nobody should send requests here any more, and go on serving them."""
        self._draining = True
        self._on_workers()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""
        self.turn_away()
        ways_in = [self._grpc.stop(grace_s)]
        if self.attached is not None:
            ways_in.append(self.attached.drain(grace_s))
        await asyncio.gather(*ways_in)

    async def close(self) -> None:
        """End what is left. No task, child, thread or socket of it survives. Idempotent."""
        self._draining = True
        if self.attached is not None:
            await self.attached.close()
        await self._grpc.stop(0.0)
        await self._stack.aclose()

    def _on_workers(self) -> None:
        self._grpc.set_serving(self.monitor.any_ready and not self._draining)

    def _health(self) -> tuple[bool, dict[str, Any]]:
        """For /health."""
        more = {
            **self.pool.health,
            "mode": self._config.router.mode,
            "data_path": "nghttp2",
            "draining": self._draining,
        }
        ready = bool(more["workers"].get("ready")) and not self._draining
        for tell in self.more_health:
            able, told = tell()
            ready, more = ready and able, more | told
        return ready, more
