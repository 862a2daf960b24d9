"""dynamo-router bench selection: a worker chosen over the wire, beside Dynamo's selection service.

`SelectWorker` of a `serve` over gRPC and, where it is installed, `/select` of Dynamo's service over
HTTP, of as many workers, without KV events; in turn within each round. Nothing is booked. Clients
are our own lean ones, in this process. CPU is that of the servers, by the kernel's clock.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter_ns
from typing import Any

import uvloop
from rich.table import Table

from ...base.errors import RouterError
from ...process.settings import bad_setting, option
from ...router.proto import router_pb2 as pb
from ...transport.http2 import ClientChannel
from ..load import (
    READY,
    Ask,
    DynamoSelector,
    HttpClient,
    Measured,
    Timing,
    Way,
    free_port,
    new_prompts,
    ratio,
    start_child,
    start_peer,
)
from ..results import Output, format_number, new_table

SELECT_WORKER = "/dynamo_router.v1.RouterService/SelectWorker"
PROMPTS = 256
"""Made before anything is measured, and asked about in turn."""
Cells = dict[tuple[str, int], Measured]
"""By way, and requests at a time."""


@dataclass(frozen=True, kw_only=True)
class SelectionBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    requests: int = option(1000, "Requests per way, load and round.")
    rounds: int = option(7, "Rounds, after one to warm up; medians of them are reported.")
    concurrency: tuple[int, ...] = option((1, 16), "Requests at a time; may be repeated.")
    workers: int = option(32, "Workers to choose among.")
    tokens: int = option(1000, "Token ids of a prompt.")
    dynamo: str | None = option(
        None,
        "A Python that has ai-dynamo; not given: Dynamo is left out. Its service listens on all"
        " addresses of the machine.",
        env=("DYNAMO_PEER",),
    )
    start_timeout_s: float = option(
        60.0, "Wait this long for Dynamo's service.", flag="--start-timeout"
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        for key in ("requests", "rounds", "workers", "tokens"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")
        if min(self.concurrency, default=0) < 1:
            raise bad_setting("concurrency", "must be at least 1")
        if not 0 < self.start_timeout_s < float("inf"):
            raise bad_setting("start_timeout_s", "must be finite and greater than 0")


def run(config: SelectionBenchConfig) -> int:
    """The command: measure, print a table, write JSON if asked."""
    output = Output(config.json)
    result = _result(config, uvloop.run(_measure(config)))
    output.print(_table(result))
    for each in result["ratios"]:
        figures = f"requests/s {each['requests_per_s']:.2f}, CPU {each['cpu']:.2f}"
        output.print(f"router / dynamo, {each['concurrency']} at a time: {figures}")
    output.write(result)
    return 0


async def _measure(config: SelectionBenchConfig) -> Cells:
    prompts = list(islice(new_prompts(config.tokens), PROMPTS))
    async with contextlib.AsyncExitStack() as stack:
        ways = {"router": await _router(config, prompts, stack)}
        if config.dynamo is not None:
            ways["dynamo"] = await _dynamo(config, config.dynamo, prompts, stack)
        cells: Cells = {(name, c): Measured() for c in config.concurrency for name in ways}
        names = list(ways)
        for round in range(config.rounds + 1):
            for concurrency in config.concurrency:
                for name in names:
                    way, ask = ways[name]
                    into = cells[name, concurrency] if round else None  # the first one warms up
                    await way.measure(ask, config.requests, concurrency, into)
            names = [*names[1:], names[0]]  # another one begins each round
    return cells


async def _router(
    config: SelectionBenchConfig, prompts: list[list[int]], stack: contextlib.AsyncExitStack
) -> tuple[Way, Ask]:
    _, addresses = await start_peer("engine", str(config.workers), stack)
    serve = [sys.executable, "-m", "dynamo_router", "serve", "--port", "0", "--http-port", "0"]
    serve += [part for address in addresses for part in ("--worker", f"grpc://{address}")]
    serve += ["--no-kv-events", "--block-size", "16", "--log-level", "error", "--lame-duck-s", "0"]
    pid, ready = await start_child(serve, stack)
    match = READY.search(ready)
    if match is None:
        raise RouterError(f"serve did not say that it is ready, but: {ready}")
    channel = ClientChannel(match[1])
    stack.push_async_callback(channel.close)
    bodies = cycle([pb.SelectWorkerRequest(token_ids=p).SerializeToString() for p in prompts])

    async def ask() -> Timing:
        began, answers = perf_counter_ns(), []
        async for message in channel.call(SELECT_WORKER, next(bodies)):
            answers.append(message)
        took = (perf_counter_ns() - began) / 1e3
        assert len(answers) == 1 and answers[0], "SelectWorker chose nobody"
        return Timing(took, took)

    return Way(match[1], pid), ask


async def _dynamo(
    config: SelectionBenchConfig,
    python: str,
    prompts: list[list[int]],
    stack: contextlib.AsyncExitStack,
) -> tuple[Way, Ask]:
    peer = await stack.enter_async_context(
        DynamoSelector(python, free_port(), start_timeout_s=config.start_timeout_s)
    )
    client = HttpClient(peer.address)
    stack.callback(client.close)
    for number in range(1, config.workers + 1):
        worker = {
            "worker_id": number,
            "model_name": "m",
            "endpoint": f"http://127.0.0.1:{number}",
            "block_size": 16,
        }
        await client.send(client.request("/workers", json.dumps(worker).encode()))
    asked: Iterator[bytes] = cycle(
        [
            client.request("/select", json.dumps({"model_name": "m", "token_ids": p}).encode())
            for p in prompts
        ]
    )

    async def ask() -> Timing:
        return await client.send(next(asked))

    return Way(peer.address, peer.pid), ask


def _result(config: SelectionBenchConfig, cells: Cells) -> dict[str, Any]:
    ratios = [
        {
            "concurrency": c,
            "requests_per_s": ratio(
                cells["router", c].requests_per_s, cells["dynamo", c].requests_per_s
            ),
            "cpu": ratio(cells["router", c].cpu_us, cells["dynamo", c].cpu_us),
        }
        for c in config.concurrency
        if ("dynamo", c) in cells
    ]
    settings = {key: value for key, value in vars(config).items() if key not in ("json", "dynamo")}
    return {
        "benchmark": "selection",
        "config": settings,
        "rows": [cell.row(name, c, 0) for (name, c), cell in cells.items()],
        "ratios": ratios,
    }


def _table(result: dict[str, Any]) -> Table:
    table = new_table("at a time", "way", "requests/s", "CPU us", "p50 ms", "p99 ms")
    for row in result["rows"]:
        table.add_row(
            *(str(row[key]) for key in ("concurrency", "name")),
            format_number(row["requests_per_s"], 0),
            format_number(row["cpu_us_per_request"], 0),
            *(format_number(row["latency_ms"][place], 2) for place in ("p50", "p99")),
        )
    return table
