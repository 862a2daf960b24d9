"""How long single calls hold the event loop of a router: python tests/instruments/loop_gaps.py

A server with 1000 workers that nobody runs; a client in another process makes each call some
times, one after the other; a task on the server's loop measures the longest time between its turns,
by the clock and as CPU time of the loop's thread, which does not count what a busy machine adds.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import aiohttp
import numpy as np
from grpc import aio

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.command import GC_THRESHOLDS
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.pool import ConfiguredPool
from dynamo_router.server.router_server import router_server
from dynamo_router.server.server_parts import ServerParts
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 16
CALLS = 5
TICK_S = 0.0005


class LoopGaps:
    """The longest time, in milliseconds, that the loop was held since `restart`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.longest_ms = self.longest_cpu_ms = 0.0

    async def watch(self) -> None:
        last, last_cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now, cpu = time.perf_counter(), time.thread_time()
            self.longest_ms = max(self.longest_ms, (now - last - TICK_S) * 1e3)
            self.longest_cpu_ms = max(self.longest_cpu_ms, (cpu - last_cpu) * 1e3)
            last, last_cpu = now, cpu


async def measure(cases: Iterable[str], *program: str) -> None:
    """Print what each case costs this loop, which a process of its own asks for: the program, with
    the case as its last argument, prints a line when it is ready, and then what became of it."""
    gaps = LoopGaps()
    gc.collect()
    gc.freeze()  # as `serve` does
    gc.set_threshold(*GC_THRESHOLDS)
    watch = asyncio.create_task(gaps.watch())
    for case in cases:
        client = await asyncio.create_subprocess_exec(
            sys.executable, *program, case, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        await client.stdout.readline()
        gaps.restart()
        result = (await client.stdout.read()).decode().strip()
        await client.wait()
        figures = f"{gaps.longest_ms:7.1f} ms, CPU {gaps.longest_cpu_ms:6.1f} ms"
        print(f"{case:36} {figures}   {result}", flush=True)
    watch.cancel()


async def serve(workers: int) -> None:
    config = ServeConfig(
        port=0,
        http_port=0,
        router=KvRouterConfig(block_size=BLOCK),
        peers=CallerLimits(max_share_per_caller=1.0),
    )
    parts = ServerParts(config)
    pool = ConfiguredPool(parts)
    server = router_server(parts, pool)
    listeners: Any = server.listeners
    grpc, http = listeners
    try:
        await server.start()
        for number in range(workers):
            pool.workers.router.add_worker(number + 1, address=f"10.0.0.1:{number + 1}")
        await measure(("nothing", *CASES), __file__, grpc.address, http.address)
    finally:
        await server.close()


def tokens(count: int) -> list[int]:
    return np.random.default_rng(1).integers(0, 128_000, count).tolist()


def generate(count: int) -> bytes:
    request = pb.GenerateRequest(request_id="x", max_tokens=4, streaming=True)
    request.tokenized.input_token_ids.extend(tokens(count))
    return request.SerializeToString()


M = 1 << 20
CASES = {
    "SelectWorker 1 M tokens": (
        "SelectWorker",
        lambda: rpb.SelectWorkerRequest(token_ids=tokens(M)),
    ),
    "SelectWorker 10 M tokens (30 MB)": (
        "SelectWorker",
        lambda: rpb.SelectWorkerRequest(token_ids=tokens(10 * M)),
    ),
    "Explain 1000 tokens": ("Explain", lambda: rpb.ExplainRequest(token_ids=tokens(1000))),
    "Explain 1 M tokens": ("Explain", lambda: rpb.ExplainRequest(token_ids=tokens(M))),
    "GetOverlapScores 1 M tokens": (
        "GetOverlapScores",
        lambda: rpb.OverlapRequest(token_ids=tokens(M)),
    ),
    "GetPotentialLoads 1 M tokens": (
        "GetPotentialLoads",
        lambda: rpb.PotentialLoadsRequest(token_ids=tokens(M)),
    ),
    "ListWorkers": ("ListWorkers", rpb.ListWorkersRequest),
    "Generate 1 M tokens": ("Generate", lambda: generate(M)),
    "Generate 10 M tokens (30 MB)": ("Generate", lambda: generate(10 * M)),
    "GET /workers": ("GET", "/workers"),
    "POST /overlaps 1 M tokens": ("POST", M),
    "POST /overlaps 2 M tokens": ("POST", 2 * M),
}


async def call(grpc_address: str, http_address: str, case: str) -> None:
    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    method, make = CASES.get(case, ("", None))
    took, result = [], ""
    async with (
        aio.insecure_channel(grpc_address, options=options) as channel,
        aiohttp.ClientSession(f"http://{http_address}") as session,
    ):
        await channel.channel_ready()
        body = make() if callable(make) else make
        if method == "POST":
            body = json.dumps({"token_ids": tokens(body)}).encode()
        elif method not in ("GET", "Generate", ""):
            body = body.SerializeToString()
        print("ready", flush=True)
        await asyncio.sleep(0.5)
        for _ in range(CALLS):
            began = time.perf_counter()
            if method == "GET":
                async with session.get(body) as answer:
                    result = f"{answer.status} {len(await answer.read())} bytes"
            elif method == "POST":
                async with session.post("/overlaps", data=body) as answer:
                    result = f"{answer.status} {len(await answer.read())} bytes"
            elif method:
                path = f"/{SERVICE}/Generate"
                if method != "Generate":
                    path = f"/dynamo_router.v1.RouterService/{method}"
                try:
                    result = f"OK {len(await channel.unary_unary(path)(body))} bytes"
                except aio.AioRpcError as error:
                    result = f"{error.code().name} {(error.details() or '')[:60]}"
            took.append((time.perf_counter() - began) * 1e3)
    print(f"{result}; took {min(took, default=0):.1f} to {max(took, default=0):.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("call", nargs="*", help="internal: addresses of gRPC and HTTP, case")
    args = parser.parse_args()
    asyncio.run(call(*args.call) if args.call else serve(args.workers))
