"""PlanningBrain: the Planner in a process of its own, at low priority, so that nothing else waits.

The process reads each observation as a line of JSON, with the requests that are new, and answers
with a decision in another.
"""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from ...base.errors import UNREADABLE, RouterError
from ...engines.mocker import EngineConfig
from ...process.child_process import die_with_parent
from ...workers.records import ModelCard
from ..constraints import Constraints
from ..decision import Decision
from ..objectives import Objectives
from ..observation import Observation, ObservedRequest
from ..planning import PlanningConfig

MODULE = "dynamo_router.planner.live.plan_process"
MAX_LINE_BYTES = 64 << 20
STOP_TIMEOUT_S = 5.0
OVERHEAD_S = 60.0
"""What the process may take beside a plan, above all to start, at low priority."""
WALL_PER_CPU = 20.0
"""Seconds that a second of its CPU time may take there."""

log = structlog.get_logger(__name__)


class Setup(msgspec.Struct):
    """The process's first line: what the planner is made of."""

    planning: PlanningConfig
    objectives: Objectives
    constraints: Constraints
    engine: EngineConfig
    speed: float


class Answer(msgspec.Struct, omit_defaults=True):
    """A line that it prints."""

    decision: Decision | None = None
    error: str = ""


class PlanningBrain:
    """A Brain. What the engines' cards have goes before what is configured. A process that ended,
    or takes too long, is started anew with the next observation, and learns anew."""

    def __init__(self, setup: Setup, card: Callable[[], ModelCard | None]) -> None:
        """`card`: of one of the engines; None while there is none."""
        self._setup, self._card = setup, card
        self._process: Process | None = None
        self._engine: EngineConfig | None = None
        self._sent: set[tuple[float, int, int | None]] = set()
        """requests of the window that the process has"""

    async def observe(self, seen: Observation) -> Decision:
        """The planner's decision. RouterError if none comes."""
        engine = engine_of(self._card(), self._setup.engine)
        limit_s = OVERHEAD_S + WALL_PER_CPU * self._setup.planning.plan_budget_s
        try:
            if self._process is None or engine != self._engine:
                await self.close()
                await self._start(engine)
            async with asyncio.timeout(limit_s):
                return await self._ask(seen)
        except TimeoutError:
            await self.close()
            raise RouterError(f"the plan took longer than {limit_s:g} s") from None
        except (OSError, *UNREADABLE, ValueError) as error:
            await self.close()
            raise RouterError(f"the planning process: {str(error)[:300]}") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()

    async def _start(self, engine: EngineConfig) -> None:
        # -P: what lies in the current directory must not take a module's place.
        command = [sys.executable, "-P", "-m", MODULE]
        self._process = await asyncio.create_subprocess_exec(
            *die_with_parent(command), stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES
        )
        self._engine = engine
        self._sent.clear()
        self._setup.engine = engine
        await self._write(msgspec.json.encode(self._setup))

    async def _ask(self, seen: Observation) -> Decision:
        assert self._process is not None and self._process.stdout is not None
        requests = seen.requests
        if requests is not None:
            keys = {_key(each) for each in requests}
            requests = [each for each in requests if _key(each) not in self._sent]
            self._sent = keys
        await self._write(msgspec.json.encode(replace(seen, requests=requests)))
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise OSError(f"ended with code {code}")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.decision is None:
            raise RouterError(f"no plan: {answer.error[:300]}")
        return answer.decision

    async def _write(self, data: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(data + b"\n")
        await self._process.stdin.drain()


def _key(request: ObservedRequest) -> tuple[float, int, int | None]:
    return request.arrival_s, request.prompt_tokens, request.output_tokens


def engine_of(card: ModelCard | None, configured: EngineConfig) -> EngineConfig:
    """The engines' model: the cards' sizes where they have them, else those that are configured."""
    if card is None:
        return configured
    known: dict[str, Any] = {
        "block_size": card.block_size or None,
        "num_gpu_blocks": card.total_kv_blocks,
        "max_num_seqs": card.max_num_seqs,
        "max_num_batched_tokens": card.max_num_batched_tokens,
        "max_model_len": card.context_length or None,
    }
    return replace(configured, **{key: value for key, value in known.items() if value})
