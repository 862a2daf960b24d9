"""dynamo-router bench streams: engines' events over real sockets until the index shows them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.table import Table

from ..results import (
    Benchmark,
    Column,
    measure_in_turns,
    millions,
    percent,
    spread_table,
)
from .settings import StreamsBenchConfig
from .stream_reader import measure_stream
from .stream_source import CACHED_RUNS, StreamLoad


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
