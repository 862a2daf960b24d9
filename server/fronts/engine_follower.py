"""EngineFollower: a front's health monitor watches the engines that the decider has."""

import asyncio
from collections.abc import Callable

import structlog

from ...base.errors import ConfigError
from ...process.supervised import stopped, supervise
from ...workers.health import HealthMonitor
from .messages import Engine, Engines

LOOK_EVERY_S = 0.5
"""How often a worker that has left is looked at, whether it has a request still."""

log = structlog.get_logger(__name__)


class EngineFollower:
    """From `start` to `close`. `in_flight_on` says how many requests of ours a worker has.

    An engine that the decider removed is removed at once, as it was there. One that a decider which
    has just come back does not know gets no request any more, and is removed after its last one: a
    restart cuts nothing off.
    """

    def __init__(self, monitor: HealthMonitor, in_flight_on: Callable[[int], int]) -> None:
        self._monitor = monitor
        self._in_flight_on = in_flight_on
        self._newest: Engines | None = None
        self._is_new_decider = False
        self._wake = asyncio.Event()
        self._leaving: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.followed = asyncio.Event()
        """the decider has told of its engines, and they are watched"""

    def start(self) -> None:
        self._task = supervise("engines", self._run)

    async def close(self) -> None:
        """Follow no more. Idempotent."""
        await stopped(self._task)

    def on_welcome(self) -> None:
        """The next engines are those of a decider that has just begun to talk to us."""
        self._is_new_decider = True

    def tell(self, engines: Engines) -> None:
        """These there are now."""
        self._newest = engines
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S if self._leaving else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            engines, self._newest = self._newest, None
            if engines is not None:
                await self._follow(engines)
                self.followed.set()
            for address in list(self._leaving):
                engine = self._monitor.find(address)
                if engine is None or engine.worker_id is None:
                    self._leaving.discard(address)
                elif not self._in_flight_on(engine.worker_id):
                    self._leaving.discard(address)
                    await self._monitor.remove(address)

    async def _follow(self, engines: Engines) -> None:
        monitor, told = self._monitor, {each.url.address: each for each in engines.engines}
        gently, self._is_new_decider = self._is_new_decider, False
        for engine in list(monitor.engines):
            address = engine.url.address
            if address in told or address in self._leaving:
                continue
            if gently:
                monitor.drain(engine)
                self._leaving.add(address)
            else:
                await monitor.remove(address)
        for address, each in told.items():
            self._leaving.discard(address)
            self._watch(address, each)

    def _watch(self, address: str, told: Engine) -> None:
        monitor = self._monitor
        try:
            if monitor.find(address) is None:
                monitor.add(told.url, weight=told.weight, origin=told.origin)
            engine = monitor.find(address)
            assert engine is not None
            monitor.drain(engine, told.draining)
            if engine.weight != told.weight:
                monitor.set_weight(engine, told.weight)
        except ConfigError as error:  # the decider has it, so it should not be
            log.error("an engine cannot be watched", address=address, error=str(error))
