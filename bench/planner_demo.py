"""dynamo-router demo --planner: a wave of load, and mock engines that come and go with it."""

import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from ..base.errors import RouterError
from .load import OURS, UNANNOUNCED, ChatClient, start_child
from .results import new_table

LOOK_EVERY_S = 1.0
PROMPT_CHARS, OUTPUT_TOKENS = 600, 60
ENGINE = "--event-plane zmq --model-id tiny --vocab-size 4096 --max-num-seqs 4"
PLANNER = (
    *("--connector", "local", "--discovery", "file", "--look-every-s", "0.5"),
    *("--start-up-s", "3", "--plan-every-s", "5", "--window-s", "60", "--plan-budget-s", "1"),
    *("--dwell-s", "4", "--admit-s", "2", "--removals-per-hour", "100"),
    *("--objective-ttft-ms", "400", "--objective-itl-ms", "60", "--log-level", "warning"),
)


class Phase(NamedTuple):
    """Requests at a rate, for a time."""

    name: str
    requests_per_s: float
    seconds: float


PHASES = (Phase("calm", 1.5, 12.0), Phase("wave", 9.0, 20.0), Phase("calm again", 0.7, 28.0))


@dataclass
class PhaseSeen:
    """What came of a phase."""

    name: str
    requests_per_s: float
    requests: int = 0
    failed: int = 0
    first_ms: list[float] = field(default_factory=list)
    engines: list[int] = field(default_factory=list)
    """that take requests, second by second"""

    @property
    def row(self) -> dict[str, Any]:
        firsts = sorted(self.first_ms)
        return {
            "phase": self.name,
            "requests_per_s": self.requests_per_s,
            "requests": self.requests,
            "failed": self.failed,
            "ttft_ms": sum(firsts) / len(firsts) if firsts else None,
            "ttft_p90_ms": firsts[int(0.9 * (len(firsts) - 1))] if firsts else None,
            "engines_least": min(self.engines, default=0),
            "engines_most": max(self.engines, default=0),
        }


@dataclass
class PlannerRun:
    """The whole run."""

    phases: list[PhaseSeen]
    decisions: list[dict[str, Any]]

    @property
    def failed(self) -> int:
        return sum(phase.failed for phase in self.phases)

    @property
    def content(self) -> dict[str, Any]:
        return {
            "rows": [phase.row for phase in self.phases],
            "decisions": self.decisions,
            "failed": self.failed,
        }

    def tables(self) -> list[Table]:
        """Phases, and decisions in the order in which they were made."""
        phases = new_table("phase", "requests", "failed", "TTFT", "p90", "engines that serve")
        for phase in self.phases:
            row = phase.row
            times = (row["ttft_ms"], row["ttft_p90_ms"])
            shown = ("-" if each is None else f"{each:,.0f} ms" for each in times)
            between = f"{row['engines_least']} to {row['engines_most']}"
            phases.add_row(row["phase"], str(row["requests"]), str(row["failed"]), *shown, between)
        decisions = new_table("decision", "from", "to", "state", "why")
        for each in self.decisions:
            made = each["decision"]
            engines = (str(sum(made[key].values())) for key in ("from", "to"))
            state = made.get("state", "open")
            decisions.add_row(str(made["id"]), *engines, state, "; ".join(made["reasons"]))
        return [phases, decisions]


async def run_planner_demo(
    *,
    engines_max: int,
    block_size: int,
    num_gpu_blocks: int,
    seed: int,
    start_timeout_s: float,
    phases: Sequence[Phase] = PHASES,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> PlannerRun:
    """One wave. Leaves no process and no file behind. RouterError, with the last lines of a process
    that did not do its part."""
    engine = f"{ENGINE} --block-size {block_size} --num-gpu-blocks {num_gpu_blocks}"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="planner-demo-")))
        (folder / "store").mkdir()
        environ = {"DYN_FILE_KV": str(folder / "store")}
        say("starting a frontend, and a planner that starts the engines")
        frontend = await _address(
            ["frontend", "--discovery", "file", "--event-plane", "zmq", "--http-port", "0",
             "--record", str(folder / "record.jsonl"), "--log-level", "warning", *UNANNOUNCED],
            r"openai (\S+)", stack, environ, start_timeout_s,
        )  # fmt: skip
        planner = await _address(
            ["planner", *PLANNER, "--port", "0", "--router", f"http://{frontend}",
             "--engines-max", str(engines_max), "--engine-arguments", engine],
            r"planner ready: http (\S+)", stack, environ, start_timeout_s,
        )  # fmt: skip
        say(f"dashboard: http://{frontend}/dashboard")
        wave = _Wave(frontend, planner, seed)
        stack.push_async_callback(wave.close)
        async with asyncio.timeout(start_timeout_s):
            while not await wave.serving():
                await asyncio.sleep(LOOK_EVERY_S / 4)
        seen = [await wave.run(phase, say) for phase in phases]
        plan = await wave.get(frontend, "/dashboard/plan")
    return PlannerRun(seen, list(reversed(plan["decisions"])))


class _Wave:
    """Sends requests, and looks at the planner meanwhile."""

    def __init__(self, frontend: str, planner: str, seed: int) -> None:
        import aiohttp  # by what runs alone: a command that prints its help needs no client

        self._planner = planner
        self._random = random.Random(seed)
        self._chats = ChatClient(frontend, "tiny")
        self._ask = self._chats.asks(PROMPT_CHARS, OUTPUT_TOKENS)
        self._http = aiohttp.ClientSession(trust_env=False)

    async def close(self) -> None:
        self._chats.close()
        await self._http.close()

    async def get(self, address: str, path: str) -> Any:
        async with self._http.get(f"http://{address}{path}") as answer:
            return await answer.json()

    async def serving(self) -> int:
        """Engines that take requests."""
        plan = await self.get(self._planner, "/plan")
        return sum(engine["state"] == "ready" for engine in plan["engines"])

    async def run(self, phase: Phase, say: Callable[[str], None]) -> PhaseSeen:
        seen = PhaseSeen(phase.name, phase.requests_per_s)
        say(f"{phase.name}: {phase.requests_per_s:g} requests a second for {phase.seconds:g} s")
        looking = asyncio.create_task(self._look(seen))
        sent: set[asyncio.Task[None]] = set()
        end = time.monotonic() + phase.seconds
        try:
            while (left := end - time.monotonic()) > 0:
                pause_s = self._random.expovariate(phase.requests_per_s)
                await asyncio.sleep(min(left, pause_s))
                if pause_s < left:
                    sent.add(asyncio.create_task(self._send(seen)))
            if sent:
                await asyncio.wait(sent)
        finally:
            looking.cancel()
            for each in sent:
                each.cancel()
            await asyncio.wait({looking, *sent})
        say(f"  {seen.requests} requests, {seen.failed} failed, {seen.engines[-1:]} engines")
        return seen

    async def _send(self, seen: PhaseSeen) -> None:
        seen.requests += 1
        try:
            timing = await self._ask()
        except (RouterError, OSError):
            seen.failed += 1
        else:
            seen.first_ms.append(timing.first_us / 1e3)

    async def _look(self, seen: PhaseSeen) -> None:
        while True:
            seen.engines.append(await self.serving())
            await asyncio.sleep(LOOK_EVERY_S)


async def _address(
    arguments: Sequence[str],
    ready: str,
    stack: AsyncExitStack,
    environ: Mapping[str, str],
    timeout_s: float,
) -> str:
    """Of a command of ours, which runs until the stack ends: from its ready line."""
    found: list[str] = []

    def on_line(line: str) -> bool:
        found.extend(re.findall(ready, line))
        return bool(found)

    name, command = f"dynamo-router {arguments[0]}", [*OURS, *arguments]
    await start_child(name, command, stack, on_line, timeout_s=timeout_s, env=environ)
    return found[0]
