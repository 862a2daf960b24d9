"""The mock engines of one process: MockFleet, and the command `dynamo-router mocker` around it."""

import asyncio
from typing import Self

import uvloop

from ...base.clock import Clock
from ...base.errors import ConfigError
from ...process.standard_output import print_line
from ...process.system import StopSignals, allow_open_files, run_until
from ...runtime.event_planes import EventPlane, SharedPlane
from ...runtime.kv_stores import KeyValueStore
from ...runtime.request_planes import RequestServer
from ...transport.security import ServerTls
from ..prefill_queue import QueueMetrics
from ..serving import (
    MetricsPage,
    ServingContext,
    WorkerRegistration,
    request_plane_metrics,
)
from ..transfer import TransferMetrics
from .config import MockerConfig
from .fault_api import FaultApi
from .own_model import CARD_KINDS, card_files, lacks_tokenizer, with_end_tokens
from .server import MockServer

_OTHER_FILES = 64


class MockFleet:
    """The engines of one or more configs, in order; an async context manager.

    The event plane, if there is one, stays the caller's to close, after the fleet.
    """

    def __init__(
        self,
        *configs: MockerConfig,
        plane: EventPlane | None = None,
        clock: Clock | None = None,
        tls: ServerTls | None = None,
        store: KeyValueStore | None = None,
        requests: RequestServer | None = None,
    ) -> None:
        """With a `store` the engines are registered there; with `requests`, which was started, as
        Dynamo's workers are. Both stay the caller's to close."""
        # All engines listen for the same requests, each for its own.
        self.metrics = TransferMetrics()
        self.queues = QueueMetrics(self.metrics.registry)
        if requests is not None:
            request_plane_metrics(requests, self.metrics.registry)
        shared = SharedPlane(plane) if plane is not None else None
        self.engines = [
            MockServer(
                config,
                index,
                plane=shared,
                clock=clock,
                tls=tls,
                registration=_registration(store, config, requests),
                store=store,
                metrics=self.metrics,
                queues=self.queues,
            )
            for config in map(with_end_tokens, configs)
            for index in range(config.workers)
        ]

    @property
    def addresses(self) -> list[str]:
        """host:port of each engine, once started."""
        return [engine.address for engine in self.engines]

    @property
    def worker_ids(self) -> list[int]:
        return [engine.worker_id for engine in self.engines]

    async def start(self) -> None:
        """Start every engine. On ConfigError (a port is in use) none is left running."""
        try:
            for engine in self.engines:
                await engine.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop every engine, all within `grace_s`; requests that are not done by then are ended."""
        async with asyncio.TaskGroup() as group:
            for engine in self.engines:
                group.create_task(engine.stop(grace_s))

    async def kill(self, index: int) -> None:
        """Fault: engine `index` is gone at once, connections broken, nothing announced."""
        await self.engines[index].kill()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


def _registration(
    store: KeyValueStore | None, config: MockerConfig, requests: RequestServer | None
) -> WorkerRegistration | None:
    if store is None:
        return None
    kind = CARD_KINDS[config.disaggregation_mode]
    return WorkerRegistration(store, config, card_files(config), requests, kind=kind)


def run(config: MockerConfig) -> int:
    """The command: the process's exit code. ConfigError if a port is in use."""
    uvloop.run(run_mocker(config))
    return 0


async def run_mocker(config: MockerConfig) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second signal ends the drain.

    Prints a line for each engine and then `ready`. ConfigError if a port is in use.
    """
    _allow_connections(config.workers)
    async with ServingContext(config, capacity=config.engine.max_waiting) as context:
        fleet = MockFleet(
            config,
            plane=context.plane,
            tls=context.tls,
            store=context.store,
            requests=context.requests,
        )
        fault_api = FaultApi(fleet.engines)
        metrics = MetricsPage(fleet.metrics.text)
        with StopSignals() as signals:
            try:
                await run_until(asyncio.create_task(fleet.start()), signals.drain)
                if signals.drain.is_set():
                    return
                if (text := lacks_tokenizer(config)) is not None:
                    print_line(text)
                for index, engine in enumerate(fleet.engines):
                    print_line(f"engine {index}: {engine.url} worker {engine.worker_id}")
                if config.fault_port is not None:
                    await fault_api.start(config.host, config.fault_port)
                    print_line(f"faults: http://{fault_api.address}")
                if config.metrics_port is not None:
                    await metrics.start(config.host, config.metrics_port)
                    print_line(f"metrics: http://{metrics.address}/metrics")
                print_line("ready")
                await signals.drain.wait()
                print_line(f"draining: running requests have {config.drain_timeout_s:g} s")
                draining = asyncio.create_task(fleet.stop(config.drain_timeout_s))
                await run_until(draining, signals.end)
            finally:
                await metrics.close()
                await fault_api.close()
                await fleet.stop()


def _allow_connections(engines: int) -> None:
    """Make room for every engine's port and for some clients; ConfigError if not even for one."""
    needed = _OTHER_FILES + 2 * engines
    limit = allow_open_files(_OTHER_FILES + 8 * engines)
    if limit < needed:
        raise ConfigError(
            f"workers: {engines} engines need {needed} open files, the limit is {limit}"
            " (ulimit -n)",
            key="workers",
        )
