"""Decider: where fronts ask; the way in to a Server that has no gRPC port of its own."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from ...base.clock import Clock
from ...base.errors import ConfigError
from ...process.supervised import stopped, supervise
from ..metrics import MetricsPage
from ..pool import WorkerPool
from ..services import RouterService
from .front_session import FrontSession
from .front_totals import FrontTotals
from .messages import VERSION, Engine, Engines, Loads, Totals, Welcome
from .process_folder import SOCKET_FILE
from .pulse import Pulse

LOADS_EVERY_S = 0.1
LEASE_S = 10.0
"""A front that says nothing for so long is taken to be gone: what it has booked is free."""
TOUCH_EVERY_S = 1.0
BACKLOG = 64

log = structlog.get_logger(__name__)


class Decider:
    """Listens on a Unix socket that only our user can reach, for `fronts` front processes.

    Implements Listener. Fronts are told of engines and loads; what they count goes into the
    metrics, and how they are is `health`. `turn_away` is called once all of them drain.
    """

    def __init__(
        self,
        pool: WorkerPool,
        page: MetricsPage,
        turn_away: Callable[[], None],
        folder: Path,
        fronts: int,
        clock: Clock,
    ) -> None:
        self._pool, self._turn_away = pool, turn_away
        self._folder, self._fronts = folder, fronts
        self._path = str(folder / SOCKET_FILE)
        self._clock = clock
        self._methods = RouterService(pool.router, pool.reader, pool.admin).methods
        self._totals = FrontTotals()
        page.through(self._totals.added_to)
        self._sessions: set[FrontSession] = set()
        self._engines = Engines([])
        self._changed = True
        self._pool.monitor.listeners.append(self._on_workers)
        # It has no request that an engine could be asked to load, and nobody says when one is over.
        self._pool.decisions.on_held = None
        self._listener: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pulse: Pulse | None = None

    @property
    def description(self) -> str:
        return f"fronts {self._fronts}"

    @property
    def fronts(self) -> list[FrontSession]:
        """Those that are there, by their numbers."""
        known = [session for session in self._sessions if session.hello is not None]
        return sorted(known, key=lambda session: session.hello.front if session.hello else 0)

    async def listen(self) -> None:
        """Its socket comes with `start`."""

    async def start(self) -> None:
        """Listen. Workers have been probed then: a front that comes back finds them."""
        await self._pool.wait_for_probes()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            listener.bind(self._path)
            os.chmod(self._path, 0o600)
            listener.listen(BACKLOG)
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_unix_server(self._accept, sock=listener)
        except OSError as error:
            listener.close()
            raise ConfigError(f"fronts: cannot listen on {self._path}: {error.strerror}") from None
        self._pulse = Pulse(self._folder, 0)
        self._tasks = [supervise("loads", self._tell), supervise("leases", self._look)]

    async def drain(self, grace_s: float) -> None:
        """The fronts drain by themselves, and end before the decider does."""

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            await stopped(task)
        if self._pulse is not None:
            await self._pulse.close()
        for session in list(self._sessions):
            session.connection.close("the decider ends")
        await asyncio.sleep(0)
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _accept(self) -> asyncio.Protocol:
        session = FrontSession(
            self._pool,
            self._clock,
            self._methods,
            on_hello=self._on_hello,
            on_gone=self._on_gone,
            on_totals=self._on_totals,
        )
        self._sessions.add(session)
        return session.connection

    def _on_workers(self) -> None:
        self._changed = True

    def _on_hello(self, session: FrontSession) -> Welcome:
        hello = session.hello
        assert hello is not None
        for other in self.fronts:
            if other is not session and other.hello and other.hello.front == hello.front:
                other.end("another one has its place")
        log.info("a front is here", front=hello.front, pid=hello.pid)
        session.connection.tell(self._loads())
        self._engines = Engines(list(self._engines_now()))
        self._tell_engines(session)
        return Welcome(VERSION, self._pool.router.uses_caches, self._fronts)

    def _on_gone(self, session: FrontSession) -> None:
        self._sessions.discard(session)
        if session.hello is not None:
            self._totals.leave(session.hello.front)

    def _on_totals(self, session: FrontSession, totals: Totals) -> None:
        if session.hello is not None:
            counts = self._pool.metrics.workers.counts
            self._totals.take(session.hello.front, session.hello.token, totals, counts)

    async def _tell(self) -> None:
        """Tell loads and engines, as often as they may have changed."""
        while True:
            await asyncio.sleep(LOADS_EVERY_S)
            if self._changed:
                self._changed = False
                engines = Engines(list(self._engines_now()))
                if engines != self._engines:
                    self._engines = engines
            fronts, loads = self.fronts, self._loads()
            if len(fronts) == self._fronts and all(each.status.draining for each in fronts):
                self._turn_away()
            for session in fronts:
                if not session.connection.is_paused:  # else it is told later, and all of it
                    session.connection.tell(loads)
                    self._tell_engines(session)

    def _tell_engines(self, session: FrontSession) -> None:
        if session.told_engines is not self._engines:
            session.told_engines = self._engines
            session.connection.tell(self._engines)

    async def _look(self) -> None:
        """Renew the bookings of fronts that are there; let go of those that are not."""
        while True:
            await asyncio.sleep(TOUCH_EVERY_S)
            now = self._clock.now()
            for session in list(self._sessions):
                if not session.connection.is_open:
                    self._sessions.discard(session)
                elif now - session.heard_at > LEASE_S:
                    session.connection.close(f"it has said nothing for {LEASE_S:g} s")
                else:
                    await session.touch()

    def _engines_now(self) -> Iterator[Engine]:
        for engine in self._pool.monitor.engines:
            yield Engine(engine.url, engine.weight, engine.draining, engine.origin)

    def _loads(self) -> Loads:
        router = self._pool.router
        counts = router.slots.active_requests()
        busy = np.flatnonzero(counts)
        loads: list[tuple[int, int, int]] = []
        for number in busy.tolist():
            worker = router.registry.worker(number)
            loads.append((worker.worker_id, worker.dp_rank, int(counts[number])))
        return Loads(loads)

    async def health(self) -> tuple[bool, dict[str, Any]]:
        fronts = self.fronts  # without one nobody takes requests
        in_flight = sum(session.status.in_flight for session in fronts)
        told = {"fronts": [session.health for session in fronts], "in_flight": in_flight}
        return bool(fronts), told
