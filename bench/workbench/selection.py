"""dynamo-router bench selection: a worker chosen over the wire, beside Dynamo's selection service.

`SelectWorker` of a `serve` over gRPC and, where it is installed, `/select` of Dynamo's service over
HTTP, of as many workers, without KV events; in turn within each round. Nothing is booked. Clients
are our own lean ones, in this process. CPU is that of the servers, by the kernel's clock.
"""

import contextlib
import json
from collections.abc import Iterator
from itertools import cycle, islice
from time import perf_counter_ns
from typing import Any

import uvloop

from ...router.proto import router_pb2 as pb
from ...transport.http2 import ClientChannel
from ..load import (
    Ask,
    HttpClient,
    Load,
    ServeProcess,
    Timing,
    Way,
    Ways,
    new_prompts,
    start_dynamo_selector,
    start_peer,
    ways_tables,
    worker_arguments,
)
from ..results import Benchmark
from .settings import SelectionBenchConfig

SELECT_WORKER = "/dynamo_router.v1.RouterService/SelectWorker"
PROMPTS = 256
"""Made before anything is measured, and asked about in turn."""


async def _measure_ways(config: SelectionBenchConfig) -> dict[str, Any]:
    prompts = list(islice(new_prompts(config.tokens), PROMPTS))
    async with contextlib.AsyncExitStack() as stack:
        ways = Ways()
        loads = [Load(concurrency) for concurrency in config.concurrency]
        way, ask = await _router(config, prompts, stack)
        ways.add("router", way, dict.fromkeys(loads, ask))
        if config.dynamo is not None:
            way, ask = await _dynamo(config, config.dynamo, prompts, stack)
            ways.add("dynamo", way, dict.fromkeys(loads, ask))
        return await ways.measure(loads, config.requests, config.rounds, [("router", "dynamo")])


async def _router(
    config: SelectionBenchConfig, prompts: list[list[int]], stack: contextlib.AsyncExitStack
) -> tuple[Way, Ask]:
    _, addresses = await start_peer("engine", str(config.workers), stack)
    router = await stack.enter_async_context(
        ServeProcess(
            [*worker_arguments(addresses), "--no-kv-events", "--block-size", "16"],
            workers=config.workers,
            start_timeout_s=config.start_timeout_s,
        )
    )
    channel = ClientChannel(router.grpc_address)
    stack.push_async_callback(channel.close)
    bodies = cycle([pb.SelectWorkerRequest(token_ids=p).SerializeToString() for p in prompts])

    async def ask() -> Timing:
        began, answers = perf_counter_ns(), []
        async for message in channel.call(SELECT_WORKER, next(bodies)):
            answers.append(message)
        took = (perf_counter_ns() - began) / 1e3
        assert len(answers) == 1 and answers[0], "SelectWorker chose no worker"
        return Timing(took, took)

    return Way(router.grpc_address, router.pid), ask


async def _dynamo(
    config: SelectionBenchConfig,
    python: str,
    prompts: list[list[int]],
    stack: contextlib.AsyncExitStack,
) -> tuple[Way, Ask]:
    pid, address = await start_dynamo_selector(python, config.start_timeout_s, stack)
    client = HttpClient(address)
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

    return Way(address, pid), ask


def measure(config: SelectionBenchConfig) -> dict[str, Any]:
    """Every way under every load."""
    return uvloop.run(_measure_ways(config))


run = Benchmark("selection", measure, ways_tables)
