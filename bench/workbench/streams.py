"""dynamo-router bench streams: engines' events over real sockets until the index shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.table import Table

from ...process.settings import bad_setting, option
from ..results import (
    Benchmark,
    Column,
    measure_in_turns,
    millions,
    percent,
    require_at_least,
    spread_table,
)
from .stream_reader import measure_stream
from .stream_source import CACHED_RUNS, StreamLoad

WAYS = ("zmq", "grpc", "nats")


@dataclass(frozen=True, kw_only=True)
class StreamsBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    engines: int = option(8, "Engines, each with a socket of its own.")
    way: str = option(
        "zmq", "How: zmq, as vLLM does, grpc, by SubscribeKvEvents, or nats, by the event plane."
    )
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


def measure(config: StreamsBenchConfig) -> dict[str, Any]:
    """The figures over the rounds."""
    load = StreamLoad(
        way=config.way,
        engines=config.engines,
        messages=config.messages,
        block_size=config.block_size,
        run_blocks=config.run_blocks,
        blocks_per_s=config.blocks_per_s,
        seed=config.seed,
    )
    rounds = measure_in_turns({"streams": partial(measure_stream, load)}, config.rounds)
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
