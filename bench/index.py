"""dynamo-router bench index: store, match and remove, ours beside its rivals in one run."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from ..indexer.hashing import block_hashes, compute_block_hash_for_seq
from ..runtime.errors import RouterError
from ..runtime.settings import bad_setting
from .contenders import Contender, available_contenders, dynamo_core
from .environment import describe_environment, pin_to_core
from .report import (
    check_json_target,
    new_table,
    number,
    percentiles,
    spread,
    table_console,
    write_json,
)
from .sample import sample_traffic
from .trace import TraceRequest, read_trace
from .workload import Prompt, Removed, Stored, Workload, hash_prompts, plan_workload

PHASES = ("store", "match", "remove", "mixed")
HASH_TOKENS = 8192


def _option(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, kw_only=True)
class IndexBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    trace: str | None = _option(None, "A trace to take prompts from; not given: synthesized ones.")
    requests: int = _option(2000, "Use the first N requests of the trace, or make so many.")
    block_size: tuple[int, ...] = _option((64, 16), "Tokens in a block; may be repeated.")
    workers: tuple[int, ...] = _option((64,), "How many workers hold blocks; may be repeated.")
    cache_tokens: int = _option(500_000, "Size of a worker's cache in the mixed phase.")
    contender: tuple[str, ...] = _option(
        (), "Measure only these: arrays, lists, events, dicts, dynamo; may be repeated."
    )
    rounds: int = _option(5, "Rounds over all contenders; medians of them are reported.")
    core: int | None = _option(None, "Pin this process to a CPU core (steadier, and fairer).")
    json: str | None = _option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        for key in ("requests", "rounds", "cache_tokens"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")
        for key in ("block_size", "workers"):
            if not getattr(self, key) or min(getattr(self, key)) < 1:
                raise bad_setting(key, "must be numbers of at least 1")
        for name in self.contender:
            if name not in available_contenders():
                known = ", ".join(available_contenders())
                raise bad_setting("contender", f"{name!r} is not one of those here: {known}")


class Timing(NamedTuple):
    """One phase of one contender in one round."""

    seconds: float
    operations: int
    blocks: int
    each_us: Sequence[float]  # of every operation


def measure_index(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per block size, worker count, contender and phase.

    Operations (calls) and blocks (hashes in them) are reported apart. Every call returns only when
    its effect is visible, so no queue is left to drain. A contender that answers a look-up
    differently from the first one stops the benchmark with RouterError.
    """
    requests = _requests(config)
    contenders = available_contenders()
    names = config.contender or tuple(contenders)
    results = []
    for block_size in config.block_size:
        prompts = hash_prompts(requests, block_size)
        for workers in config.workers:
            workload = plan_workload(
                prompts,
                block_size=block_size,
                workers=workers,
                cache_blocks=max(1, config.cache_tokens // block_size),
            )
            _require_agreement({name: contenders[name] for name in names}, workload)
            timings: dict[tuple[str, str], list[Timing]] = defaultdict(list)
            for round in range(config.rounds):
                # Another one goes first each time: what a round heats up or fills favours nobody.
                turn = round % len(names)
                for name in (*names[turn:], *names[:turn]):
                    for phase, timing in _measure_once(contenders[name], workload):
                        timings[name, phase].append(timing)
            results += [
                {"block_size": block_size, "workers": workers, "contender": name, "phase": phase}
                | _digest(timings[name, phase])
                for phase in PHASES
                for name in names
            ]
    return results


def measure_hashing(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """Block hashes of a prompt of 8192 tokens: from an array, a list, and by Dynamo, if here."""
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
        for _ in range(max(20, config.rounds)):
            for name, call in calls.items():
                started = perf_counter()
                call(size)
                each[name].append((perf_counter() - started) * 1e6)
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


def _requests(config: IndexBenchConfig) -> list[TraceRequest]:
    if config.trace is not None:
        return list(read_trace(config.trace, limit=config.requests))
    return sample_traffic(config.requests)


def _require_agreement(makers: dict[str, Callable[[], Contender]], workload: Workload) -> None:
    """One untimed pass: it warms up, and shows that all contenders do the same work."""
    expected: list[dict[int, int]] | None = None
    for name, make in makers.items():
        index = make()
        for store in workload.stores:
            index.store(index.ready_store(store))
        for removal in workload.removals[::2]:
            index.remove(index.ready_remove(removal))
        answers = [
            index.scores(index.match(index.ready_match(prompt))) for prompt in workload.prompts[::7]
        ]
        if expected is None:
            expected = answers
        elif answers != expected:
            raise RouterError(f"{name} answers look-ups differently from {next(iter(makers))}")


def _measure_once(
    make: Callable[[], Contender], workload: Workload
) -> Iterator[tuple[str, Timing]]:
    index = make()
    yield "store", _time(index, workload.stores)
    yield "match", _time(index, workload.prompts)
    yield "remove", _time(index, workload.removals)
    del index
    yield "mixed", _time(make(), workload.mixed)


def _time(index: Contender, operations: Sequence[Prompt | Removed | Stored]) -> Timing:
    calls: list[tuple[Callable[[Any], object], Any]] = []
    blocks = 0
    for op in operations:
        if isinstance(op, Prompt):
            calls.append((index.match, index.ready_match(op)))
            blocks += len(op.local)
        elif isinstance(op, Stored):
            calls.append((index.store, index.ready_store(op)))
            blocks += len(op.local)
        else:
            calls.append((index.remove, index.ready_remove(op)))
            blocks += len(op.sequence)
    each_us: list[float] = []
    gc.collect()
    gc.disable()
    try:
        started = before = perf_counter()
        for call, ready in calls:
            call(ready)
            now = perf_counter()
            each_us.append((now - before) * 1e6)
            before = now
        seconds = before - started
    finally:
        gc.enable()
    return Timing(seconds, len(calls), blocks, each_us)


def _digest(timings: Sequence[Timing]) -> dict[str, Any]:
    def of(measure: Callable[[Timing], float]) -> dict[str, float]:
        return spread([measure(timing) for timing in timings])

    return {
        "operations": timings[0].operations,
        "blocks": timings[0].blocks,
        "operations_per_s": of(lambda timing: timing.operations / timing.seconds),
        "blocks_per_s": of(lambda timing: timing.blocks / timing.seconds),
        "p50_us": of(lambda timing: percentiles(timing.each_us, 50)[0]),
        "p99_us": of(lambda timing: percentiles(timing.each_us, 99)[0]),
    }


def index_table(results: Sequence[dict[str, Any]]) -> Table:
    """The results, and each contender's throughput as a multiple of Dynamo's, if that ran."""
    table = new_table("block", "workers", "phase", "contender")
    for column in ("blocks/s", "spread", "calls/s", "p50 us", "p99 us", "x dynamo"):
        table.add_column(column, justify="right")
    rates = {_row(result): result["blocks_per_s"]["median"] for result in results}
    for result in results:
        rate = result["blocks_per_s"]
        peer = rates.get((*_row(result)[:3], "dynamo"))
        spread = (rate["max"] - rate["min"]) / rate["median"]
        table.add_row(
            str(result["block_size"]),
            str(result["workers"]),
            result["phase"],
            result["contender"],
            f"{rate['median'] / 1e6:.2f} M",
            f"{spread:.0%}",
            number(result["operations_per_s"]["median"], 0),
            number(result["p50_us"]["median"], 1),
            number(result["p99_us"]["median"], 1),
            number(rate["median"] / peer if peer else None, 2),
        )
    return table


def _row(result: dict[str, Any]) -> tuple[int, int, str, str]:
    return result["block_size"], result["workers"], result["phase"], result["contender"]


def hashing_table(results: Sequence[dict[str, Any]]) -> Table:
    """Hashing, in a table."""
    table = new_table("block", "contender", title=f"hashing {HASH_TOKENS} tokens")
    table.add_column("us", justify="right")
    table.add_column("tokens/s", justify="right")
    for result in results:
        table.add_row(
            str(result["block_size"]),
            result["contender"],
            number(result["call_us"]["median"], 1),
            f"{result['tokens_per_s'] / 1e6:.0f} M",
        )
    return table


def run(config: IndexBenchConfig) -> int:
    """The command."""
    check_json_target(config.json)
    if config.core is not None:
        pin_to_core(config.core)
    console = table_console(config.json)
    hashing = measure_hashing(config)
    console.print(hashing_table(hashing))
    results = measure_index(config)
    console.print(index_table(results))
    if any(result["contender"] == "dynamo" for result in results):
        console.print(
            "dynamo: each of its calls is a round trip to its own thread; lists in and a dict out."
            " The like-for-like rows of ours are lists and events."
        )
    if config.json is not None:
        content = {
            "benchmark": "index",
            "pinned_to_core": config.core,
            "rounds": config.rounds,
            "trace": config.trace,
            "hashing": hashing,
            "results": results,
            "environment": describe_environment(),
        }
        write_json(config.json, content)
    return 0
