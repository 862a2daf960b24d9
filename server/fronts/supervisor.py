"""Supervisor: the parent of several processes that serve the same ports. It starts them, starts
them again when they end, kills those that hang, and ends them."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import structlog

from ...base.clock import SystemClock
from ...base.errors import ConfigError
from ...base.urls import DEFAULT_NATS_URL, joined
from ...process.settings import SettingsSource, options_of, values_of
from ...process.supervised import stopped, supervise
from ...process.system import addresses_to_listen, why_cannot_listen
from ...runtime.event_planes import EmbeddedNats, probe
from ..config import ServeConfig
from ..mock_process import MockProcess
from .kept_child import HANG_LOOKS, KeptChild
from .place import FrontPlace
from .process_folder import ProcessFolder
from .pulse import Pulses

STOP_TIMEOUT_S = 5.0
"""Beyond what a process may take to drain."""
PORTS = (
    "port",
    "http_port",
    "admin_port",
    "http_frontend",
    "ext_proc_port",
    "grpc_port",
    "grpc_health_port",
)
"""Settings that name a port which all processes share."""

log = structlog.get_logger(__name__)


class Supervisor:
    """Runs a command as `--fronts` processes, with what they share, and nothing that outlives them.

    Implements Service. The ports, the NATS server where none is running, and the mock engines are
    this process', so that they survive each of the others.
    """

    def __init__(
        self,
        config: ServeConfig,
        source: SettingsSource[Any] | None = None,
        vocab_size: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`source`: where the processes read the configuration again from. `vocab_size`: what mock
        engines generate from, where the configuration has nothing."""
        self._config, self._source, self._vocab_size = config, source, vocab_size
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self._children: list[KeptChild] = []
        self._leaves = False

    @property
    def config(self) -> ServeConfig:
        """That which the processes have, if they have read it again."""
        if self._source is not None:
            with suppress(ConfigError):
                self._config = self._source.read().config
        return self._config

    @property
    def ready_line(self) -> str:
        """That of the first process: the others serve the same ports."""
        return f"{self._children[0].ready_line} fronts {len(self._children)}"

    def reload(self) -> None:
        """Have each process read the configuration again."""
        for child in self._children:
            child.send(signal.SIGHUP)

    async def start(self) -> None:
        """Return once all processes serve. ConfigError if a port is taken, or one cannot start."""
        config, stack, count = self._config, self._stack, self._config.fronts.fronts
        ports = self._take_ports()
        folder = ProcessFolder()
        stack.callback(folder.remove)
        pulses = Pulses(folder.path, count)
        stack.callback(pulses.close)
        shared: dict[str, Any] = {**ports, "router.router_replica_sync": True}
        shared |= await self._find_nats()
        workers = await self._start_mock_engines(shared.get("nats"))
        if workers:
            shared["mockers"] = 0
        name = config.router_id or folder.path.name.rpartition("-")[2]
        grace_s = config.drain_timeout_s + config.lame_duck_s + STOP_TIMEOUT_S
        for number in range(count):
            # The first one empties what is to be empty, and has the snapshot; the others borrow
            # its index over the event plane.
            own = {"router_id": f"{name}-{number}"}
            if number:
                own |= _without(config, router_reset_states=False, index_snapshot=None)
            settings = shared | own
            place = FrontPlace(number, count, str(folder.path), settings, workers)
            child = KeptChild(f"front {number}", place.environment, grace_s, self._clock)
            self._children.append(child)
            stack.push_async_callback(child.stop)
        await self._children[0].start()
        if config.router_reset_states:
            again = shared | {"router_id": f"{name}-0", "router_reset_states": False}
            place = FrontPlace(0, count, str(folder.path), again, workers)
            self._children[0].environment.update(place.environment)
        await asyncio.gather(*(child.start() for child in self._children[1:]))
        if config.fronts.front_hang_timeout_s:
            watching = supervise("hangs", lambda: self._watch(pulses))
            stack.push_async_callback(stopped, watching)

    def turn_away(self) -> None:
        """Each process says so by its health, and drains afterwards."""
        self._leave(signal.SIGTERM)

    async def drain(self, grace_s: float) -> None:
        """Wait until all have drained; one that hangs is killed."""
        self._leave(signal.SIGINT)
        try:
            async with asyncio.timeout(grace_s + STOP_TIMEOUT_S):
                await asyncio.gather(*(child.ended() for child in self._children))
        except TimeoutError:
            for child in self._children:
                if not child.has_ended:
                    log.error("a process does not end and is killed", process=child.name)
                    child.leave(signal.SIGKILL)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        await asyncio.gather(*(child.stop() for child in self._children))
        await self._stack.aclose()

    async def _watch(self, pulses: Pulses) -> None:
        """Look whether the event loop of each process runs."""
        while True:
            await asyncio.sleep(self._config.fronts.front_hang_timeout_s / HANG_LOOKS)
            for number, child in enumerate(self._children):
                child.look(pulses.of(number))

    def _leave(self, number: signal.Signals) -> None:
        if not self._leaves:
            self._leaves = True
            for child in self._children:
                child.leave(number)

    def _take_ports(self) -> dict[str, int]:
        """The ports of the configuration, free ones in place of 0, held for the processes."""
        config, taken = self._config, dict[str, int]()
        set_here = {spec.key for spec in options_of(type(config))}
        for key, port in values_of(config).items():
            if key not in PORTS or key not in set_here or port is None:
                continue
            host = config.host if key != "admin_port" else config.admin_host or "127.0.0.1"
            holder = take_port(host, port, key)
            self._stack.callback(holder.close)
            taken[key] = holder.getsockname()[1]
        return taken

    async def _find_nats(self) -> dict[str, Any]:
        """Settings that name the NATS server that carries events between the processes; one is
        started where there is none. Nothing with an event plane that needs no server."""
        config = self._config
        if config.plane.is_zmq or config.nats is not None:
            return {}
        if await probe(DEFAULT_NATS_URL):
            return {"nats": DEFAULT_NATS_URL}
        if config.durable_kv_events:
            return {}  # a process says what is missing
        embedded = await self._stack.enter_async_context(EmbeddedNats())
        embedded.keep_running()
        return {"nats": embedded.url}

    async def _start_mock_engines(self, nats_url: str | None) -> list[str]:
        """The URLs of the mock engines, if any are wanted."""
        config = self._config
        if not config.mock_engines.mockers:
            return []
        mocks = MockProcess(
            config.mock_engines,
            block_size=config.router.block_size,
            namespace=config.namespace,
            component=config.component,
            endpoint=config.endpoint,
            model_id=config.model_id,
            nats_url=(nats_url or config.nats) if config.router.use_kv_events else None,
            nats_auth=config.nats_auth,
            vocab_size=self._vocab_size(),
        )
        self._stack.push_async_callback(mocks.stop)
        await mocks.start()
        return mocks.urls


def _without(config: ServeConfig, **settings: Any) -> dict[str, Any]:
    """These settings, where the configuration has others."""
    return {key: value for key, value in settings.items() if getattr(config, key) != value}


def take_port(host: str, port: int, key: str) -> socket.socket:
    """A socket that has the port and does not listen, so that others of our user can share it.

    ConfigError, naming the setting, if another process listens there.
    """
    try:
        found = addresses_to_listen(host, port)
    except OSError:
        raise ConfigError(f"host: {host} is no address or known name", key="host") from None
    family, kind, protocol, _, address = found[0]
    taken = socket.socket(family, kind, protocol)
    try:
        with socket.socket(family, kind, protocol) as alone:  # it must not be shared yet
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        at_fault, _ = why_cannot_listen(host, port)
        key = key if at_fault == "port" else at_fault
        text = f"{key}: cannot listen on {joined(host, port)}: {error.strerror}"
        raise ConfigError(text, key=key) from None
    return taken
