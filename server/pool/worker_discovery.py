"""WorkerDiscovery: the store that has the workers, and the plane that calls those of Dynamo."""

from contextlib import AsyncExitStack

from ...base.clock import Clock
from ...base.errors import ConfigError
from ...indexer.event_index import EventIndex
from ...kv_events import WorkerQueries
from ...process.system import reachable_host
from ...runtime.components import EndpointName
from ...runtime.kv_stores import NatsAddress
from ...runtime.request_planes import (
    Carrier,
    NatsCarrier,
    RequestClient,
)
from ...transport.security import NatsAuth
from ...workers.health import HealthMonitor
from ...workers.records import STATIC, ModelCard, WorkerWatch
from ..admin import DiscoveredWorkers, WorkerAdmin
from ..config import ServeConfig

MOST_WORKERS = 1024
"""This many connections are kept for workers that are not known yet."""


class WorkerPlane(RequestClient):
    """The request plane over which workers of Dynamo's are called, as a configuration has it."""

    def __init__(self, config: ServeConfig, auth: NatsAuth | None) -> None:
        address = NatsAddress.from_environment()
        if config.nats is not None:
            address = NatsAddress(config.nats, auth)
        self._host = config.response_host or reachable_host(config.host)
        carriers: dict[str, Carrier] = {"nats_tcp": NatsCarrier(address)}
        super().__init__(carriers)

    async def listen(self) -> None:
        """Listen for answers. ConfigError if that cannot be had."""
        try:
            await self.start(self._host)
        except OSError as error:
            text = f"cannot listen on {self._host}: {error.strerror}"
            raise ConfigError(f"response_host: {text}", key="response_host") from None


class WorkerDiscovery:
    """From `open`, after which workers can be asked for events, over `start` to `close`."""

    def __init__(
        self,
        config: ServeConfig,
        admin: WorkerAdmin,
        monitor: HealthMonitor,
        clock: Clock,
        auth: NatsAuth | None,
        *,
        component: str | None = None,
        only: str | None = None,
    ) -> None:
        """`component`: if not that of the configuration; `only`: workers of this kind alone.
        ConfigError if the store's address, or a name, is not valid."""
        backend = config.backend
        store = config.discovery.open(backend)
        assert store is not None, "there is nothing to discover"
        try:
            name = EndpointName(config.namespace, component or config.component, config.endpoint)
        except ValueError as error:
            raise ConfigError(f"discovery: {error}", key="discovery") from None
        self._plane = WorkerPlane(config, auth)
        self._watch = WorkerWatch(store, name, self._plane.transports, only)
        self._workers = DiscoveredWorkers(backend, self._watch, admin, monitor, self._plane, clock)
        self._stack = AsyncExitStack()

    def ask_about(self, index: EventIndex) -> WorkerQueries:
        """The way to ask workers for events that the index misses; to be closed before this."""
        return WorkerQueries(index, self._plane, lambda: self._watch.sources)

    @property
    def card(self) -> ModelCard | None:
        """Of the worker with the lowest id, if one has published any."""
        cards = self._watch.cards
        return cards[min(cards)] if cards else None

    async def open(self) -> None:
        """Listen for answers. ConfigError if that cannot be had."""
        await self._plane.listen()
        self._stack.push_async_callback(self._plane.close)

    async def start(self) -> None:
        """Find the workers, and go on following them. ConfigError if the store refuses us."""
        await self._workers.start()

    async def stop(self) -> None:
        """Follow the workers no more. Idempotent."""
        await self._workers.close()

    async def close(self) -> None:
        """Let go of the plane, after those who call over it. Idempotent."""
        await self._stack.aclose()


def is_discovering(config: ServeConfig) -> bool:
    """Whether there is a store to find workers in."""
    return config.backend != STATIC
