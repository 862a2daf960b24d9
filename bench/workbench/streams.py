"""dynamo-router bench streams: engines' events over real sockets until the index shows them.

Engines are another process (stream_source.py); this one has what `serve` has for each of them: its
stream, and the one index.
"""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns, process_time
from typing import Any

import uvloop
from rich.table import Table

from ...base.errors import RouterError
from ...base.identity import WorkerWithDpRank
from ...indexer.event_index import EventIndex
from ...kv_events import EngineStream, EventDoors, StreamCounts
from ...process.child_process import ask_module
from ...process.settings import bad_setting, option
from ...workers.trtllm_client import TrtllmClient
from ...workers.worker_url import WorkerUrl
from ..results import (
    Benchmark,
    Column,
    measure_in_turns,
    millions,
    percent,
    require_at_least,
    spread_table,
)
from .stream_source import CACHED_RUNS, Published, StreamLoad

STANDSTILL_S = 60.0
"""After so long in which nothing became visible nothing more is waited for."""
LOOK_S = 0.002
WAYS = ("zmq", "grpc")


@dataclass(frozen=True, kw_only=True)
class StreamsBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    engines: int = option(8, "Engines, each with a socket of its own.")
    way: str = option("zmq", "How they tell: zmq, as vLLM, or grpc, by SubscribeKvEvents.")
    block_size: int = option(16, "Tokens of a block.")
    run_blocks: int = option(128, "Blocks that a message stores; as many go.")
    blocks_per_s: float = option(0.0, "Blocks stored a second, by all; 0: as many as are taken.")
    messages: int = option(2000, "Messages of each engine in a round.")
    rounds: int = option(3, "Rounds; medians of them are reported.")
    seed: int = option(7, "Which prompts.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise bad_setting("way", f"{self.way!r} is none of {', '.join(WAYS)}")
        require_at_least(self, 1, "engines", "block_size", "run_blocks", "messages", "rounds")
        require_at_least(self, 0, "seed", "blocks_per_s")


class _Listener:
    """Hears how a stream is: one that is refused ends the measurement."""

    def __init__(self) -> None:
        self.refused = ""

    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None:
        pass

    def on_refused(self, worker_id: int, reason: str) -> None:
        self.refused = reason


async def measure_round(config: StreamsBenchConfig) -> dict[str, float]:
    """One round. RouterError if a message was lost on the way."""
    ports = _free_ports(config.engines)
    load = StreamLoad(
        ports,
        config.messages,
        config.block_size,
        config.run_blocks,
        config.blocks_per_s,
        config.seed,
        config.way,
    )
    messages = config.messages * config.engines
    stored = messages * config.run_blocks
    index, listener, counts = EventIndex(), _Listener(), StreamCounts()
    clients = [TrtllmClient(f"127.0.0.1:{port}") for port in ports]
    doors = EventDoors(clients.__getitem__, partial(_url, config.way, ports), config.block_size)
    streams = [
        EngineStream(
            worker, [0], index, listener, counts, block_size=config.block_size, doors=doors
        )
        for worker in range(config.engines)
    ]
    try:
        for worker, stream in enumerate(streams):
            index.announce_publisher(WorkerWithDpRank(worker), stream.publisher_id(0))
            stream.believe(True)
            stream.open()
        cpu = process_time()
        publishing = asyncio.create_task(_publish(load))
        seen_ns = await _all_seen(index, listener, stored, publishing)
        cpu = process_time() - cpu
    finally:
        for stream in streams:
            await stream.close()
        for client in clients:
            await client.close()
        index.close()
    published = await publishing
    if counts.gaps:
        raise RouterError(f"{counts.gaps} times messages were missing")
    seconds = (seen_ns - published.began_ns) / 1e9
    return {
        "stored_per_s": stored / seconds,
        "messages_per_s": messages / seconds,
        "bytes_per_message": published.bytes / messages,
        "router_cpu_share": cpu / seconds,
        "stored_per_router_cpu_s": stored / cpu,
        "engines_cpu_share": published.cpu_s / seconds,
    }


def _url(way: str, ports: list[int], worker: int) -> WorkerUrl:
    address = f"127.0.0.1:{ports[worker]}"
    return WorkerUrl(address, events=f"tcp://{address}" if way == "zmq" else None)


async def _publish(load: StreamLoad) -> Published:
    module = "dynamo_router.bench.workbench.stream_source"
    return await ask_module(module, load, Published, "the engines of the benchmark")


async def _all_seen(
    index: EventIndex, listener: _Listener, stored: int, publishing: asyncio.Task[Published]
) -> int:
    """The monotonic time in ns at which the last of so many stored blocks was visible.

    RouterError if they do not come: engines publish until they are not read any more.
    """
    seen, changed_ns = 0, monotonic_ns()
    while seen < stored:
        if listener.refused:
            raise RouterError(f"the events were refused: {listener.refused}")
        if publishing.done():
            publishing.result()  # raises what they failed with
        if monotonic_ns() - changed_ns > STANDSTILL_S * 1e9:
            raise RouterError(f"of {stored} stored blocks {seen} arrived")
        await asyncio.sleep(LOOK_S)
        before, seen = seen, index.tier_counters()["device"]["stored"]
        changed_ns = monotonic_ns() if seen > before else changed_ns
    return changed_ns


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listened on a moment ago."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def measure(config: StreamsBenchConfig) -> dict[str, Any]:
    """The figures over the rounds."""
    rounds = measure_in_turns({"streams": lambda: uvloop.run(measure_round(config))}, config.rounds)
    return {"cached_runs": CACHED_RUNS, **rounds.spreads()}


def tables(result: Mapping[str, Any]) -> list[Table]:
    config = result["config"]
    title = (
        f"over {config['way']} until visible, {config['engines']} engines,"
        f" {config['block_size']} tokens a block"
    )
    lines = (
        Column("stored blocks/s", "stored_per_s", millions),
        Column("per CPU second of the router", "stored_per_router_cpu_s", millions),
        Column("messages/s", "messages_per_s", 0),
        Column("bytes of a message", "bytes_per_message", 0),
        Column("CPU of the router", "router_cpu_share", percent),
        Column("CPU of the engines", "engines_cpu_share", percent),
    )
    return [spread_table(title, result["streams"], lines)]


run = Benchmark("streams", measure, tables)
