"""dynamo-router bench decision: from tokens to a booked slot, and where the time goes."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ...base.identity import WorkerWithDpRank
from ...indexer.event_index import EventIndex
from ...indexer.hashing import block_hashes, sequence_hashes
from ...process.settings import bad_setting, option
from ...router.config import KvRouterConfig
from ...router.kv_router import KvRouter
from ...slots.table import SlotTable
from ..results import Output, format_number, new_table, percentiles, pin_to_core, spread
from .index import CacheEvents, Stored

Tokens = NDArray[np.uint32]

PROMPTS = 64
FAMILIES = 16  # of prompts that share their first half
HOLDERS = 4  # one in so many workers holds a family's shared half
BACKGROUND = 2  # requests already running per worker


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
        for key in ("block_size", "decisions", "rounds"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")
        for key in ("tokens", "workers"):
            if not getattr(self, key) or min(getattr(self, key)) < 1:
                raise bad_setting(key, "must be numbers of at least 1")


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

    def measure(self, decisions: int) -> dict[str, list[float]]:
        """us of each booked decision, and of each release (prefill complete, then free)."""
        router, prompts = self._router, self._prompts
        ids = [f"request-{index}" for index in range(decisions)]
        decide: list[float] = []
        release: list[float] = []
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
        return {"decision": decide, "release": release}

    def close(self) -> None:
        self._router.close()


class StagesCell:
    """The same steps one by one, on an index and a slot table of the same content.

    What a decision takes beyond them is the cost function, the pick, and the glue.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._index = EventIndex()
        self._slots = SlotTable(workload.block_size)
        for worker in range(workload.workers):
            self._index.bind(WorkerWithDpRank(worker, 0), worker)
            self._slots.add_worker(worker)
        for worker, event in workload.events:
            self._index.apply_cache_event(worker, event)
        for index in range(BACKGROUND * workload.workers):
            prompt = workload.prompts[index % PROMPTS]
            sequence = sequence_hashes(block_hashes(prompt, workload.block_size))
            self._book(f"background-{index}", index % workload.workers, sequence, prompt)

    def measure(self, decisions: int) -> dict[str, list[float]]:
        """us of every step of every decision."""
        workload, index, slots = self._workload, self._index, self._slots
        overlaps = np.zeros(workload.workers, np.uint32)
        times: dict[str, list[float]] = defaultdict(list)
        for turn in range(decisions):
            prompt, worker = workload.prompts[turn % PROMPTS], turn % workload.workers
            marks = [perf_counter()]
            local = block_hashes(prompt, workload.block_size)
            marks.append(perf_counter())
            sequence = sequence_hashes(local)
            marks.append(perf_counter())
            index.match(local, overlaps)
            marks.append(perf_counter())
            slots.potential(sequence, len(prompt), overlaps)
            marks.append(perf_counter())
            self._book("request", worker, sequence, prompt)
            marks.append(perf_counter())
            slots.free("request")
            for stage, (before, after) in zip(STAGES, pairwise(marks), strict=True):
                times[stage].append((after - before) * 1e6)
        return times

    def _book(
        self, request_id: str, worker: int, sequence: NDArray[np.uint64], prompt: Tokens
    ) -> None:
        self._slots.add_request(
            request_id, worker, sequence, isl=len(prompt), overlap_blocks=0, now=0.0
        )

    def close(self) -> None:
        self._index.close()


STAGES = ("block hashes", "sequence hashes", "match", "loads", "book")
Cell = RouterCell | StagesCell
Key = tuple[int, int, str]


def measure_decisions(config: DecisionBenchConfig) -> list[dict[str, Any]]:
    """One result per prompt length and fleet size: us by step, median and spread over rounds."""
    cells: dict[Key, Cell] = {}
    medians: dict[tuple[Key, str], list[float]] = defaultdict(list)
    tails: dict[tuple[Key, str], list[float]] = defaultdict(list)
    try:
        for tokens, workers in product(config.tokens, config.workers):
            workload = Workload(tokens, workers, config.block_size)
            cells[tokens, workers, "array"] = RouterCell(workload, config.policy, as_list=False)
            cells[tokens, workers, "list"] = RouterCell(workload, config.policy, as_list=True)
            cells[tokens, workers, "stages"] = StagesCell(workload)
        for cell in cells.values():
            cell.measure(PROMPTS)  # warm-up
        for _ in range(config.rounds):
            for key, cell in cells.items():
                for step, times in _without_gc(cell, config.decisions).items():
                    p50, p99 = percentiles(times, 50, 99)
                    medians[key, step].append(p50)
                    tails[key, step].append(p99)
    finally:
        for cell in cells.values():
            cell.close()
    return [
        {
            "policy": config.policy,
            "tokens": tokens,
            "workers": workers,
            **{
                f"{step}_{kind}_us": {
                    **spread(medians[(tokens, workers, kind), step]),
                    "p99": spread(tails[(tokens, workers, kind), step])["median"],
                }
                for step, kind in product(("decision", "release"), ("array", "list"))
            },
            "stages_us": {
                stage: spread(medians[(tokens, workers, "stages"), stage]) for stage in STAGES
            },
        }
        for tokens, workers in product(config.tokens, config.workers)
    ]


def _without_gc(cell: Cell, decisions: int) -> dict[str, list[float]]:
    gc.collect()
    gc.disable()
    try:
        return cell.measure(decisions)
    finally:
        gc.enable()


def decision_table(results: Sequence[dict[str, Any]]) -> Table:
    """The results: whole decisions first, then the steps they consist of."""
    table = new_table(title="us per decision, medians")
    columns: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("array in", lambda result: result["decision_array_us"]["median"]),
        ("p99", lambda result: result["decision_array_us"]["p99"]),
        ("list in", lambda result: result["decision_list_us"]["median"]),
        ("release", lambda result: result["release_array_us"]["median"]),
    ]
    for heading in ("tokens", "workers", *(heading for heading, _ in columns), *STAGES, "rest"):
        table.add_column(heading, justify="right")
    for result in results:
        stages = [result["stages_us"][stage]["median"] for stage in STAGES]
        rest = result["decision_array_us"]["median"] - sum(stages)
        cells = [*(pick(result) for _, pick in columns), *stages, rest]
        table.add_row(
            str(result["tokens"]),
            str(result["workers"]),
            *(format_number(cell, 1) for cell in cells),
        )
    return table


def run(config: DecisionBenchConfig) -> int:
    """The command."""
    output = Output(config.json)
    if config.core is not None:
        pin_to_core(config.core)
    results = measure_decisions(config)
    output.print(decision_table(results))
    content = {
        "benchmark": "decision",
        "pinned_to_core": config.core,
        "rounds": config.rounds,
        "decisions": config.decisions,
        "block_size": config.block_size,
        "results": results,
    }
    output.write(content)
    return 0
