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
import sys
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import uvloop
from grpc import aio
from rich.table import Table

from ..base.errors import RouterError
from ..process.settings import bad_setting, option
from .load import (
    CLIENT_OPTIONS,
    GENERATE,
    READY,
    Neighbours,
    children_of,
    generate_call,
    new_prompts,
    noise_content,
    noise_words,
    ratio,
    start_child,
    start_peer,
)
from .results import Output, cpu_seconds, format_number, new_table


@dataclass(frozen=True, kw_only=True)
class FrontsBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    fronts: int = option(2, "Fronts of the router that is compared with one process.")
    requests: int = option(800, "Requests per router and round.")
    rounds: int = option(9, "Rounds, after one to warm up; medians of them are reported.")
    concurrency: int = option(16, "Requests at a time.")
    connections: int = option(16, "Connections of the client, spread over the fronts.")
    workers: int = option(4, "Engines.")
    tokens: int = option(1000, "Token ids of a prompt.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        for key in ("requests", "rounds", "concurrency", "connections", "workers", "tokens"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")
        if self.fronts < 2:
            raise bad_setting("fronts", f"{self.fronts} must be at least 2")


@dataclass
class Rounds:
    """What the rounds showed of one router."""

    cpu_us: dict[str, list[float]] = field(default_factory=dict)  # of a request, by process
    requests_per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)

    @property
    def ceilings(self) -> list[float]:
        """Requests a second at which the busiest process has nothing of its core left."""
        return [1e6 / max(used) for used in zip(*self.cpu_us.values(), strict=True)]


class Router:
    """A running router: its processes by their names, and calls to it over many connections."""

    def __init__(self, processes: dict[str, int], calls: list[Any], config: FrontsBenchConfig):
        self._processes = processes
        turns = itertools.cycle(calls)
        self._ask = generate_call(lambda body: next(turns)(body), new_prompts(config.tokens), 1)
        self._config = config
        self.rounds = Rounds()

    async def measure(self, *, counts: bool) -> None:
        """Send a round's requests; without `counts`, to warm up."""
        config = self._config
        before, began = self.cpu_seconds(), time.perf_counter()
        clients = (
            self._client(max(1, config.requests // config.concurrency))
            for _ in range(config.concurrency)
        )
        times = [each for some in await asyncio.gather(*clients) for each in some]
        took, after = time.perf_counter() - began, self.cpu_seconds()
        if not counts:
            return
        for name, seconds in after.items():
            used = (seconds - before[name]) * 1e6 / len(times)
            self.rounds.cpu_us.setdefault(name, []).append(used)
        self.rounds.requests_per_s.append(len(times) / took)
        self.rounds.p50_ms.append(median(times) / 1e3)

    def cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._processes.items()}

    async def _client(self, count: int) -> list[float]:
        return [(await self._ask()).last_us for _ in range(count)]


def run(config: FrontsBenchConfig) -> int:
    """The command: measure, print a table, write JSON if asked."""
    output = Output(config.json)
    result = uvloop.run(_measure(config))
    output.print(_table(result))
    output.print(_words(result))
    output.write(result)
    return 0


async def _measure(config: FrontsBenchConfig) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        engine, addresses = await start_peer("engine", str(config.workers), stack)
        routers = {
            1: await _start(config, 1, addresses, stack),
            config.fronts: await _start(config, config.fronts, addresses, stack),
        }
        order = list(routers.values())

        def own_seconds() -> float:
            used = [cpu_seconds(engine), *(sum(r.cpu_seconds().values()) for r in order)]
            return time.process_time() + sum(used)

        own, neighbours = 0.0, Neighbours()
        for round in range(config.rounds + 1):
            if round == 1:  # the first one warms up
                own, neighbours = own_seconds(), Neighbours()
            for router in order:
                await router.measure(counts=round > 0)
            order.reverse()
        others = neighbours.share(own_seconds() - own)
    one, several = routers[1].rounds, routers[config.fronts].rounds
    return {
        "benchmark": "fronts",
        "config": {key: value for key, value in vars(config).items() if key != "json"},
        "rows": [_row(fronts, router.rounds) for fronts, router in routers.items()],
        "ceiling_ratio": ratio(several.ceilings, one.ceilings),
        "requests_per_s_ratio": ratio(several.requests_per_s, one.requests_per_s),
        "cpu_ratio": ratio(_sums(several), _sums(one)),
        **noise_content(others),
    }


async def _start(
    config: FrontsBenchConfig, fronts: int, engines: list[str], stack: contextlib.AsyncExitStack
) -> Router:
    serve = [sys.executable, "-m", "dynamo_router", "serve", "--port", "0", "--http-port", "0"]
    serve += [part for address in engines for part in ("--worker", f"grpc://{address}")]
    serve += ["--no-kv-events", "--log-level", "error", "--lame-duck-s", "0"]
    pid, ready = await start_child([*serve, "--fronts", str(fronts)], stack)
    match = READY.search(ready)
    if match is None:
        raise RouterError(f"serve did not say that it is ready, but: {ready}")
    processes = {"serve": pid}
    if fronts > 1:
        words = {child: line.split() for child, line in children_of(pid).items()}
        processes = {"parent": pid}
        for child, line in words.items():
            if "decider" in line:
                processes["decider"] = child
            elif "front" in line:
                processes[f"front {line[-1]}"] = child
        if len(processes) != fronts + 2:
            raise RouterError(f"serve has not {fronts} fronts and a decider, but {words}")
    options = [*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    calls: list[Any] = []
    for _ in range(config.connections):
        channel = aio.insecure_channel(match[1], options=options)
        stack.push_async_callback(channel.close, None)
        calls.append(channel.unary_stream(GENERATE, None, None))
    return Router(processes, calls, config)


def _sums(rounds: Rounds) -> list[float]:
    return [sum(used) for used in zip(*rounds.cpu_us.values(), strict=True)]


def _row(fronts: int, rounds: Rounds) -> dict[str, Any]:
    return {
        "fronts": fronts,
        "cpu_us_per_request": {name: median(used) for name, used in sorted(rounds.cpu_us.items())},
        "cpu_us_per_request_all": median(_sums(rounds)),
        "requests_per_s": median(rounds.requests_per_s),
        "ceiling_requests_per_s": median(rounds.ceilings),
        "latency_p50_ms": median(rounds.p50_ms),
    }


def _table(result: dict[str, Any]) -> Table:
    table = new_table(
        *("fronts", "process", "CPU", "requests/s", "ceiling", "p50 ms"),
        title="CPU in us for each request, by process; the ceiling is the busiest one's",
    )
    for row in result["rows"]:
        figures = ("requests_per_s", "ceiling_requests_per_s")
        shown = [format_number(row[key], 0) for key in figures]
        shown.append(format_number(row["latency_p50_ms"], 2))
        for name, used in row["cpu_us_per_request"].items():
            table.add_row(str(row["fronts"]), name, format_number(used, 0), *shown)
            shown = [""] * 3
    return table


def _words(result: dict[str, Any]) -> str:
    """What the table says, and whether it is to be believed."""
    said = [
        f"{result['config']['fronts']} fronts / 1: ceiling {result['ceiling_ratio']:.2f}, requests"
        f" a second seen here {result['requests_per_s_ratio']:.2f}, CPU of all processes"
        f" {result['cpu_ratio']:.2f}",
        *noise_words(result),
    ]
    return "\n".join(said)
