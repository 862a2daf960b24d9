"""dynamo-router bench fronts: what several processes on one port cost, and where they end.

`serve` in one process, and with `--fronts` of them, before the same engines, in turn within each
round. CPU is that of each process, by the kernel's clock. A process has one core at most: of those
that a router has, the busiest one says how many requests a second it can serve if there are cores
enough. The client's and the engines' share of this machine is not in that ceiling; it is in the
requests a second that were seen.
"""

import asyncio
import contextlib
import itertools
import re
import time
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median
from typing import Any

import uvloop
from grpc import aio
from rich.table import Table

from ...base.errors import RouterError
from ...runtime.event_planes import EmbeddedNats
from ..load import (
    CLIENT_OPTIONS,
    GENERATE,
    OURS,
    READY,
    Neighbours,
    children_of,
    generate_call,
    new_prompts,
    noise_content,
    noise_words,
    pid_of,
    ratio,
    start_child,
)
from ..results import Output, cpu_seconds, format_number, new_table
from .settings import FrontsBenchConfig

LOADS = ((16, 32), (64, 32), (16, 2000), (64, 2000))
"""Requests at a time, and token ids of their prompts."""
SHORT = 32
OUTPUT_TOKENS = 8
SETTLE_S = 0.2
"""After the last answer: until the processes' events for each other have come."""
_ENGINE = re.compile(r"engine \d+: (grpc://\S+) worker (\d+)")


@dataclass
class Rounds:
    """What the rounds showed of one router under one load."""

    cpu_us: dict[str, list[float]] = field(default_factory=dict)  # of a request, by process
    nats_cpu_us: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)

    @property
    def ceilings(self) -> list[float]:
        """Requests a second at which the busiest process has nothing of its core left."""
        return [1e6 / max(used) for used in zip(*self.cpu_us.values(), strict=True)]

    @property
    def sums(self) -> list[float]:
        """CPU of all processes for a request."""
        return [sum(used) for used in zip(*self.cpu_us.values(), strict=True)]


class Router:
    """A running router: its processes by their names, and calls to it over many connections."""

    def __init__(self, processes: dict[str, int], nats: int, calls: list[Any]):
        self._processes, self._nats = processes, nats
        self._turns = itertools.cycle(calls)

    async def measure(self, requests: int, concurrency: int, tokens: int, into: Rounds) -> None:
        """Send that number of requests with that concurrency, after a few to warm up."""
        ask = generate_call(lambda b: next(self._turns)(b), new_prompts(tokens), OUTPUT_TOKENS)

        async def client(count: int) -> list[float]:
            return [(await ask()).last_us for _ in range(count)]

        def cpu_used() -> list[float]:
            return [cpu_seconds(pid) for pid in (*self._processes.values(), self._nats)]

        await asyncio.gather(*(client(1) for _ in range(concurrency)))
        await asyncio.sleep(SETTLE_S)
        before, began = cpu_used(), time.perf_counter()
        each = max(1, requests // concurrency)
        times = [t for ts in await asyncio.gather(*map(client, [each] * concurrency)) for t in ts]
        took = time.perf_counter() - began
        await asyncio.sleep(SETTLE_S)
        used = [(b - a) * 1e6 / len(times) for a, b in zip(before, cpu_used(), strict=True)]
        for name, cpu_us in zip(self._processes, used, strict=False):
            into.cpu_us.setdefault(name, []).append(cpu_us)
        into.nats_cpu_us.append(used[-1])
        into.requests_per_s.append(len(times) / took)
        into.p50_ms.append(median(times) / 1e3)

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._processes.values()))


def run(config: FrontsBenchConfig) -> int:
    """The command: measure, print a table, write JSON if asked."""
    output = Output(config.json)
    result = uvloop.run(_measure(config))
    output.print(_table(result))
    output.print(_words(result))
    output.write(result)
    return 0


async def _measure(config: FrontsBenchConfig) -> dict[str, Any]:
    found = {(fronts, *load): Rounds() for fronts in (1, config.fronts) for load in LOADS}
    own, neighbours = 0.0, Neighbours()
    async with contextlib.AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats())
        assert nats.pid is not None
        mocker, engines = await _start_engines(config.workers, nats.url, stack)

        def shared() -> float:
            return time.process_time() + cpu_seconds(mocker) + cpu_seconds(nats.pid or 0)

        began, neighbours = shared(), Neighbours()
        order = [1, config.fronts]
        for _ in range(config.rounds):
            for fronts in order:
                # One router at a time: another one would get this one's events, too.
                async with contextlib.AsyncExitStack() as inner:
                    router = await _start(config, fronts, nats, engines, inner)
                    for concurrency, tokens in LOADS:
                        requests = config.requests // (1 if tokens == SHORT else 3)
                        into = found[fronts, concurrency, tokens]
                        await router.measure(requests, concurrency, tokens, into)
                    own += router.cpu_seconds()
            order.reverse()
        others = neighbours.share(own + shared() - began)
    rows = [_row(*key, rounds, found[1, *key[1:]]) for key, rounds in found.items()]
    return {
        "benchmark": "fronts",
        "config": {key: value for key, value in vars(config).items() if key != "json"},
        "rows": sorted(rows, key=lambda r: (r["tokens"], r["concurrency"], r["fronts"])),
        "worst_ceiling_ratio": min(r["ceiling_ratio"] for r in rows if r["fronts"] > 1),
        **noise_content(others),
    }


async def _start_engines(
    count: int, nats_url: str, stack: contextlib.AsyncExitStack
) -> tuple[int, list[str]]:
    """Mock engines in one process: its pid, and their URLs."""
    urls: list[str] = []

    def is_ready(line: str) -> bool:
        if match := _ENGINE.match(line):
            urls.append(f"{match[1]}?id={match[2]}")
        return line == "ready"

    words = ["mocker", "--workers", str(count), "--host", "127.0.0.1", "--port", "0"]
    words += ["--speedup-ratio", "2000", "--discovery", "static", "--nats", nats_url]
    child = await start_child("the mock engines", [*OURS, *words], stack, is_ready)
    return pid_of(child), urls


async def _start(
    config: FrontsBenchConfig,
    fronts: int,
    nats: EmbeddedNats,
    engines: list[str],
    stack: contextlib.AsyncExitStack,
) -> Router:
    serve = [*OURS, "serve", "--port", "0", "--http-port", "0"]
    serve += [part for url in engines for part in ("--worker", url)]
    serve += ["--nats", nats.url, "--log-level", "error", "--lame-duck-s", "0"]
    child = await start_child("serve", [*serve, "--fronts", str(fronts)], stack, READY.search)
    pid, match = pid_of(child), next(filter(None, map(READY.search, child.output)))
    processes = {"serve": pid}
    if fronts > 1:
        pids = sorted(children_of(pid))
        processes = {"parent": pid} | {f"front {n}": child for n, child in enumerate(pids)}
        if len(pids) != fronts:
            raise RouterError(f"serve has not {fronts} processes, but {len(pids)}")
    options = [*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    calls: list[Any] = []
    for _ in range(config.connections):
        channel = aio.insecure_channel(match[1], options=options)
        stack.push_async_callback(channel.close, None)
        calls.append(channel.unary_stream(GENERATE, None, None))
    assert nats.pid is not None
    return Router(processes, nats.pid, calls)


def _row(fronts: int, concurrency: int, tokens: int, rounds: Rounds, one: Rounds) -> dict[str, Any]:
    return {
        "fronts": fronts,
        "concurrency": concurrency,
        "tokens": tokens,
        "cpu_us_per_request": {name: median(used) for name, used in sorted(rounds.cpu_us.items())},
        "cpu_us_per_request_all": median(rounds.sums),
        "nats_cpu_us_per_request": median(rounds.nats_cpu_us),
        "requests_per_s": median(rounds.requests_per_s),
        "ceiling_requests_per_s": median(rounds.ceilings),
        "ceiling_ratio": ratio(rounds.ceilings, one.ceilings),
        "cpu_ratio": ratio(rounds.sums, one.sums),
        "latency_p50_ms": median(rounds.p50_ms),
    }


def _table(result: dict[str, Any]) -> Table:
    table = new_table(
        *("tokens", "at a time", "processes", "busiest", "all", "nats", "requests/s", "ceiling"),
        *("ceiling / 1", "p50 ms"),
        title="CPU in us for each request; the ceiling is the busiest process'",
    )
    for row in result["rows"]:
        table.add_row(
            *(str(row[key]) for key in ("tokens", "concurrency", "fronts")),
            format_number(max(row["cpu_us_per_request"].values()), 0),
            format_number(row["cpu_us_per_request_all"], 0),
            format_number(row["nats_cpu_us_per_request"], 0),
            format_number(row["requests_per_s"], 0),
            format_number(row["ceiling_requests_per_s"], 0),
            format_number(row["ceiling_ratio"], 2),
            format_number(row["latency_p50_ms"], 2),
        )
    return table


def _words(result: dict[str, Any]) -> str:
    """What the table says, and whether it is to be believed."""
    several = [row for row in result["rows"] if row["fronts"] > 1]
    row = min(several, key=itemgetter("ceiling_ratio"))
    lines = [
        f"worst: {row['fronts']} processes have {row['ceiling_ratio']:.2f} times the ceiling of"
        f" one, at {row['concurrency']} requests of {row['tokens']} tokens at a time",
        *noise_words(result),
    ]
    return "\n".join(lines)
