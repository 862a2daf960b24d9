"""Supervisor: starts the decider and the fronts, starts them again when they end, ends them."""

import asyncio
import signal
import socket
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ...base.clock import SystemClock
from ...base.errors import ConfigError
from ...process.supervised import stopped, supervise
from ...process.system import why_cannot_listen
from ..config import ServeConfig
from .kept_child import HANG_LOOKS, KeptChild
from .process_folder import ProcessFolder
from .pulse import Pulses

STOP_TIMEOUT_S = 5.0
"""Beyond what a process may take to drain."""
CONFIG_FILE = "config.msgpack"

log = structlog.get_logger(__name__)


class Supervisor:
    """Runs `serve --fronts N`: one decider, N fronts, and nothing that outlives them.

    Implements Service. The gRPC port is taken here and shared by the fronts.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._clock = SystemClock()
        self._folder: ProcessFolder | None = None
        self._port: socket.socket | None = None
        self._decider: KeptChild | None = None
        self._fronts: list[KeptChild] = []
        self._pulses: Pulses | None = None
        self._watching: asyncio.Task[None] | None = None
        self._told = False

    @property
    def config(self) -> ServeConfig:
        return self._config

    @property
    def ready_line(self) -> str:
        """The decider's, with the port of the fronts."""
        assert self._decider is not None and self._port is not None
        name, _, rest = self._decider.ready_line.partition(" http ")
        where = f"grpc {self._config.host}:{self._port.getsockname()[1]}"
        return f"{name.partition(' grpc ')[0]} {where} http {rest}"

    def reload(self) -> None:
        log.warning("SIGHUP: with several fronts the configuration is not read again")

    async def start(self) -> None:
        config = self._config
        self._port = take_port(config.host, config.port)
        port = self._port.getsockname()[1]
        self._folder = ProcessFolder()
        folder = self._folder.path
        self._pulses = Pulses(folder, 1 + config.fronts.fronts)
        # The fronts tell when they drain; then the decider has nothing more to wait for.
        self._write_config(replace(plain_config(config), port=port, lame_duck_s=config.lame_duck_s))
        self._decider = KeptChild("decider", ["decider", str(folder)], STOP_TIMEOUT_S, self._clock)
        await self._decider.start()
        http_port = config.http_port or port_told(self._decider.ready_line)
        self._write_config(replace(plain_config(config), port=port, http_port=http_port))
        grace_s = config.drain_timeout_s + STOP_TIMEOUT_S
        for number in range(config.fronts.fronts):
            words = ["front", str(folder), str(number)]
            self._fronts.append(KeptChild(f"front {number}", words, grace_s, self._clock))
        await asyncio.gather(*(front.start() for front in self._fronts))
        if config.fronts.front_hang_timeout_s:
            self._watching = supervise("hangs", self._watch)

    def turn_away(self) -> None:
        """The fronts say so, and drain afterwards."""
        self._leave(signal.SIGTERM)

    async def drain(self, grace_s: float) -> None:
        """The fronts first: the decider serves them until they have ended. One that hangs is
        killed."""
        self._leave(signal.SIGINT)
        try:
            async with asyncio.timeout(grace_s + STOP_TIMEOUT_S):
                await asyncio.gather(*(front.ended() for front in self._fronts))
        except TimeoutError:
            for front in self._fronts:
                if not front.has_ended:
                    log.error("a process does not end and is killed", process=front.name)
                    front.leave(signal.SIGKILL)

    async def close(self) -> None:
        """End what is left, the fronts first. Idempotent."""
        await stopped(self._watching)
        await asyncio.gather(*(front.stop() for front in self._fronts))
        if self._decider is not None:
            await self._decider.stop()
        if self._port is not None:
            self._port.close()
        if self._folder is not None:
            self._folder.remove()
        if self._pulses is not None:
            self._pulses.close()

    async def _watch(self) -> None:
        """Look whether the event loop of each process runs."""
        assert self._pulses is not None and self._decider is not None
        children = (self._decider, *self._fronts)
        while True:
            await asyncio.sleep(self._config.fronts.front_hang_timeout_s / HANG_LOOKS)
            for place, child in enumerate(children):
                child.look(self._pulses.of(place))

    def _leave(self, number: signal.Signals) -> None:
        if not self._told:
            self._told = True
            for front in self._fronts:
                front.leave(number)

    def _write_config(self, config: ServeConfig) -> None:
        """For the processes, in a folder that only our user may enter."""
        assert self._folder is not None
        folder = self._folder.path
        new = folder / f"{CONFIG_FILE}.new"
        new.write_bytes(msgspec.msgpack.encode(config))
        new.replace(folder / CONFIG_FILE)


def plain_config(config: ServeConfig) -> ServeConfig:
    """The part of a configuration that the processes need."""
    taken: dict[str, Any] = {each.name: getattr(config, each.name) for each in fields(ServeConfig)}
    return ServeConfig(**taken)


def read_config(folder: Path) -> ServeConfig:
    """What a Supervisor wrote."""
    return msgspec.msgpack.decode((folder / CONFIG_FILE).read_bytes(), type=ServeConfig)


def take_port(host: str, port: int) -> socket.socket:
    """A socket that has the port and does not listen, so that others of our user can share it.

    ConfigError if somebody else listens there.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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
        key, _ = why_cannot_listen(host, port)
        text = f"{key}: cannot listen on {host}:{port}: {error.strerror}"
        raise ConfigError(text, key=key) from None
    return taken


def port_told(ready_line: str) -> int:
    """The HTTP port of a ready line."""
    return int(ready_line.partition(" http ")[2].split()[0].rpartition(":")[2])
