"""dynamo-router bench proxy: what a request through `serve` costs, beside a bare copying proxy.

Three ways to one engine, measured in turn within each round: straight, through a proxy that only
copies bytes, through the router. CPU is that of the proxy's whole process, by the kernel's clock.
"""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import uvloop
from grpc import aio
from rich.table import Table

from ..runtime.child_process import ChildError, ChildProcess
from ..runtime.errors import RouterError
from ..runtime.http2 import load_library
from ..runtime.settings import bad_setting, option
from ..workers.channels import GRPC_AIO, NGHTTP2, ConnectionPolicy
from ..workers.trtllm_proto import pb
from .load import GENERATE, READY
from .results import Output, cpu_seconds, pin_to_core

OTHER_PATH = "router_grpc_aio"
"""The way through a router whose own calls go over grpc.aio."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
VOCABULARY = 32000


@dataclass(frozen=True, kw_only=True)
class ProxyBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    requests: int = option(400, "Requests per way and round.")
    rounds: int = option(11, "Rounds, after one to warm up; medians of them are reported.")
    concurrency: int = option(1, "Requests at a time; above 1 latency is mostly queueing.")
    workers: int = option(8, "Engines that the proxies have connections to.")
    tokens: int = option(1220, "Tokens of a prompt; 1220 make a request of 3 KB.")
    both_paths: bool = option(
        False, "Measure the router on grpc.aio too, beside the one on nghttp2.", "--both-paths"
    )
    pin: bool = option(True, "Give the proxies a CPU core of their own.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        for key in ("requests", "rounds", "concurrency", "workers", "tokens"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")


@dataclass
class Way:
    """One way to the engine: where it starts, whose CPU counts, and what each round showed."""

    address: str
    pid: int
    cpu_us: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    latency_us: list[float] = field(default_factory=list)  # of each request of all rounds
    ttft_us: list[float] = field(default_factory=list)  # to its first message


class Timing(NamedTuple):
    """When a request's first message had come, and its last, in us."""

    first_us: float
    last_us: float


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
    peers = [sys.executable, "-m", "dynamo_router.bench.load.proxy_peers"]
    engine, line = await _child([*peers, "engine", str(config.workers)], stack)
    addresses = line.split()
    if pin:
        pin_to_core(cores[0])
    bare, bare_address = await _child([*peers, "bare", ",".join(addresses)], stack)
    serve = [sys.executable, "-m", "dynamo_router", "serve", "--port", "0", "--http-port", "0"]
    serve += [part for address in addresses for part in ("--worker", f"grpc://{address}")]
    serve += ["--log-level", "error", "--lame-duck-s", "0"]
    ways = {"direct": Way(addresses[0], engine), "bare": Way(bare_address, bare)}
    routers = {"router": serve}
    if config.both_paths:
        if reason := load_library().reason:
            raise RouterError(reason)
        routers = {"router": [*serve, "--data-path", NGHTTP2]}
        routers[OTHER_PATH] = [*serve, "--data-path", GRPC_AIO]
    for name, command in routers.items():
        router, ready = await _child(command, stack)
        match = READY.search(ready)
        if match is None:
            raise RouterError(f"serve did not say that it is ready, but: {ready}")
        ways[name] = Way(match[1], router)
    if pin:
        pin_to_core(cores[1])
    return ways


async def _child(command: list[str], stack: contextlib.AsyncExitStack) -> tuple[int, str]:
    """Start a process; its pid and the first line it prints."""
    child = ChildProcess(command, stop_timeout_s=STOP_TIMEOUT_S, join_stderr=False)
    stack.push_async_callback(child.stop)
    try:
        await child.start(bool, START_TIMEOUT_S)
    except ChildError as error:
        raise RouterError(f"{' '.join(command[1:4])} {error.reason}") from None
    assert child.pid is not None
    return child.pid, child.output[0]


async def _measure(config: ProxyBenchConfig) -> dict[str, Way]:
    bodies = _bodies(config)
    async with contextlib.AsyncExitStack() as stack:
        ways = await _start(config, stack)
        calls: dict[str, Any] = {}
        for name, way in ways.items():
            channel = aio.insecure_channel(
                way.address, options=ConnectionPolicy().channel_options()
            )
            stack.push_async_callback(channel.close, None)
            calls[name] = channel.unary_stream(GENERATE, None, None)
        for round in range(config.rounds + 1):
            for name, way in ways.items():
                before, began = cpu_seconds(way.pid), time.perf_counter()
                timings = await _load(calls[name], bodies, config)
                if round:  # the first round warms up
                    way.requests_per_s.append(config.requests / (time.perf_counter() - began))
                    way.cpu_us.append((cpu_seconds(way.pid) - before) * 1e6 / config.requests)
                    way.p50_us.append(median(timing.last_us for timing in timings))
                    way.latency_us += (timing.last_us for timing in timings)
                    way.ttft_us += (timing.first_us for timing in timings)
    return ways


async def _load(call: Any, bodies: Iterator[bytes], config: ProxyBenchConfig) -> list[Timing]:
    timings: list[Timing] = []

    async def client(count: int) -> None:
        for _ in range(count):
            body, began = next(bodies), time.perf_counter_ns()
            messages, stream, first = 0, call(body), 0.0
            try:
                async for _ in stream:
                    messages += 1
                    first = first or (time.perf_counter_ns() - began) / 1e3
            finally:
                stream.cancel()  # nothing, if it has ended
            assert messages == 2, messages
            timings.append(Timing(first, (time.perf_counter_ns() - began) / 1e3))

    shares = [
        config.requests // config.concurrency + (n < config.requests % config.concurrency)
        for n in range(config.concurrency)
    ]
    await asyncio.gather(*map(client, shares))
    return timings


def _bodies(config: ProxyBenchConfig) -> Iterator[bytes]:
    """Requests without end, no two alike: made as they are asked for, outside the clock."""
    rng, request = random.Random(1), pb.GenerateRequest(max_tokens=1, streaming=True)
    count = 0
    while True:
        count += 1
        request.request_id = f"request-{count}"
        del request.tokenized.input_token_ids[:]
        request.tokenized.input_token_ids.extend(rng.choices(range(VOCABULARY), k=config.tokens))
        yield request.SerializeToString()


def _result(config: ProxyBenchConfig, ways: dict[str, Way]) -> dict[str, Any]:
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
    bare, router = rows["bare"], rows["router"]
    return {
        "benchmark": "proxy",
        "config": {key: value for key, value in vars(config).items() if key != "json"},
        "request_bytes": len(next(_bodies(config))),
        "ways": rows,
        "rows": [_row(name, way, config.concurrency) for name, way in ways.items()],
        "cpu_ratio": _ratio(router["cpu_us_rounds"], bare["cpu_us_rounds"]),
        "added_p50_ratio": _ratio(router["added_p50_us_rounds"], bare["added_p50_us_rounds"]),
    }


def _row(name: str, way: Way, concurrency: int) -> dict[str, Any]:
    """A way in the shape that scripts read. Medians of rounds; percentiles of all requests."""
    return {
        "name": name,
        "concurrency": concurrency,
        "output_tokens": 1,
        "cpu_us_per_request": median(way.cpu_us),
        "requests_per_s": median(way.requests_per_s),
        "latency_ms": _percentiles(way.latency_us),
        "ttft_ms": _percentiles(way.ttft_us),
    }


def _percentiles(times_us: list[float]) -> dict[str, float]:
    ordered = sorted(times_us)
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100}
    return {name: ordered[place] / 1e3 for name, place in places.items()}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of the ratio within a round, where the machine's mood is the same."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def _table(result: dict[str, Any]) -> Table:
    table = Table("way", "CPU us", "p50 us", "added p50 us", title="one request, two messages out")
    for name, row in result["ways"].items():
        figures = (row["cpu_us"], row["p50_us"], row["added_p50_us"])
        table.add_row(name, *(f"{figure:.0f}" for figure in figures))
    table.caption = (
        f"router / bare: CPU {result['cpu_ratio']:.2f}, added p50 {result['added_p50_ratio']:.2f}"
    )
    return table
