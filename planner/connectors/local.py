"""LocalEngines: mock engines as child processes of the planner, which register in the store."""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from ...process.child_process import ChildError, ChildProcess
from ..fleet import Role

_ENGINE = re.compile(r"engine 0: \S+ worker (\d+)")
START_LIMIT_S = 3600.0
"""The planner gives an engine up long before."""
STOP_LIMIT_S = 30.0

log = structlog.get_logger(__name__)


class _Engine:
    """One engine's process."""

    def __init__(self, role: str, command: Sequence[str]) -> None:
        self.role = role
        self.engine_id: int | None = None
        self.ready = False
        self._child = ChildProcess(
            command, stop_timeout_s=STOP_LIMIT_S, own_session=True, on_unexpected_end=self._on_end
        )
        self.ended = False
        self._starting = asyncio.create_task(self._start(), name=f"start of a {role} engine")
        self._stopping: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        try:
            await self._child.start(self._on_line, START_LIMIT_S)
            self.ready = True
        except (ChildError, OSError) as error:
            self.ended = True
            last = error.output[-1:] if isinstance(error, ChildError) else [str(error)]
            log.warning("an engine did not start", role=self.role, error="".join(last)[:300])

    def _on_line(self, line: str) -> bool:
        if match := _ENGINE.match(line):
            self.engine_id = int(match[1])
        return line == "ready"

    def _on_end(self, code: int) -> None:
        self.ended = True
        log.warning("an engine ended", role=self.role, engine=self.engine_id, exit_code=code)

    def begin_stop(self) -> None:
        """Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name=f"stop of a {self.role} engine")

    @property
    def stopping(self) -> bool:
        return self._stopping is not None

    async def stopped(self) -> None:
        """Return once it has ended."""
        self.begin_stop()
        assert self._stopping is not None
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._starting.cancel()
        await asyncio.wait([self._starting])
        await self._child.stop()
        self.ended = True


class LocalEngines:
    """A Connector. The engines end with the planner, whatever ends it."""

    names_victims = True

    def __init__(self, commands: Mapping[Role, Sequence[str]]) -> None:
        """The command of an engine of each role; it prints its worker's id, and `ready`."""
        self._commands: dict[str, list[str]] = {
            role: list(command) for role, command in commands.items()
        }
        self._engines: list[_Engine] = []

    async def start(self) -> None:
        """Nothing has to be there."""

    async def asked(self) -> Mapping[str, int]:
        self._forget_ended()
        counts = Counter(each.role for each in self._engines if not each.stopping)
        return {role: counts[role] for role in self._commands}

    def ids(self, role: str) -> list[int]:
        """Of the engines that take requests, oldest first."""
        self._forget_ended()
        there = (each for each in self._engines if each.role == role and not each.stopping)
        return [each.engine_id for each in there if each.ready and each.engine_id is not None]

    async def apply(
        self, wanted: Mapping[str, int], leaving: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._forget_ended()
        for role, count in wanted.items():
            named = leaving.get(role, ())
            for engine in self._engines:
                if engine.role == role and engine.engine_id in named:
                    engine.begin_stop()
            running = [each for each in self._engines if each.role == role and not each.stopping]
            not_ready = [each for each in running if not each.ready]
            for engine in not_ready[max(0, len(not_ready) - max(0, len(running) - count)) :]:
                engine.begin_stop()
            for _ in range(count - len(running)):
                self._engines.append(_Engine(role, self._commands[role]))

    async def close(self) -> None:
        engines, self._engines = self._engines, []
        await asyncio.gather(*(each.stopped() for each in engines))

    def _forget_ended(self) -> None:
        self._engines = [each for each in self._engines if not each.ended]


def mocker_command(arguments: Sequence[str]) -> list[str]:
    """The command of one mock engine on a free port."""
    # -P: what lies in the current directory must not take a module's place.
    return [
        *(sys.executable, "-P", "-m", "dynamo_router", "mocker"),
        *("--workers", "1", "--port", "0", *arguments),
    ]
