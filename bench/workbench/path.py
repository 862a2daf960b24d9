"""dynamo-router bench path: a request's whole way, through our doors and Dynamo's frontend.

Ways to mock engines that compute in no time, in turn within each round, at each concurrency and
length of answer: straight to an engine, through a bare copying proxy, through Envoy where that is
given, through the gRPC door and the OpenAI door of `serve`; where Dynamo is installed, to its own
mock workers through its frontend, and through the gRPC door of another `serve`. CPU is that of
whole processes, by the kernel's clock.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import uvloop

from ...base.errors import RouterError
from ..load import (
    DISCOVERY_ARGUMENTS,
    CompletionClient,
    Load,
    ServeProcess,
    Way,
    Ways,
    children_of,
    generate_call,
    mock_fleet_arguments,
    new_prompts,
    open_call,
    start_dynamo,
    start_envoy,
    start_peer,
    ways_tables,
)
from ..results import Benchmark
from .settings import PathBenchConfig

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


async def _measure_ways(config: PathBenchConfig) -> dict[str, Any]:
    loads = [Load(c, n) for n in config.output_tokens for c in config.concurrency]
    async with contextlib.AsyncExitStack() as stack:
        servers = Servers(config, stack)
        await servers.start()
        return await servers.ways.measure(loads, config.requests, config.rounds, BASES)


class Servers:
    """Starts the servers that there are, and their engines; `ways` lead through them."""

    def __init__(self, config: PathBenchConfig, stack: contextlib.AsyncExitStack) -> None:
        self._config, self._stack = config, stack
        self._prompts = new_prompts(config.tokens)
        self.ways = Ways()

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
        serve = await self._serve([*fleet, "--http-frontend", "0", "--model-id", MODEL])
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
            dynamo = await start_dynamo(
                config.dynamo, config.workers, config.start_timeout_s, stack
            )
            way = Way(dynamo.address, dynamo.frontend_pid, dynamo.workers_pid)
            self._add_completions("dynamo", way)
            adopts = await self._serve([*ADOPTING, *DISCOVERY_ARGUMENTS], dynamo.environ)
            way = Way(adopts.grpc_address, adopts.pid, dynamo.workers_pid)
            self._add_generate("router-dynamo", way)

    async def _serve(
        self, arguments: list[str], environ: dict[str, str] | None = None
    ) -> ServeProcess:
        process = ServeProcess(
            arguments,
            workers=self._config.workers,
            start_timeout_s=self._config.start_timeout_s,
            env=environ,
        )
        return await self._stack.enter_async_context(process)

    def _add_generate(self, name: str, way: Way) -> None:
        call, tokens = open_call(way.address, self._stack), self._config.output_tokens
        asks = {each: generate_call(call, self._prompts, each) for each in tokens}
        self.ways.add(name, way, asks)

    def _add_completions(self, name: str, way: Way) -> None:
        client, tokens = CompletionClient(way.address, MODEL), self._config.output_tokens
        self._stack.callback(client.close)
        asks = {each: client.asks(self._prompts, each) for each in tokens}
        self.ways.add(name, way, asks)


def _only(children: Mapping[int, str], word: str) -> int:
    found = [pid for pid, line in children.items() if word in line.split()]
    if len(found) != 1:
        raise RouterError(f"serve has {len(found)} child processes that are a {word}")
    return found[0]


def measure(config: PathBenchConfig) -> dict[str, Any]:
    """Every way under every load."""
    return uvloop.run(_measure_ways(config))


run = Benchmark("path", measure, ways_tables)
