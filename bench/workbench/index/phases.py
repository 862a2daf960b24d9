"""Store, match, remove, remove worker and a mix of them: ours beside its rivals, in rounds."""

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from time import perf_counter, process_time
from typing import Any, NamedTuple

from ....base.errors import RouterError
from ...results import Measurement, percentiles, turns
from ...synthesizer import sample_traffic
from ...traces import TraceRequest, read_trace
from .config import IndexBenchConfig
from .rivals import IndexAdapter, available_adapters
from .workload import Prompt, Removed, Stored, Workload, hash_prompts, plan_workload

PHASES = ("store", "match", "remove", "remove worker", "mixed")


class Timing(NamedTuple):
    """One phase of one index in one round."""

    operations: int
    blocks: int
    figures: dict[str, float]


def read_requests(config: IndexBenchConfig) -> list[TraceRequest]:
    """The requests to measure with."""
    if config.trace is not None:
        return list(read_trace(config.trace, limit=config.requests))
    return sample_traffic(config.requests)


def measure_phases(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per block size, worker count, index and phase.

    Operations (calls) and blocks (hashes in them) are reported apart. Every call returns only when
    its effect is visible, so no queue is left to drain. An index that answers a look-up
    differently from the first one stops the benchmark with RouterError.
    """
    requests = read_requests(config)
    makers = {name: available_adapters()[name] for name in config.indexes}
    results = []
    for block_size, workers in product(config.block_size, config.workers):
        workload = plan_workload(
            hash_prompts(requests, block_size),
            block_size=block_size,
            workers=workers,
            cache_blocks=max(1, config.cache_tokens // block_size),
            seed=config.seed,
        )
        _require_agreement(makers, workload)
        measured = Measurement[tuple[str, str]]()
        sizes: dict[str, tuple[int, int]] = {}
        for order, _ in turns(makers, config.rounds):
            for name in order:
                for phase, timing in _measure_once(makers[name], workload):
                    sizes[phase] = timing.operations, timing.blocks
                    measured.add((name, phase), timing.figures)
        for phase, name in product(PHASES, makers):
            operations, blocks = sizes[phase]
            setting = {"block_size": block_size, "workers": workers, "contender": name}
            counts = {"phase": phase, "operations": operations, "blocks": blocks}
            results.append(setting | counts | measured.spread((name, phase)))
    return results


def _require_agreement(makers: dict[str, Callable[[], IndexAdapter]], workload: Workload) -> None:
    """One untimed pass: it warms up, and shows that all indexes do the same work."""
    expected: list[dict[int, int]] | None = None
    for name, make in makers.items():
        index = make()
        for store in workload.stores:
            index.store(index.ready_store(store))
        for removal in workload.removals[::2]:
            index.remove(index.ready_remove(removal))
        index.remove_worker(workload.stores[0].worker)
        answers = [
            index.scores(index.match(index.ready_match(prompt))) for prompt in workload.prompts[::7]
        ]
        if expected is None:
            expected = answers
        elif answers != expected:
            raise RouterError(f"{name} answers look-ups differently from {next(iter(makers))}")


def _measure_once(
    make: Callable[[], IndexAdapter], workload: Workload
) -> Iterator[tuple[str, Timing]]:
    index = make()
    yield "store", _time(index, workload.stores)
    yield "match", _time(index, workload.prompts)
    yield "remove", _time(index, workload.removals)
    yield "remove worker", _remove_workers(index, workload)
    del index
    yield "mixed", _time(make(), workload.mixed)


def _remove_workers(index: IndexAdapter, workload: Workload) -> Timing:
    """Every worker leaves with what it still holds, and a look-up sees that it left."""
    stored = sum(len(store.local_hashes) for store in workload.stores)
    removed = sum(len(removal.sequence_hashes) for removal in workload.removals)
    workers = sorted({store.worker for store in workload.stores})
    look_up = index.ready_match(workload.prompts[0])
    return _time_calls(
        [*((index.remove_worker, worker) for worker in workers), (index.match, look_up)],
        stored - removed,
    )


def _time(index: IndexAdapter, operations: Sequence[Prompt | Removed | Stored]) -> Timing:
    calls: list[tuple[Callable[[Any], object], Any]] = []
    blocks = 0
    for op in operations:
        if isinstance(op, Prompt):
            calls.append((index.match, index.ready_match(op)))
            blocks += len(op.local_hashes)
        elif isinstance(op, Stored):
            calls.append((index.store, index.ready_store(op)))
            blocks += len(op.local_hashes)
        else:
            calls.append((index.remove, index.ready_remove(op)))
            blocks += len(op.sequence_hashes)
    return _time_calls(calls, blocks)


def _time_calls(calls: Sequence[tuple[Callable[[Any], object], Any]], blocks: int) -> Timing:
    each_us: list[float] = []
    gc.collect()
    gc.disable()
    try:
        cpu = process_time()
        started = before = perf_counter()
        for call, ready in calls:
            call(ready)
            now = perf_counter()
            each_us.append((now - before) * 1e6)
            before = now
        seconds = before - started
        cpu = max(process_time() - cpu, 1e-9)
    finally:
        gc.enable()
    p50, p99 = percentiles(each_us, 50, 99)
    figures = {
        "operations_per_s": len(calls) / seconds,
        "blocks_per_s": blocks / seconds,
        "blocks_per_cpu_s": blocks / cpu,  # of all threads: others' work does not count
        "p50_us": p50,
        "p99_us": p99,
    }
    return Timing(len(calls), blocks, figures)
