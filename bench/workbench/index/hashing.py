"""Block hashes of one prompt: from an array, from a list, and by Dynamo, if it is here."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ....indexer.hashing import block_hashes, compute_block_hash_for_seq
from ...results import spread
from .config import IndexBenchConfig
from .rivals import dynamo_core

HASH_TOKENS = 8192
CALLS = 20  # of a round: a call takes microseconds


def measure_hashing(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per block size and index; a round's figure is the median of its calls."""
    tokens = np.arange(HASH_TOKENS, dtype=np.uint32) * np.uint32(7919) % np.uint32(32_000)
    as_list = tokens.tolist()
    calls: dict[str, Callable[[int], object]] = {
        "arrays": lambda size: block_hashes(tokens, size),
        "lists": lambda size: compute_block_hash_for_seq(as_list, size),
    }
    if (dynamo := dynamo_core()) is not None:
        calls["dynamo"] = lambda size: dynamo.compute_block_hash_for_seq(as_list, size)
    results = []
    for size in config.block_size:
        each: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(config.rounds):
            for name, call in calls.items():
                each[name].append(median(_time(call, size) for _ in range(CALLS)))
        results += [
            {
                "block_size": size,
                "contender": name,
                "call_us": spread(times),
                "tokens_per_s": HASH_TOKENS / median(times) * 1e6,
            }
            for name, times in each.items()
        ]
    return results


def _time(call: Callable[[int], object], size: int) -> float:
    started = perf_counter()
    call(size)
    return (perf_counter() - started) * 1e6
