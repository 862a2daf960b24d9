"""dynamo-router bench hostile: a client that behaves, measured with and without a peer that does
not, for one kind of peer after the other.

Each peer is a process of its own, as nice as may be, because on a real network it would have a
machine of its own. What it takes of this one is measured too: in a third phase a process burns as
much CPU and leaves the router alone.
"""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.table import Table

from ....base.errors import RouterError
from ....process.child_process import ChildProcess, die_with_parent
from ....process.settings import bad_setting
from ....runtime.event_planes import EmbeddedNats
from ...load import ServeProcess, pid_of, start_child, worker_arguments
from ...results import (
    Output,
    cpu_seconds,
    format_number,
    memory_mib,
    new_table,
)
from ..settings import HostileBenchConfig
from .cells import PHASES, Cell, Figures, Phase, PhaseName, Sample, figures_of, worst_first
from .engines import MISBEHAVIOURS, OFF, ON, STEADY
from .openai_peers import OPENAI_PEERS
from .peers import PEERS

FREEZE = "freeze"
"""An engine that is stopped by its operating system."""
ENGINES = (*MISBEHAVIOURS, FREEZE)
KINDS = (*(f"engine-{name}" for name in ENGINES), *PEERS, *OPENAI_PEERS)
"""Beside those of the OpenAI door the client that behaves asks there, too."""
THROUGH, DIRECT = "through", "direct"
"""clients that behave: one asks the router, the other an engine itself"""
DIRECT_SHARE = 0.5
"""Requests of the latter for one of the former: it is there to measure, not to load."""
START_TIMEOUT_S = 60.0
SETTLE_S = 1.0
"""After a phase; what it left behind is no concern of the next one."""
WATCH_EVERY_S = 0.1
TABLE_WIDTH = 140
_OPENAI = re.compile(r" openai (\S+)")
_BURN = """
import sys, time
share = float(sys.argv[1])
while True:
    began = time.perf_counter()
    while time.perf_counter() - began < share * 0.01: pass
    time.sleep((1 - share) * 0.01)
"""


def run(config: HostileBenchConfig) -> int:
    """The command: measure, print a table, write JSON if asked."""
    for kind in config.kind:
        if kind not in KINDS:
            raise bad_setting("kind", f"{kind!r} is not one of {', '.join(KINDS)}")
    output = Output(config.json, width=TABLE_WIDTH)
    cells = worst_first(uvloop.run(_measure(config)))
    output.print(hostile_table(cells))
    settings = {key: value for key, value in vars(config).items() if key != "json"}
    content = {"benchmark": "hostile", "config": settings}
    output.write({**content, "results": [cell.to_dict() for cell in cells]})
    return 0


async def _measure(config: HostileBenchConfig) -> list[Cell]:
    cells = []
    for kind in dict.fromkeys(config.kind or KINDS):
        with tempfile.TemporaryDirectory(prefix="dynamo-router-") as folder:
            async with _trial(config, kind, Path(folder)) as trial:
                cells.append(cell := await trial.measure(config))
        line = f"p99 ratio {cell.ratio:.1f}, net {cell.net_ratio:.1f}"
        print(f"{kind}: {line}", file=sys.stderr, flush=True)
    return cells


@contextlib.asynccontextmanager
async def _trial(config: HostileBenchConfig, kind: str, folder: Path) -> AsyncIterator["_Trial"]:
    async with contextlib.AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats())
        tokens = _write_tokens(folder)
        _, line = await _child(["engines", STEADY, str(config.workers)], stack)
        addresses = line.split()
        behaviour = kind.removeprefix("engine-")
        if behaviour in ENGINES:
            peer, line = await _child(["engines", behaviour, "1"], stack)
            addresses += line.split()
        more = [f"--nats={nats.url}", f"--auth-tokens={folder / 'callers.jsonl'}"]
        if kind in OPENAI_PEERS:
            more.append("--http-frontend=0")
        serve = ServeProcess(
            [*worker_arguments(addresses), *more],
            workers=len(addresses),
            start_timeout_s=START_TIMEOUT_S,
            token=tokens["hostile"].read_text(),
        )
        router = await stack.enter_async_context(serve)
        found = _OPENAI.search(router.ready_line)
        openai = "" if found is None else found[1]
        through = f"http://{openai}" if openai else router.grpc_address
        samples = folder / "samples"
        samples.mkdir()
        clients = []
        # The engines are one process: the first makes its callers wait as all of them do.
        for name, address, share in (
            (THROUGH, through, 1.0),
            (DIRECT, addresses[0], DIRECT_SHARE),
        ):
            asks = [address, str(tokens["client"]), str(config.rate * share), str(samples / name)]
            clients.append((await _child(["client", *asks], stack))[0])
        if behaviour not in ENGINES:
            calls = [router.grpc_address, router.http_address, nats.url]
            calls += [str(tokens["hostile"]), openai]
            peer, _ = await _child(["peers", kind, *calls], stack, nice=True)
        yield _Trial(kind, router.pid, [peer, *clients], samples)


def _write_tokens(folder: Path) -> dict[str, Path]:
    """The router's callers, and for each a file of its token."""
    roles = {"client": ["client"], "hostile": ["client", "selector", "metrics"]}
    files, lines = {}, []
    for name in roles:
        files[name] = folder / name
        files[name].write_text(secrets.token_hex(16))
        caller = {"name": name, "token": files[name].read_text(), "roles": roles[name]}
        lines.append(msgspec.json.encode(caller).decode())
    (folder / "callers.jsonl").write_text("\n".join(lines))
    for file in folder.iterdir():
        file.chmod(0o600)
    return files


async def _child(
    arguments: Sequence[str], stack: contextlib.AsyncExitStack, *, nice: bool = False
) -> tuple[ChildProcess, str]:
    """Start a process of this package; it and the first line it prints."""
    module, *rest = arguments
    command = [sys.executable, "-P", "-m", f"dynamo_router.bench.workbench.hostile.{module}", *rest]
    child = await start_child(" ".join(arguments[:2]), command, stack)
    if nice:
        _make_nice(pid_of(child))
    return child, child.output[0]


def _make_nice(pid: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(task.name), 19)


class _Trial:
    """The processes of one kind of peer."""

    def __init__(
        self, kind: str, router: int, children: Sequence[ChildProcess], samples: Path
    ) -> None:
        """`children`: the peer first. `samples`: the folder of what the clients noted."""
        pid = children[0].pid
        assert pid is not None
        self._kind, self._router, self._peer, self._samples = kind, router, pid, samples
        self._children = children
        self._phases: list[Phase] = []
        self._most_mib = 0.0

    async def measure(self, config: HostileBenchConfig) -> Cell:
        await asyncio.sleep(SETTLE_S)
        before, shares, router_shares = memory_mib(self._router), [], []
        on, off = (signal.SIGSTOP, signal.SIGCONT) if FREEZE in self._kind else (ON, OFF)
        for _ in range(config.rounds):
            await self._phase("quiet", config.seconds)
            cpu, router_cpu = cpu_seconds(self._peer), cpu_seconds(self._router)
            os.kill(self._peer, on)
            try:
                await self._phase("hostile", config.seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._peer, off)
            shares.append((cpu_seconds(self._peer) - cpu) / config.seconds)
            router_shares.append((cpu_seconds(self._router) - router_cpu) / config.seconds)
            await asyncio.sleep(SETTLE_S)
            async with _burning(shares[-1]):
                await self._phase("control", config.seconds)
            await asyncio.sleep(SETTLE_S)
        memory = (before, self._most_mib, memory_mib(self._router))
        return Cell(
            self._kind,
            self._figures(THROUGH),
            self._figures(DIRECT),
            memory,
            sum(router_shares) / len(router_shares),
            sum(shares) / len(shares),
        )

    def _figures(self, client: str) -> dict[PhaseName, Figures]:
        lines = (self._samples / client).read_bytes().splitlines(keepends=True)
        samples = [msgspec.json.decode(line, type=Sample) for line in lines if line[-1:] == b"\n"]
        return {name: figures_of(samples, self._phases, name) for name in PHASES}

    async def _phase(self, name: PhaseName, seconds: float) -> None:
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            if name == "hostile":
                self._most_mib = max(self._most_mib, memory_mib(self._router))
            await asyncio.sleep(min(WATCH_EVERY_S, began + seconds - now))
        self._phases.append(Phase(name, began, time.monotonic()))
        for child in self._children:
            if not child.running:
                printed = "\n".join(child.output)
                raise RouterError(f"{self._kind}: a process of the bench ended:\n{printed}")


@contextlib.asynccontextmanager
async def _burning(cores: float) -> AsyncIterator[None]:
    """`cores` of CPU are used meanwhile, as nicely as the peers use it."""
    children = []
    try:
        while cores > 0.01:
            command = [sys.executable, "-I", "-S", "-c", _BURN, f"{min(cores, 1.0):.3f}"]
            child = await asyncio.create_subprocess_exec(*die_with_parent(command))
            _make_nice(child.pid)
            children.append(child)
            cores -= 1.0
        yield
    finally:
        for child in children:
            child.kill()
            await child.wait()


def hostile_table(cells: Sequence[Cell]) -> Table:
    """Worst first. Times in ms, memory in MiB, CPU in cores."""
    table = new_table(title="time to first token of a client that behaves, ms")
    headings = ("ratio", "net", *PHASES, "direct", "gap", "failed", "MiB", "cores")
    table.add_column("peer", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in cells:
        quiet, hostile, _ = figures = [cell.phases[name] for name in PHASES]
        table.add_row(
            cell.kind if cell.meets_goal else f"{cell.kind} *",
            f"{cell.ratio:.1f}",
            f"{cell.net_ratio:.1f}",
            *(_pair(each.p50_ms, each.p99_ms) for each in (*figures, cell.direct["hostile"])),
            _pair(quiet.longest_gap_ms, hostile.longest_gap_ms),
            f"{hostile.failed}/{hostile.requests}",
            " ".join(f"{mib:.0f}" for mib in cell.memory_mib),
            f"{cell.router_cpu:.2f} {cell.peer_cpu:.2f}",
        )
    table.caption = (
        "p50 and p99 of each phase; ratio: p99 hostile to quiet, net: to the worse of quiet and"
        " control; direct: hostile, of a client that asks an engine itself; gap: longest, quiet and"
        " hostile; MiB: the router before, at most, after; cores: used by router and peer;"
        " *: more than doubled, or more than 1 % failed"
    )
    return table


def _pair(first: float | None, second: float | None) -> str:
    return f"{format_number(first, 1)} {format_number(second, 1)}"
