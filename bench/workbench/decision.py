"""dynamo-router bench decision: from tokens to a booked slot, and its release.

Its steps one by one are benchmarks of kernels: tests/benchmarks.
"""

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ...indexer.hashing import block_hashes, sequence_hashes
from ...process.setting_checks import require_at_least
from ...process.settings import option
from ...router.config import KvRouterConfig
from ...router.kv_router import KvRouter
from ..results import Benchmark, Column, measure_in_turns, percentiles, rows_table
from .index import CacheEvents, Stored

Tokens = NDArray[np.uint32]

PROMPTS = 64
FAMILIES = 16  # of prompts that share their first half
HOLDERS = 4  # one in this many workers holds a family's shared half
BACKGROUND = 2  # requests already running per worker
KINDS = ("array", "list")  # of prompts
STEPS = ("decision", "release")


@dataclass(frozen=True, kw_only=True)
class DecisionBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    tokens: tuple[int, ...] = option((1024, 2048, 8192), "Prompt length; may be repeated.")
    workers: tuple[int, ...] = option((8, 64, 256, 1024), "Fleet size; may be repeated.")
    policy: str = option("forecast", "Policy that decides.")
    block_size: int = option(64, "Tokens in a block.")
    decisions: int = option(500, "Decisions per round.")
    rounds: int = option(7, "Rounds over all settings; medians of them are reported.")
    core: int | None = option(None, "Pin this process to a CPU core (steadier).")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "block_size", "decisions", "rounds", "tokens", "workers")


class Workload:
    """A fleet that is warm and busy: prompts in families, half of each cached on some workers."""

    def __init__(self, tokens: int, workers: int, block_size: int) -> None:
        rng = np.random.default_rng(tokens * 1000 + workers)
        halves = rng.integers(0, 32_000, (FAMILIES, tokens // 2), np.uint32)
        rests = rng.integers(0, 32_000, (PROMPTS, tokens - tokens // 2), np.uint32)
        self.block_size = block_size
        self.workers = workers
        self.prompts: list[Tokens] = [
            np.concatenate((halves[index % FAMILIES], rest)) for index, rest in enumerate(rests)
        ]
        self.events = list(self._cached(halves))

    def _cached(self, halves: NDArray[np.uint32]) -> Iterator[tuple[int, bytes]]:
        writer = CacheEvents()
        for family, half in enumerate(halves):
            local = block_hashes(half, self.block_size)
            if len(local):
                for worker in range(family % HOLDERS, self.workers, HOLDERS):
                    yield writer.store(Stored(worker, None, sequence_hashes(local), local))


class RouterCell:
    """Whole decisions, through the library as a frontend would call it."""

    def __init__(self, workload: Workload, policy: str, as_list: bool) -> None:
        prompts: list[Any] = [*workload.prompts]
        self._prompts = [prompt.tolist() for prompt in prompts] if as_list else prompts
        config = KvRouterConfig(block_size=workload.block_size, seed=1, policy=policy)
        self._router = KvRouter(config)
        for worker in range(workload.workers):
            self._router.add_worker(worker)
        for worker, event in workload.events:
            self._router.apply_event(event, worker)
        for index in range(BACKGROUND * workload.workers):
            prompt = self._prompts[index % PROMPTS]
            self._router.best_worker(prompt, request_id=f"background-{index}")

    def measure(self, decisions: int) -> dict[str, float]:
        """us of a booked decision, and of its release: prefill complete, then free."""
        router, prompts = self._router, self._prompts
        ids = [f"request-{index}" for index in range(decisions)]
        decide: list[float] = []
        release: list[float] = []
        gc.collect()
        gc.disable()
        try:
            for index, request_id in enumerate(ids):
                prompt = prompts[index % PROMPTS]
                started = perf_counter()
                router.best_worker(prompt, request_id=request_id)
                booked = perf_counter()
                router.mark_prefill_complete(request_id)
                router.free(request_id)
                ended = perf_counter()
                decide.append((booked - started) * 1e6)
                release.append((ended - booked) * 1e6)
        finally:
            gc.enable()
        figures: dict[str, float] = {}
        for step, each in (("decision", decide), ("release", release)):
            figures[step], figures[f"{step}_p99"] = percentiles(each, 50, 99)
        return figures

    def close(self) -> None:
        self._router.close()


def measure(config: DecisionBenchConfig) -> dict[str, Any]:
    """One result per prompt length and fleet size: us by step, median and spread over rounds."""
    cells: dict[tuple[int, int, str], RouterCell] = {}
    try:
        for tokens, workers in product(config.tokens, config.workers):
            workload = Workload(tokens, workers, config.block_size)
            for kind in KINDS:
                cells[tokens, workers, kind] = RouterCell(
                    workload, config.policy, as_list=kind == "list"
                )
        rounds = measure_in_turns(
            {key: partial(cell.measure, config.decisions) for key, cell in cells.items()},
            config.rounds,
            warm_up=1,
        )
    finally:
        for cell in cells.values():
            cell.close()
    results = []
    for tokens, workers in product(config.tokens, config.workers):
        result: dict[str, Any] = {"policy": config.policy, "tokens": tokens, "workers": workers}
        for kind in KINDS:
            figures = rounds.spread((tokens, workers, kind))
            for step in STEPS:
                p99 = figures[f"{step}_p99"]["median"]
                result[f"{step}_{kind}_us"] = {**figures[step], "p99": p99}
        results.append(result)
    return {"results": results}


def tables(result: Mapping[str, Any]) -> list[Table]:
    columns = (
        Column("tokens", "tokens"),
        Column("workers", "workers"),
        Column("array in", "decision_array_us", 1),
        Column("p99", "decision_array_us.p99", 1),
        Column("list in", "decision_list_us", 1),
        Column("release", "release_array_us", 1),
    )
    return [rows_table(result["results"], columns, "us per decision, medians")]


run = Benchmark("decision", measure, tables)
