"""dynamo-router bench path: a request's whole way, through our doors and Dynamo's frontend.

Ways to mock engines that compute in no time, in turn within each round, at each concurrency and
length of answer: straight to an engine, through a bare copying proxy, through Envoy where that is
given, through the gRPC door and the OpenAI door of `serve`; where Dynamo is installed, to its own
mock workers through its frontend, and through the gRPC door of another `serve`. CPU is that of
whole processes, by the kernel's clock.
"""

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import uvloop
from rich.table import Table

from ...base.errors import RouterError
from ...process.settings import bad_setting, option
from ..load import (
    Ask,
    CompletionClient,
    DynamoPeer,
    Measured,
    Neighbours,
    ServeProcess,
    Way,
    children_of,
    free_port,
    generate_call,
    mock_fleet_arguments,
    new_prompts,
    noise_content,
    noise_words,
    open_call,
    ratio,
    start_envoy,
    start_peer,
)
from ..results import Output, cpu_seconds, format_number, new_table

MODEL = "tiny"
SPEEDUP = 1e6
BLOCK_SIZE = 16
NUM_GPU_BLOCKS = 16384
ADOPTING = f"--mode kv --block-size {BLOCK_SIZE} --port 0 --http-port 0 --log-level warning".split()
"""Arguments of the `serve` in front of Dynamo's workers, beside those that say where they are."""
BASES = (
    ("router", "bare"),
    ("envoy", "bare"),
    ("router", "envoy"),
    ("frontend", "dynamo"),
    ("router-dynamo", "dynamo"),
)
"""What each of our doors is compared with, and what a proxy in C++ makes of the same."""
_OPENAI = re.compile(r"openai (\S+)")


@dataclass(frozen=True, kw_only=True)
class PathBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    requests: int = option(200, "Requests per way, load and round.")
    rounds: int = option(7, "Rounds, after one to warm up; medians of them are reported.")
    concurrency: tuple[int, ...] = option((1, 16, 64), "Requests at a time; may be repeated.")
    output_tokens: tuple[int, ...] = option((1, 32), "Tokens of an answer; may be repeated.")
    workers: int = option(4, "Mock engines.")
    tokens: int = option(1000, "Token ids of a prompt.")
    dynamo: str | None = option(
        None,
        "A Python that has ai-dynamo; not given: Dynamo is left out.",
        env=("DYNAMO_PEER",),
    )
    envoy: str | None = option(
        None,
        "Path of an Envoy, which copies bytes beside the bare proxy; not given: it is left out.",
    )
    start_timeout_s: float = option(
        60.0, "Wait this long for each server and its engines.", flag="--start-timeout"
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        for key in ("requests", "rounds", "workers", "tokens"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")
        for key in ("concurrency", "output_tokens"):
            if min(getattr(self, key), default=0) < 1:
                raise bad_setting(key, "must be at least 1")
        if not 0 < self.start_timeout_s < float("inf"):
            raise bad_setting("start_timeout_s", "must be finite and greater than 0")


@dataclass(frozen=True)
class Load:
    """So many requests at a time, for answers of so many tokens."""

    concurrency: int
    output_tokens: int


Cells = dict[tuple[str, Load], Measured]


def run(config: PathBenchConfig) -> int:
    """The command: measure, print a table, write JSON if asked."""
    output = Output(config.json)
    result = uvloop.run(_measure(config))
    output.print(_table(result))
    output.print(_words(result))
    output.write(result)
    return 0


class Ways:
    """The ways that there are, and how a request is sent on each of them."""

    def __init__(self, config: PathBenchConfig, stack: contextlib.AsyncExitStack) -> None:
        self._config, self._stack = config, stack
        self._prompts = new_prompts(config.tokens)
        self.ways: dict[str, Way] = {}
        self._asks: dict[str, dict[int, Ask]] = {}

    async def start(self) -> None:
        """Start all servers and their engines. RouterError if one does not come up."""
        config, stack = self._config, self._stack
        fleet = mock_fleet_arguments(
            "kv",
            workers=config.workers,
            block_size=BLOCK_SIZE,
            num_gpu_blocks=NUM_GPU_BLOCKS,
            speedup_ratio=SPEEDUP,
        )
        serve = await stack.enter_async_context(
            ServeProcess(
                [*fleet, "--http-frontend", "0", "--model-id", MODEL],
                workers=config.workers,
                start_timeout_s=config.start_timeout_s,
            )
        )
        assert serve.pid is not None
        engines = _only(children_of(serve.pid), "mocker")
        addresses = serve.worker_addresses
        self._add_generate("direct", Way(addresses[0], engines, engines))
        bare, (address,) = await start_peer("bare", ",".join(addresses), stack)
        self._add_generate("bare", Way(address, bare, engines))
        if config.envoy is not None:
            limit_s = config.start_timeout_s
            envoy, address = await start_envoy(config.envoy, addresses, limit_s, stack)
            self._add_generate("envoy", Way(address, envoy, engines))
        self._add_generate("router", Way(serve.grpc_address, serve.pid, engines))
        openai = _OPENAI.search(serve.ready_line)
        if openai is None:
            raise RouterError(f"serve did not say where its frontend is, but: {serve.ready_line}")
        self._add_completions("frontend", Way(openai[1], serve.pid, engines))
        if config.dynamo is not None:
            dynamo = await stack.enter_async_context(
                DynamoPeer(
                    config.dynamo,
                    free_port(),
                    workers=config.workers,
                    start_timeout_s=config.start_timeout_s,
                )
            )
            way = Way(dynamo.address, dynamo.frontend_pid, dynamo.workers_pid)
            self._add_completions("dynamo", way)
            adopts = await stack.enter_async_context(
                ServeProcess(
                    [*ADOPTING, *dynamo.discovery_arguments],
                    workers=config.workers,
                    start_timeout_s=config.start_timeout_s,
                    env=dynamo.discovery_environ,
                )
            )
            assert adopts.pid is not None
            self._add_generate(
                "router-dynamo", Way(adopts.grpc_address, adopts.pid, dynamo.workers_pid)
            )

    async def measure(self, name: str, load: Load, into: Measured | None) -> None:
        ask = self._asks[name][load.output_tokens]
        await self.ways[name].measure(ask, self._config.requests, load.concurrency, into)

    def cpu_seconds(self) -> float:
        """Of all processes that take part, ours too."""
        pids = {pid for way in self.ways.values() for pid in (way.pid, way.engines) if pid}
        pids |= {child for pid in pids for child in children_of(pid)}
        return time.process_time() + sum(map(cpu_seconds, pids))

    def _add_generate(self, name: str, way: Way) -> None:
        call, tokens = open_call(way.address, self._stack), self._config.output_tokens
        self.ways[name] = way
        self._asks[name] = {each: generate_call(call, self._prompts, each) for each in tokens}

    def _add_completions(self, name: str, way: Way) -> None:
        client, tokens = CompletionClient(way.address, MODEL), self._config.output_tokens
        self._stack.callback(client.close)
        self.ways[name] = way
        self._asks[name] = {each: client.asks(self._prompts, each) for each in tokens}


async def _measure(config: PathBenchConfig) -> dict[str, Any]:
    loads = [Load(c, n) for n in config.output_tokens for c in config.concurrency]
    async with contextlib.AsyncExitStack() as stack:
        ways = Ways(config, stack)
        await ways.start()
        cells: Cells = {(name, load): Measured() for load in loads for name in ways.ways}
        names = list(ways.ways)
        own, neighbours = 0.0, Neighbours()
        for round in range(config.rounds + 1):
            if round == 1:  # the first one warms up
                own, neighbours = ways.cpu_seconds(), Neighbours()
            for load in loads:
                for name in names:
                    await ways.measure(name, load, cells[name, load] if round else None)
            names = [*names[1:], names[0]]  # another one begins each round
        others = neighbours.share(ways.cpu_seconds() - own)
    return _result(config, loads, cells, others)


def _result(
    config: PathBenchConfig, loads: list[Load], cells: Cells, others: float
) -> dict[str, Any]:
    rows = [
        cell.row(name, load.concurrency, load.output_tokens) for (name, load), cell in cells.items()
    ]
    ratios = [
        {
            "name": name,
            "beside": base,
            "concurrency": load.concurrency,
            "output_tokens": load.output_tokens,
            "cpu": ratio(cells[name, load].cpu_us, cells[base, load].cpu_us),
            "requests_per_s": ratio(
                cells[name, load].requests_per_s, cells[base, load].requests_per_s
            ),
        }
        for load in loads
        for name, base in BASES
        if (name, load) in cells and (base, load) in cells
    ]
    settings = {
        key: value for key, value in vars(config).items() if key not in ("json", "dynamo", "envoy")
    }
    return {
        "benchmark": "path",
        "config": settings,
        "rows": rows,
        "ratios": ratios,
        **noise_content(others),
    }


def _table(result: dict[str, Any]) -> Table:
    """Times in ms, CPU in us a request: of the process on the way, and of the engines'."""
    table = new_table(
        *("tokens", "at a time", "way", "CPU", "engines", "requests/s"),
        *("TTFT p50", "TTFT p99", "latency p50", "latency p99"),
        title="CPU in us a request, of the way's process and the engines'; times in ms",
    )
    for row in result["rows"]:
        times = (row[key][place] for key in ("ttft_ms", "latency_ms") for place in ("p50", "p99"))
        table.add_row(
            *(str(row[key]) for key in ("output_tokens", "concurrency", "name")),
            format_number(row["cpu_us_per_request"], 0),
            format_number(row["engine_cpu_us_per_request"], 0),
            format_number(row["requests_per_s"], 0),
            *(format_number(time_ms, 2) for time_ms in times),
        )
    return table


def _words(result: dict[str, Any]) -> str:
    """What the table says of our doors, and whether it is to be believed."""
    said = [
        f"{each['name']} / {each['beside']}, {each['output_tokens']} tokens, {each['concurrency']}"
        f" at a time: CPU {each['cpu']:.2f}, requests/s {each['requests_per_s']:.2f}"
        for each in result["ratios"]
    ]
    return "\n".join([*said, *noise_words(result)])


def _only(children: Mapping[int, str], word: str) -> int:
    found = [pid for pid, line in children.items() if word in line.split()]
    if len(found) != 1:
        raise RouterError(f"serve has {len(found)} child processes that are a {word}")
    return found[0]
