"""Events through a real NATS server until they are visible in the index: how many, how late."""

from functools import partial
from typing import Any

from ...results import measure_in_turns
from ..stream_reader import measure_stream
from ..stream_source import StreamLoad
from .config import IndexBenchConfig

LOADS = {"all": 0.0, "steady": 100_000.0}
"""Blocks stored a second; 0: as many as go through."""
RUN_BLOCKS = 128  # a prompt of 8192 tokens in blocks of 64
CACHED_RUNS = 128  # of an engine


def measure_events(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per load and worker count. RouterError if an event was lost on the way."""
    variants = {
        (workers, load): partial(_measure, config, workers, rate)
        for workers in config.workers
        for load, rate in LOADS.items()
    }
    rounds = measure_in_turns(variants, min(3, config.rounds))
    return [
        {"load": load, "workers": workers, "run_blocks": RUN_BLOCKS} | figures
        for (workers, load), figures in rounds.spreads().items()
    ]


def _measure(config: IndexBenchConfig, workers: int, rate: float) -> dict[str, float]:
    load = StreamLoad(
        way="nats",
        engines=workers,
        messages=0,
        seconds=config.event_seconds,
        block_size=64,
        run_blocks=RUN_BLOCKS,
        cached_runs=CACHED_RUNS,
        blocks_per_s=rate,
        seed=config.seed,
    )
    return measure_stream(load)
