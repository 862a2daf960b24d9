"""KeptChild: a process that is started again whenever it ends, and killed when it hangs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping

import structlog

from ...base.backoff import Backoff
from ...base.clock import Clock
from ...base.errors import ConfigError
from ...process.child_process import ChildError, ChildProcess
from ...process.supervised import stopped, supervise
from .pulse import HangWatch

START_TIMEOUT_S = 60.0
HANG_LOOKS = 10
"""A process has this many chances to be seen alive within the time after which it is killed."""
SHOW_STACK = signal.SIGUSR2
"""A process that gets it writes the stack of each thread to its standard error."""
STEADY_S = 10.0
"""A process that ran for so long is started again at once."""

log = structlog.get_logger(__name__)


class RestartSchedule:
    """When a process that ended is started again. Pure."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(first=0.1, cap=10.0)
        self._started_at = 0.0
        self.restarts = 0

    def started(self, now: float) -> None:
        self._started_at = now

    def delay_s(self, now: float) -> float:
        """It ended, or could not be started, now: seconds to wait before the next start."""
        self.restarts += 1
        if now - self._started_at >= STEADY_S:
            self._backoff.reset()
        return self._backoff.next()


class KeptChild:
    """A process of this one's own command, started again whenever it ends, until `leave` or
    `stop`. `environment` is what it has beside ours, from its next start on."""

    def __init__(
        self, name: str, environment: Mapping[str, str], stop_timeout_s: float, clock: Clock
    ) -> None:
        self.name = name
        self.environment = dict(environment)
        self._now = clock.now
        self._ended = asyncio.Event()
        self._child = ChildProcess(
            [sys.executable, *sys.orig_argv[1:]],
            stop_timeout_s=stop_timeout_s,
            join_stderr=False,
            own_session=True,
            env=self.environment,
            on_unexpected_end=self._on_end,
        )
        self._schedule = RestartSchedule()
        self._hang = HangWatch(HANG_LOOKS - 1)
        self._leaving = self._serves = False
        self._task: asyncio.Task[None] | None = None
        self.ready_line = ""

    async def start(self) -> None:
        """Return once it serves; ConfigError if it does not."""
        try:
            await self._start()
        except ChildError as error:
            text = f"the {self.name} did not start: it {error.reason}"
            raise ConfigError(f"fronts: {text}", key="fronts") from None
        self._task = supervise(self.name, self._keep)

    def leave(self, number: signal.Signals) -> None:
        """Have it end by this signal, and start it no more."""
        self._leaving = True
        if (pid := self._child.pid) is not None:
            _send(pid, number)
        else:
            self._ended.set()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if (pid := self._child.pid) is not None and self._serves:
            _send(pid, number)

    def look(self, count: int) -> None:
        """The count of its pulse, called HANG_LOOKS times within the time that it may stand still.

        Then it is killed, and started again as if it had ended; before, it is asked to show where
        it stands.
        """
        pid = self._child.pid
        if pid is None or self._leaving or not self._serves:
            self._hang.reset()
        elif self._hang.look(count):
            if self._hang.unchanged < HANG_LOOKS:
                _send(pid, SHOW_STACK)
                return
            log.error("a process hangs and is killed", process=self.name, pid=pid)
            _send(pid, signal.SIGKILL)
            self._hang.reset()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def ended(self) -> None:
        await self._ended.wait()

    async def stop(self) -> None:
        """End it, by force if it takes long. Idempotent."""
        self._leaving = True
        await stopped(self._task)
        await self._child.stop()

    async def _start(self) -> None:
        self._ended.clear()
        self._serves = False
        self._schedule.started(self._now())
        await self._child.start(self._is_ready, START_TIMEOUT_S)
        self._serves = True

    def _is_ready(self, line: str) -> bool:
        if line.startswith("dynamo-router") and "ready" in line:
            self.ready_line = line
            return True
        return False

    async def _keep(self) -> None:
        await self._ended.wait()
        while not self._leaving:
            await asyncio.sleep(self._schedule.delay_s(self._now()))
            if self._leaving:
                break
            try:
                await self._start()
            except (ChildError, OSError) as error:  # the system may have no process for us
                if not self._leaving:
                    log.error("a process did not start", process=self.name, reason=str(error))
            else:
                log.info("a process runs again", process=self.name, pid=self._child.pid)
                await self._ended.wait()
        self._ended.set()

    def _on_end(self, code: int) -> None:
        if not self._leaving:
            log.error("a process ended", process=self.name, exit_code=code)
        self._ended.set()


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child that may have ended without our knowing it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
