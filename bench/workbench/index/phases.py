"""Store, match, remove, remove worker and a mix of them: ours beside its rivals, in rounds."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, process_time
from typing import Any, NamedTuple

from ....base.errors import RouterError
from ...results import percentiles, spread
from ...synthesizer import sample_traffic
from ...traces import TraceRequest, read_trace
from .config import IndexBenchConfig
from .rivals import Dicts, IndexAdapter, available_adapters
from .workload import Prompt, Removed, Stored, Workload, hash_prompts, plan_workload

PHASES = ("store", "match", "remove", "remove worker", "mixed")
# Plain dicts are slow: they judge the answers on so many requests.
JUDGED = 300


class Timing(NamedTuple):
    """One phase of one index in one round."""

    seconds: float
    cpu_seconds: float  # of all threads: what others run meanwhile does not count
    operations: int
    blocks: int
    each_us: Sequence[float]  # of every operation


def read_requests(config: IndexBenchConfig) -> list[TraceRequest]:
    """The requests to measure with."""
    if config.trace is not None:
        return list(read_trace(config.trace, limit=config.requests))
    return sample_traffic(config.requests)


def measure_phases(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per block size, worker count, index and phase.

    Operations (calls) and blocks (hashes in them) are reported apart. Every call returns only when
    its effect is visible, so no queue is left to drain. An index that answers a look-up
    differently from plain dicts, or from the first one, stops the benchmark with RouterError.
    """
    requests = read_requests(config)
    makers = available_adapters()
    names = config.indexes
    results = []
    for block_size in config.block_size:
        prompts = hash_prompts(requests, block_size)
        cache_blocks = max(1, config.cache_tokens // block_size)
        for workers in config.workers:

            def plan(prompts: Sequence[Prompt], workers: int = workers) -> Workload:
                return plan_workload(
                    prompts,
                    block_size=block_size,  # noqa: B023  used at once
                    workers=workers,
                    cache_blocks=cache_blocks,  # noqa: B023
                    seed=config.seed,
                )

            workload = plan(prompts)
            rivals = {name: makers[name] for name in names}
            _require_agreement({"plain dicts": Dicts, **rivals}, plan(prompts[:JUDGED]))
            _require_agreement(rivals, workload)
            timings: dict[tuple[str, str], list[Timing]] = defaultdict(list)
            for round in range(config.rounds):
                # Another one goes first each time: what a round heats up or fills favours nobody.
                turn = round % len(names)
                for name in (*names[turn:], *names[:turn]):
                    for phase, timing in _measure_once(makers[name], workload):
                        timings[name, phase].append(timing)
            results += [
                {"block_size": block_size, "workers": workers, "contender": name, "phase": phase}
                | digest(timings[name, phase])
                for phase in PHASES
                for name in names
            ]
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
    return Timing(seconds, cpu, len(calls), blocks, each_us)


def digest(timings: Sequence[Timing]) -> dict[str, Any]:
    """The medians of some rounds, and how far they lie apart."""

    def of(measure: Callable[[Timing], float]) -> dict[str, float]:
        return spread([measure(timing) for timing in timings])

    return {
        "operations": timings[0].operations,
        "blocks": timings[0].blocks,
        "operations_per_s": of(lambda timing: timing.operations / timing.seconds),
        "blocks_per_s": of(lambda timing: timing.blocks / timing.seconds),
        "blocks_per_cpu_s": of(lambda timing: timing.blocks / timing.cpu_seconds),
        "p50_us": of(lambda timing: percentiles(timing.each_us, 50)[0]),
        "p99_us": of(lambda timing: percentiles(timing.each_us, 99)[0]),
    }
