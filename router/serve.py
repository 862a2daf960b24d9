"""dynamo-router serve: puts the router together, runs it, and takes it apart again."""

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop

from ..indexer.event_index import EventIndex, SnapshotHead
from ..runtime.clock import SystemClock
from ..runtime.embedded_nats import EmbeddedNats, probe
from ..runtime.errors import ConfigError
from ..runtime.event_plane import KV_EVENTS, EventPlane, endpoint_subject
from ..runtime.nats_plane import NatsPlane
from ..runtime.nats_url import DEFAULT_NATS_URL
from ..runtime.open_files import allow_open_files
from ..runtime.supervised import stopped, supervise
from ..workers.health import HealthMonitor
from ..workers.registry import WorkerState
from .config import ServeConfig
from .dispatch import Dispatcher, DispatchObserver, OutputTracking, admission_of
from .events import EventFeed, SnapshotTask
from .kv_router import KvRouter
from .metrics import (
    Gauges,
    RequestMetrics,
    dispatch_metrics,
    event_metrics,
    fault_metrics,
    plane_metrics,
    queue_metrics,
    registry_of,
    snapshot_metrics,
    worker_metrics,
)
from .mock_process import MockProcess
from .services import GrpcDoor, HttpDoor, RouterService, TrtllmService

GREET_S = 2.0
"""How long the ready line waits for the first word of every worker."""
GC_THRESHOLDS = (20_000, 20, 50)
"""Requests make no cycles; looking for some after every 700 objects is wasted on them."""
OPEN_FILES = 1 << 16
KEEP_S = 0.5
"""How often we look whether the nats-server of our own still runs."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = structlog.get_logger(__name__)


def run(config: ServeConfig) -> int:
    """The command: serve until a signal, then drain. 1, and a line on why, if it cannot start."""
    _log_to_stderr(config.log_level)
    allow_open_files(OPEN_FILES)  # a connection for each worker and each client
    # gRPC's core logs each fork and each peer that goes; we say what matters of that ourselves.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        uvloop.run(run_server(config))
    except ConfigError as error:
        print(f"dynamo-router: {error}", file=sys.stderr)
        return 1
    return 0


async def run_server(config: ServeConfig) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second signal ends the drain.

    Prints one line when it is ready. ConfigError if it cannot start.
    """
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    server = Server(config)
    try:
        starting = asyncio.create_task(server.start())
        await _first_of(starting, stop.wait())
        if not stop.is_set():
            # What is here now stays: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            print(server.ready_line, flush=True)
            await stop.wait()
            print(f"draining for at most {config.drain_timeout_s:g} s", flush=True)
            draining = asyncio.create_task(server.drain(config.drain_timeout_s))
            await _first_of(draining, hurry.wait())
    finally:
        await server.close()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class Server:
    """The whole service in one event loop. `close` undoes whatever `start` did, in reverse."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self._plane: EventPlane | None = None
        self._events = "off"
        self._draining = False

        self.router = KvRouter(config.router, clock=self._clock)
        self.monitor = HealthMonitor(
            self.router.registry,
            self._clock,
            block_size=config.router.block_size,
            policy=config.health,
            outliers=config.outliers,
            connection=config.connection,
            mixed_models=config.mixed_models,
        )
        metrics = RequestMetrics(lambda: self.dispatcher.in_flight)
        observer: DispatchObserver = metrics
        if config.router.router_track_output_blocks:
            observer = OutputTracking(self.router, metrics)
        self._admission = admission_of(self.router)
        self.dispatcher = Dispatcher(
            self.router,
            self.monitor,
            self._clock,
            max_attempts=config.max_attempts,
            silence_s=config.request_timeout_s,
            limits=config.limits,
            observer=observer,
            admission=self._admission,
        )
        self._gauges = Gauges(
            worker_metrics(self.router),
            dispatch_metrics(self.dispatcher),
            fault_metrics(self.monitor.reports, self.dispatcher),
        )
        if self._admission is not None:
            self._gauges.add(queue_metrics(self._admission.queue))
        self._http = HttpDoor(self.router, registry_of(metrics, self._gauges), self._health)
        self._grpc = GrpcDoor(
            TrtllmService(
                self.dispatcher,
                self.monitor,
                model_id=config.model_id,
                mode=config.router.mode,
                policy=config.router.policy_name,
            ),
            RouterService(self.router),
        )
        self.monitor.listeners.append(self._on_workers)

    @property
    def grpc_address(self) -> str:
        return f"{self._config.host}:{self._grpc.port}"

    @property
    def http_address(self) -> str:
        return f"{self._config.host}:{self._http.port}"

    @property
    def ready_line(self) -> str:
        return (
            f"dynamo-router ready: grpc {self.grpc_address} http {self.http_address} "
            f"mode {self._config.router.mode} workers {len(self.router.registry)} "
            f"events {self._events}"
        )

    async def start(self) -> None:
        """Take the ports, find the event plane, start mock engines, greet the workers, serve.

        ConfigError if a port or the event plane cannot be had. Call `close` in any case.
        """
        config, stack = self._config, self._stack
        stack.callback(self.router.close)
        # Ports first: they are what fails, and nothing has been started yet.
        self._grpc.bind(config.host, config.port)
        await self._http.start(config.host, config.http_port)
        stack.push_async_callback(self._http.close)
        nats_url = await self._start_events()
        urls = list(config.workers)
        if config.mockers:
            mocks = MockProcess(config, nats_url=nats_url)
            stack.push_async_callback(mocks.stop)
            await mocks.start()
            urls += mocks.urls
        # Closed before the engines stop: it would only report that they did.
        stack.push_async_callback(self.monitor.close)
        for url in urls:
            self.monitor.add(url)
        self.dispatcher.start()
        stack.push_async_callback(self.dispatcher.close)
        await self._grpc.start()
        await self._greet()
        self._on_workers()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""
        self._draining = True
        self._on_workers()
        await self._grpc.stop(grace_s)

    async def close(self) -> None:
        """End what is left. No task, child, thread or socket of it survives. Idempotent."""
        self._draining = True
        await self._grpc.stop(0.0)
        await self._stack.aclose()

    async def _start_events(self) -> str | None:
        """Connect the index to the event plane; the URL of its server."""
        config, index = self._config, self.router.index
        if not isinstance(index, EventIndex):
            return None
        url, origin = await self._find_nats()
        self._events = f"{url}{origin}"
        if config.index_snapshot is not None:
            head = SnapshotHead(
                block_size=config.router.block_size,
                subject=endpoint_subject(
                    config.namespace, config.component, config.endpoint, KV_EVENTS
                ),
            )
            snapshots = SnapshotTask(
                index,
                Path(config.index_snapshot),
                head,
                interval_s=config.index_snapshot_interval_s,
            )
            # Before the feed, which verifies what was loaded.
            await snapshots.start()
            self._stack.push_async_callback(snapshots.close)
            self._gauges.add(snapshot_metrics(snapshots))
        plane = self._plane = NatsPlane(url)
        self._stack.push_async_callback(plane.close)
        feed = EventFeed(
            plane,
            index,
            self.router.registry,
            self._clock,
            namespace=config.namespace,
            component=config.component,
            endpoint=config.endpoint,
            unknown_worker_ttl_s=config.unknown_worker_ttl_s,
        )
        await feed.start()
        self._stack.push_async_callback(feed.close)
        self._gauges.add(event_metrics(index))
        self._gauges.add(plane_metrics(plane, feed))
        return url

    async def _find_nats(self) -> tuple[str, str]:
        """(URL, a word on where it comes from) of the NATS server to use."""
        if self._config.nats is not None:
            return self._config.nats, ""
        if await probe(DEFAULT_NATS_URL):
            return DEFAULT_NATS_URL, " (found)"
        embedded = EmbeddedNats()
        self._stack.push_async_callback(embedded.stop)
        await embedded.start()
        keeper = supervise("nats keeper", partial(_keep_running, embedded))
        self._stack.push_async_callback(stopped, keeper)
        return embedded.url, " (embedded)"

    async def _greet(self) -> None:
        """Wait, for a bounded time, until every worker has said its first word."""
        greeted = asyncio.Event()

        def look() -> None:
            states = [entry.state for entry in self.router.registry.entries()]
            if WorkerState.CONNECTING not in states:
                greeted.set()

        self.monitor.listeners.append(look)
        look()
        try:
            async with asyncio.timeout(GREET_S):
                await greeted.wait()
        except TimeoutError:
            pass
        finally:
            self.monitor.listeners.remove(look)

    def _on_workers(self) -> None:
        if self._admission is not None:
            self._admission.poll()
        self._grpc.set_serving(self.monitor.any_ready and not self._draining)

    def _health(self) -> tuple[bool, dict[str, Any]]:
        """For /health."""
        states: dict[str, int] = {}
        for entry in self.router.registry.entries():
            states[entry.state.value] = states.get(entry.state.value, 0) + 1
        plane = "off" if self._plane is None else self._plane.state.value
        more: dict[str, Any] = {
            "workers": states,
            "event_plane": {"state": plane, "server": self._events},
            "mode": self._config.router.mode,
            "draining": self._draining,
            "in_flight": self.dispatcher.in_flight,
        }
        return bool(states.get("ready")) and not self._draining, more


async def _keep_running(server: EmbeddedNats) -> None:
    """Start the server of our own again, on its port, whenever it is gone."""
    while True:
        await asyncio.sleep(KEEP_S)
        if not server.running:
            try:
                await server.start()
            except (ConfigError, OSError) as error:
                log.warning("nats-server does not come back, will keep trying", error=str(error))


async def _first_of(task: "asyncio.Task[None]", event: Any) -> None:
    """Wait for a task, but give it up if the event comes first. The task's error is raised."""
    waiting = asyncio.create_task(event)
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, waiting})
    if not task.cancelled():
        task.result()


def _log_to_stderr(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=level.upper(), stream=sys.stderr)
