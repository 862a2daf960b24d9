"""dynamo-router bench proxy: what a request through `serve` costs, beside a bare copying proxy.

Three ways to one engine, measured in turn within each round: straight, through a proxy that only
copies bytes, through the router. CPU is that of the proxy's whole process, by the kernel's clock.
With answers of several lengths it is that of a token, too.
"""

import contextlib
import os
import sys
from dataclasses import dataclass
from statistics import median
from typing import Any

import uvloop
from rich.table import Table

from ...base.errors import RouterError
from ...process.settings import bad_setting, option
from ..load import (
    READY,
    Measured,
    Way,
    generate_bodies,
    generate_call,
    new_prompts,
    open_call,
    ratio,
    start_child,
    start_peer,
)
from ..results import Output, pin_to_core

VOCABULARY = 32000


@dataclass(frozen=True, kw_only=True)
class ProxyBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    requests: int = option(400, "Requests per way and round.")
    rounds: int = option(11, "Rounds, after one to warm up; medians of them are reported.")
    concurrency: int = option(1, "Requests at a time; above 1 latency is mostly queueing.")
    output_tokens: tuple[int, ...] = option((1,), "Tokens of an answer; may be repeated.")
    workers: int = option(8, "Engines that the proxies have connections to.")
    tokens: int = option(1220, "Tokens of a prompt; 1220 make a request of 3 KB.")
    pin: bool = option(True, "Give the proxies a CPU core of their own.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        for key in ("requests", "rounds", "concurrency", "workers", "tokens"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")
        if min(self.output_tokens, default=0) < 1:
            raise bad_setting("output_tokens", "must be at least 1")


Cells = dict[str, dict[int, Measured]]
"""What was measured of each way, by the tokens of an answer."""


def run(config: ProxyBenchConfig) -> int:
    """The command: measure, print a table, write JSON if asked."""
    output = Output(config.json)
    result = _result(config, uvloop.run(_measure(config)))
    output.print(_table(result))
    output.write(result)
    return 0


async def _start(config: ProxyBenchConfig, stack: contextlib.AsyncExitStack) -> dict[str, Way]:
    cores = sorted(os.sched_getaffinity(0))
    pin = config.pin and len(cores) > 1
    if pin:
        stack.callback(os.sched_setaffinity, 0, cores)
        pin_to_core(cores[1])  # and with us the engine
    engine, addresses = await start_peer("engine", str(config.workers), stack)
    if pin:
        pin_to_core(cores[0])
    bare, (bare_address,) = await start_peer("bare", ",".join(addresses), stack)
    serve = [sys.executable, "-m", "dynamo_router", "serve", "--port", "0", "--http-port", "0"]
    serve += [part for address in addresses for part in ("--worker", f"grpc://{address}")]
    serve += ["--log-level", "error", "--lame-duck-s", "0"]
    ways = {"direct": Way(addresses[0], engine), "bare": Way(bare_address, bare)}
    router, ready = await start_child(serve, stack)
    match = READY.search(ready)
    if match is None:
        raise RouterError(f"serve did not say that it is ready, but: {ready}")
    ways["router"] = Way(match[1], router)
    if pin:
        pin_to_core(cores[1])
    return ways


async def _measure(config: ProxyBenchConfig) -> Cells:
    prompts = new_prompts(config.tokens, VOCABULARY)
    async with contextlib.AsyncExitStack() as stack:
        ways = await _start(config, stack)
        calls = {name: open_call(way.address, stack) for name, way in ways.items()}
        asks = {
            (name, tokens): generate_call(call, prompts, tokens)
            for name, call in calls.items()
            for tokens in config.output_tokens
        }
        cells: Cells = {name: {n: Measured() for n in config.output_tokens} for name in ways}
        for round in range(config.rounds + 1):
            for (name, tokens), ask in asks.items():
                into = cells[name][tokens] if round else None  # the first round warms up
                await ways[name].measure(ask, config.requests, config.concurrency, into)
    return cells


def _result(config: ProxyBenchConfig, cells: Cells) -> dict[str, Any]:
    shortest, longest = min(config.output_tokens), max(config.output_tokens)
    ways = {name: measured[shortest] for name, measured in cells.items()}
    direct = ways["direct"]
    rows: dict[str, Any] = {}
    for name, way in ways.items():
        added = [p50 - base for p50, base in zip(way.p50_us, direct.p50_us, strict=True)]
        rows[name] = {
            "cpu_us": median(way.cpu_us),
            "cpu_us_rounds": way.cpu_us,
            "p50_us": median(way.p50_us),
            "added_p50_us": median(added),
            "added_p50_us_rounds": added,
        }
        if longest > shortest:
            pairs = zip(cells[name][longest].cpu_us, way.cpu_us, strict=True)
            rounds = [(long - short) / (longest - shortest) for long, short in pairs]
            rows[name] |= {"token_us": median(rounds), "token_us_rounds": rounds}
    bare, router = rows["bare"], rows["router"]
    return {
        "benchmark": "proxy",
        "config": {key: value for key, value in vars(config).items() if key != "json"},
        "request_bytes": len(next(generate_bodies(new_prompts(config.tokens, VOCABULARY), 1))),
        "ways": rows,
        "rows": [
            cells[name][tokens].row(name, config.concurrency, tokens)
            for tokens in config.output_tokens
            for name in cells
        ],
        "cpu_ratio": ratio(router["cpu_us_rounds"], bare["cpu_us_rounds"]),
        "added_p50_ratio": ratio(router["added_p50_us_rounds"], bare["added_p50_us_rounds"]),
    }


def _table(result: dict[str, Any]) -> Table:
    tokens = [row["output_tokens"] for row in result["rows"]]
    title = f"one request, {min(tokens)} tokens out"
    columns = ["way", "CPU us", "p50 us", "added p50 us"]
    keys = ["cpu_us", "p50_us", "added_p50_us"]
    if max(tokens) > min(tokens):
        columns.append("CPU us a further token")
        keys.append("token_us")
    table = Table(*columns, title=title)
    for name, row in result["ways"].items():
        table.add_row(name, *(f"{row[key]:.{int(key == 'token_us')}f}" for key in keys))
    table.caption = (
        f"router / bare: CPU {result['cpu_ratio']:.2f}, added p50 {result['added_p50_ratio']:.2f}"
    )
    return table
