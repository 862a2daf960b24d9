"""WorkerAdmin: adds, drains, weighs and removes workers while requests go on."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from ...base.clock import Clock
from ...base.errors import ConfigError, RouterError, StatusCode
from ...process.supervised import stopped, supervise
from ...workers.engine_table import WatchedEngine
from ...workers.health import HealthMonitor
from ...workers.registry import WorkerState
from ...workers.worker_url import parse_worker_url

FIRST_ANSWER_S = 2.0
"""How long `add` waits for a new engine's first answer, which may bring another id."""
LOOK_EVERY_S = 0.05

log = structlog.get_logger(__name__)


class AdminError(RouterError):
    """What was asked for cannot be done; `code` is the status of the call."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class WorkerStatus:
    """A worker after a call concerned it."""

    worker_id: int
    address: str
    state: str
    weight: float
    in_flight: int
    """requests that it has, selections that were booked among them"""
    reason: str = ""
    warning: str = ""

    @property
    def drained(self) -> bool:
        """Whether it gets no requests and has none."""
        return self.state == WorkerState.DRAINING.value and not self.in_flight


class WorkerChanges(Protocol):
    """What admin calls may change of the workers. A name is a worker's id, in digits, or its
    address. Errors are AdminErrors."""

    async def add(self, url: str, weight: float | None = None) -> tuple[WorkerStatus, bool]: ...

    async def drain(self, name: str, deadline_s: float | None = None) -> WorkerStatus: ...

    async def remove(self, name: str, *, force: bool = False) -> WorkerStatus: ...

    async def set_weight(self, name: str, weight: float) -> WorkerStatus: ...


class ShownWorkers(WorkerChanges, Protocol):
    """The same of workers that can be looked at, too."""

    def show(self, name: str) -> WorkerStatus:
        """A worker as it is."""
        ...


class WorkerAdmin:
    """Changes who the workers are. A name is a worker's id, in digits, or its address.

    `unbooked` says how many requests run on a worker without a booking. Errors are AdminErrors.
    """

    def __init__(
        self,
        monitor: HealthMonitor,
        clock: Clock,
        *,
        booked: Callable[[int], int],
        unbooked: Callable[[int], int],
    ) -> None:
        self._monitor = monitor
        self._now = clock.now
        self._booked, self._unbooked = booked, unbooked
        self._retiring: dict[str, asyncio.Task[None]] = {}

    async def add(self, url: str, weight: float | None = None) -> tuple[WorkerStatus, bool]:
        """Add a worker, or take one that drains back: (what became of it, whether it is new).

        A new one has been asked who it is, unless it has not answered by FIRST_ANSWER_S.
        """
        if weight is not None:
            _check_weight(weight)
        try:
            parsed = parse_worker_url(url)
            known = self._monitor.find(parsed.address)
            if known is None:
                self._check_id_is_free(parsed.worker_id)
                self._monitor.add(url, weight=weight, origin="admin")
        except ConfigError as error:
            raise AdminError(StatusCode.INVALID_ARGUMENT, str(error)) from None
        if known is not None:
            if not known.draining:
                text = f"worker {parsed.address} is there already, as {known.worker_id}"
                raise AdminError(StatusCode.ALREADY_EXISTS, text)
            self.resume(known, weight)
            return self._status(known), False
        engine = self._monitor.find(parsed.address)
        assert engine is not None
        await self._wait(lambda: engine.state is not WorkerState.CONNECTING, FIRST_ANSWER_S)
        log.info("worker added", address=parsed.address, worker_id=engine.worker_id)
        warning = ""
        if engine.state is not WorkerState.READY:
            warning = f"the worker is not ready yet: {engine.tracker.reason}"
        return self._status(engine, warning), True

    async def drain(self, name: str, deadline_s: float | None = None) -> WorkerStatus:
        """Send a worker no new requests. With a deadline, wait for its last one, at most so long.

        Nothing is ended at the deadline; the answer says what is still there.
        """
        check_deadline(deadline_s)
        engine = self._find(name)
        self._monitor.drain(engine)
        if deadline_s is not None:
            await self._wait(lambda: not self._in_flight(engine), deadline_s)
        return self._status(engine, self._warn_if_last())

    async def remove(self, name: str, *, force: bool = False) -> WorkerStatus:
        """Forget a worker that has no requests or, by force, whatever it has: those without a token
        go to another worker, the others end.
        """
        engine = self._find(name)
        count = self._in_flight(engine)
        if count and not force:
            raise AdminError(
                StatusCode.FAILED_PRECONDITION,
                f"worker {name} has {count} requests in flight: drain it first, or use force",
            )
        status = self._status(engine)
        await self._forget(engine)
        return WorkerStatus(
            status.worker_id,
            status.address,
            "removed",
            status.weight,
            count,
            "",
            self._warn_if_last(),
        )

    def show(self, name: str) -> WorkerStatus:
        """A worker as it is."""
        return self._status(self._find(name))

    async def set_weight(self, name: str, weight: float) -> WorkerStatus:
        """Give a worker another weight."""
        _check_weight(weight)
        engine = self._find(name)
        self._monitor.set_weight(engine, weight)
        return self._status(engine)

    def resume(self, engine: WatchedEngine, weight: float | None = None) -> None:
        """Take a worker that drains back."""
        task = self._retiring.pop(engine.url.address, None)
        if task is not None:
            task.cancel()
        if weight is not None:
            self._monitor.set_weight(engine, weight)
        self._monitor.drain(engine, False)
        log.info("worker taken back", address=engine.url.address, worker_id=engine.worker_id)

    def retire(self, engine: WatchedEngine) -> None:
        """Drain a worker, and forget it once it has no requests."""
        address = engine.url.address
        self._monitor.drain(engine)
        if address in self._retiring:
            return

        async def wait_and_forget() -> None:
            await self._wait(lambda: not self._in_flight(engine), math.inf)
            del self._retiring[address]
            await self._forget(engine)

        self._retiring[address] = supervise(f"retire-{address}", wait_and_forget)

    def is_retiring(self, engine: WatchedEngine) -> bool:
        """Whether a worker drains to be forgotten, rather than because an admin asked for it."""
        return engine.url.address in self._retiring

    async def close(self) -> None:
        """Stop waiting for those that retire."""
        tasks, self._retiring = list(self._retiring.values()), {}
        for task in tasks:
            await stopped(task)

    async def _forget(self, engine: WatchedEngine) -> None:
        worker_id, address = engine.worker_id, engine.url.address
        task = self._retiring.pop(address, None)
        if task is not None:
            task.cancel()
        await self._monitor.remove(address)
        log.info("worker removed", address=address, worker_id=worker_id)

    def has(self, name: str) -> bool:
        """Whether a worker of this name is known here."""
        return self._named(name) is not None

    def _named(self, name: str) -> WatchedEngine | None:
        engine = self._monitor.find(name)
        if engine is None and name.isascii() and name.isdecimal() and len(name) <= 20:
            engine = self._monitor.engine(int(name))
        return engine

    def _find(self, name: str) -> WatchedEngine:
        engine = self._named(name)
        if engine is None:
            raise no_worker(name)
        return engine

    def _check_id_is_free(self, worker_id: int | None) -> None:
        holder = None if worker_id is None else self._monitor.engine(worker_id)
        if holder is not None:
            text = f"worker id {worker_id} is held by {holder.url.address}"
            raise AdminError(StatusCode.ALREADY_EXISTS, text)

    def _in_flight(self, engine: WatchedEngine) -> int:
        worker_id = engine.worker_id
        return 0 if worker_id is None else self._booked(worker_id) + self._unbooked(worker_id)

    def _warn_if_last(self) -> str:
        return "" if self._monitor.any_ready else "no worker is left that takes requests"

    def _status(self, engine: WatchedEngine, warning: str = "") -> WorkerStatus:
        state = WorkerState.UNHEALTHY if engine.ejected and not engine.draining else engine.state
        return WorkerStatus(
            worker_id=engine.url.default_id if engine.worker_id is None else engine.worker_id,
            address=engine.url.address,
            state=state.value,
            weight=engine.weight,
            in_flight=self._in_flight(engine),
            reason=engine.tracker.reason,
            warning=warning,
        )

    async def _wait(self, condition: Callable[[], bool], at_most_s: float) -> None:
        end = self._now() + at_most_s
        while not condition() and (left := end - self._now()) > 0:
            await asyncio.sleep(min(LOOK_EVERY_S, left))


def check_deadline(deadline_s: float | None) -> None:
    """AdminError if it is no time to wait for."""
    if deadline_s is not None and not (math.isfinite(deadline_s) and deadline_s >= 0):
        text = f"deadline {deadline_s!r} must be finite and at least 0"
        raise AdminError(StatusCode.INVALID_ARGUMENT, text)


def no_worker(name: str) -> AdminError:
    return AdminError(StatusCode.NOT_FOUND, f"there is no worker {name[:100]!r}")


def _check_weight(weight: float) -> None:
    if not 0 < weight <= 1:
        text = f"weight {weight!r} is not above 0 and at most 1"
        raise AdminError(StatusCode.INVALID_ARGUMENT, text)
