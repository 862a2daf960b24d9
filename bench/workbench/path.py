"""dynamo-router bench path: a request's whole way, through our doors and Dynamo's frontend.

Ways to mock engines that compute in no time, in turn within each round, at each concurrency and
length of answer: straight to an engine, through proxies that only copy bytes, on grpc.aio and on
our own HTTP/2, through Envoy where that is given, through the gRPC door and the OpenAI door of
`serve`; where Dynamo is installed, to its own mock workers through its frontend, and through the
gRPC door of another `serve`. With `--record` through the listeners of two, one of which records.
CPU is that of whole processes, by the kernel's clock.
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from ...base.errors import RouterError
from ...engines.mocker import OWN_MODEL
from ..load import (
    DISCOVERY_ARGUMENTS,
    Ask,
    ChatClient,
    CompletionClient,
    Load,
    ServeProcess,
    Way,
    Ways,
    chars_per_token,
    children_of,
    generate_call,
    mock_fleet_arguments,
    new_prompts,
    open_call,
    start_dynamo,
    start_envoy,
    start_peer,
    start_smg,
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
    ("bare-http2", "bare"),
    ("envoy", "bare"),
    ("router", "envoy"),
    ("frontend", "dynamo"),
    ("router-dynamo", "dynamo"),
    ("frontend-text", "smg"),
)
"""What each of our doors is compared with, and what our transport alone and a proxy in C++ make of
the same."""
LONG_BASES = (("frontend", "smg"), ("frontend", "dynamo"))
LISTENERS = ("router", "frontend", "frontend-text")
RECORDED = "-recorded"
"""Of the same listener where requests are recorded."""
RECORDED_BASES = tuple((name + RECORDED, name) for name in LISTENERS)
_OPENAI = re.compile(r"openai (\S+)")


async def _measure_ways(config: PathBenchConfig) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        servers = Servers(config, stack)
        await servers.start()
        if config.pin:
            servers.ways.pin()
        bases = LONG_BASES if config.long else RECORDED_BASES if config.record else BASES
        return await servers.ways.measure(servers.loads, config.requests, config.rounds, bases)


class Servers:
    """Starts the servers that there are, and their engines; `ways` lead through them."""

    def __init__(self, config: PathBenchConfig, stack: contextlib.AsyncExitStack) -> None:
        self._config, self._stack = config, stack
        self._prompts = new_prompts(config.tokens)
        self._model_path = config.model_path or str(OWN_MODEL)
        self.ways = Ways()
        self.loads = [Load(c, n) for n in config.output_tokens for c in config.concurrency]
        if config.long:
            turn, tokens = config.turn_tokens, config.output_tokens[0]
            first = [Load(1, tokens, length, length) for length in config.long_tokens]
            if config.tools:
                first.append(first[-1]._replace(tools=config.tools))
            self.loads = [
                load
                for begun in first
                for load in (
                    begun,
                    begun._replace(prompt_tokens=begun.prompt_tokens + turn, new_tokens=turn),
                )
            ]

    async def start(self) -> None:
        """Start all servers and their engines. RouterError if one does not come up."""
        config = self._config
        fleet = mock_fleet_arguments(
            "kv",
            workers=config.workers,
            block_size=BLOCK_SIZE,
            num_gpu_blocks=NUM_GPU_BLOCKS,
            speedup_ratio=SPEEDUP,
        )
        fleet += ["--http-frontend", "0", "--model-id", MODEL, "--model-path", self._model_path]
        if config.record:
            folder = self._stack.enter_context(TemporaryDirectory(prefix="bench-path-"))
            recording = ["--record", str(Path(folder) / "traffic.jsonl.gz")]
            for arguments, tag in (fleet, ""), ([*fleet, *recording], RECORDED):
                serve = await self._serve(arguments)
                engines = _only(children_of(serve.pid), "mocker")
                grpc, openai = (
                    Way(address, serve.pid, engines)
                    for address in (serve.grpc_address, _openai_address(serve))
                )
                self._add_generate(LISTENERS[0] + tag, grpc)
                self._add_completions(LISTENERS[1] + tag, openai)
                self._add_chats(LISTENERS[2] + tag, openai)
            return
        serve = await self._serve(fleet)
        engines = _only(children_of(serve.pid), "mocker")
        openai = Way(_openai_address(serve), serve.pid, engines)
        if not config.long:
            await self._add_grpc(serve, engines)
            self._add_completions("frontend", openai)
        if config.long or config.smg is not None:
            self._add_chats("frontend" if config.long else "frontend-text", openai)
        if config.smg is not None:
            # Engines of its own, as ours: its requests must not fill caches whose events we read.
            own = await self._serve([*fleet, "--no-kv-events"])
            engines = _only(children_of(own.pid), "mocker")
            smg, address = await start_smg(
                config.smg,
                own.worker_addresses,
                self._model_path,
                MODEL,
                config.start_timeout_s,
                self._stack,
            )
            self._add_chats("smg", Way(address, smg, engines))
        if config.dynamo is not None:
            await self._add_dynamo(config.dynamo)

    async def _add_grpc(self, serve: ServeProcess, engines: int) -> None:
        config, addresses = self._config, serve.worker_addresses
        self._add_generate("direct", Way(addresses[0], engines, engines))
        for role in ("bare", "bare-http2"):
            bare, (address,) = await start_peer(role, ",".join(addresses), self._stack)
            self._add_generate(role, Way(address, bare, engines))
        if config.envoy is not None:
            limit_s = config.start_timeout_s
            envoy, address = await start_envoy(config.envoy, addresses, limit_s, self._stack)
            self._add_generate("envoy", Way(address, envoy, engines))
        self._add_generate("router", Way(serve.grpc_address, serve.pid, engines))

    async def _add_dynamo(self, python: str) -> None:
        config = self._config
        model = self._model_path if config.long else None
        limit_s = config.start_timeout_s
        dynamo = await start_dynamo(python, config.workers, limit_s, self._stack, model)
        way = Way(dynamo.address, dynamo.frontend_pid, dynamo.workers_pid)
        if config.long:
            self._add_chats("dynamo", way)
            return
        self._add_completions("dynamo", way)
        adopts = await self._serve([*ADOPTING, *DISCOVERY_ARGUMENTS], dynamo.environ)
        self._add_generate(
            "router-dynamo", Way(adopts.grpc_address, adopts.pid, dynamo.workers_pid)
        )

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

    def _add(self, name: str, way: Way, new_ask: Callable[[int], Ask]) -> None:
        """A way whose requests differ by the tokens of an answer alone."""
        asks = {tokens: new_ask(tokens) for tokens in self._config.output_tokens}
        self.ways.add(name, way, {load: asks[load.output_tokens] for load in self.loads})

    def _add_generate(self, name: str, way: Way) -> None:
        call = open_call(way.address, self._stack)
        self._add(name, way, lambda tokens: generate_call(call, self._prompts, tokens))

    def _add_completions(self, name: str, way: Way) -> None:
        client = CompletionClient(way.address, MODEL)
        self._stack.callback(client.close)
        self._add(name, way, lambda tokens: client.asks(self._prompts, tokens))

    def _add_chats(self, name: str, way: Way) -> None:
        client = ChatClient(way.address, MODEL, self._config.api)
        self._stack.callback(client.close)
        if not self._config.long:
            self._add(name, way, lambda tokens: client.asks(self._config.chars, tokens))
            return
        chars, asks = chars_per_token(self._model_path), {}
        for begun, grown in zip(self.loads[::2], self.loads[1::2], strict=True):
            first, turn = (round(load.new_tokens * chars) for load in (begun, grown))
            asks[begun], asks[grown] = client.turns(first, turn, begun.output_tokens, begun.tools)
        self.ways.add(name, way, asks)


def _openai_address(serve: ServeProcess) -> str:
    openai = _OPENAI.search(serve.ready_line)
    if openai is None:
        raise RouterError(f"serve printed no address of its frontend, but: {serve.ready_line}")
    return openai[1]


def _only(children: Mapping[int, str], word: str) -> int:
    found = [pid for pid, line in children.items() if word in line.split()]
    if len(found) != 1:
        raise RouterError(f"serve has {len(found)} child processes that are a {word}")
    return found[0]


def measure(config: PathBenchConfig) -> dict[str, Any]:
    """Every way under every load."""
    return uvloop.run(_measure_ways(config))


run = Benchmark("path", measure, ways_tables)
