"""dynamo-router bench concurrent: the index, read while events are written to it at full speed."""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ....base.errors import RouterError
from ....base.identity import WorkerWithDpRank
from ....indexer.event_index import EventIndex
from ....indexer.wire import EventWriter
from ....process.setting_checks import require_at_least
from ....process.settings import bad_setting, option
from ...results import Benchmark, Column, measure_in_turns, millions, percentiles, rows_table
from ._read_write import read_prompts

PROMPTS = 256
PROMPT_BLOCKS = 64
SHARED_BLOCKS = 48  # of a prompt, with the other prompts of its family
FAMILIES = 16
HOLDERS = 4  # one in this many workers holds a prompt
MAX_READS = 1 << 20
IDLE_READS = 100_000


@dataclass(frozen=True, kw_only=True)
class ConcurrentBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    workers: int = option(64, "How many workers hold blocks.")
    readers: tuple[int, ...] = option((1, 2), "Threads that read; may be repeated.")
    blocks: int = option(2_000_000, "Blocks stored and removed while they read.")
    message_blocks: tuple[int, ...] = option((1000,), "Blocks in a message; may be repeated.")
    mean_gap_us: int = option(100, "Mean time between two reads of a thread.")
    rounds: int = option(7, "Rounds over all settings; medians of them are reported.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "workers", "blocks", "mean_gap_us", "rounds")
        require_at_least(self, 1, "readers", "message_blocks")
        if self.workers > 4096:
            raise bad_setting("workers", f"{self.workers} must be at most 4096")


class Workload(NamedTuple):
    """What readers ask for, and what is written meanwhile."""

    hashes: NDArray[np.uint64]  # local hashes of all prompts
    starts: NDArray[np.uint32]  # where each begins; one more: the end
    before: list[bytes]  # messages that store the prompts
    traffic: list[bytes]  # messages that come while they are read
    blocks: int  # in those


def make_workload(workers: int, blocks: int, message_blocks: int) -> Workload:
    """Prompts in families on some of the workers; chains that every worker stores and removes."""
    rng = np.random.default_rng(1)
    shared = rng.integers(1, 2**63, (FAMILIES, SHARED_BLOCKS), np.uint64)
    prompts = [
        np.concatenate(
            [shared[i % FAMILIES], rng.integers(1, 2**63, PROMPT_BLOCKS - SHARED_BLOCKS, np.uint64)]
        )
        for i in range(PROMPTS)
    ]
    # Block hashes that follow from the chain, so that shared blocks are the same ones.
    external_hashes = [np.cumsum(prompt, dtype=np.uint64) for prompt in prompts]
    event_ids = [0] * workers
    writer = EventWriter()

    def message(worker: int, kind: str, *what: Any) -> bytes:
        event_ids[worker] += 1
        getattr(writer, kind)(worker, 0, event_ids[worker], *what)
        return writer.message(worker, event_ids[worker] - 1, 0)

    before = [
        message(worker, "stored", None, external_hashes[i], prompts[i])
        for i in range(PROMPTS)
        for worker in range(i % HOLDERS, workers, HOLDERS)
    ]
    chain = rng.integers(1, 2**63, message_blocks, np.uint64)
    traffic: list[bytes] = []
    count = max(2, blocks // message_blocks)
    for i in range(count):
        worker = i // 2 % workers
        own = np.cumsum(chain, dtype=np.uint64) + np.uint64(worker)
        if i % 2 == 0:
            traffic.append(message(worker, "stored", None, own, chain + np.uint64(worker % 8)))
        else:
            traffic.append(message(worker, "removed", own[::-1].copy()))
    starts = np.arange(0, PROMPTS * PROMPT_BLOCKS + 1, PROMPT_BLOCKS, dtype=np.uint32)
    return Workload(np.concatenate(prompts), starts, before, traffic, count * message_blocks)


def measure_round(
    workload: Workload, workers: int, mean_gap_us: int, readers: int
) -> dict[str, float]:
    """Read beside a writer, then alone: us of the reads beside it, blocks/s that it wrote, and
    reads/s of all readers together, back to back, with nothing written."""
    with closing(EventIndex(max_messages=len(workload.traffic) + 1, max_bytes=1 << 40)) as index:
        for worker in range(workers):
            index.bind(WorkerWithDpRank(worker), worker)
        for message in workload.before:
            index.apply(message)

        def write() -> float:
            began = perf_counter()
            for message in workload.traffic:
                if not index.post(message):
                    raise RouterError("the mailbox is full")
            index.flush()
            return workload.blocks / (perf_counter() - began)

        each, blocks_per_s = _read(index, workload, workers, readers, mean_gap_us, MAX_READS, write)
        began = perf_counter()
        idle, _ = _read(index, workload, workers, readers, 0, IDLE_READS, None)
        reads_per_s = len(idle) / (perf_counter() - began)
        unknown = index.tier_counters()["device"]["unknown"]
        if index.counters()["invalid"] or unknown or not len(each):
            raise RouterError("the traffic differs from its specification, or no reader ran")
        points = percentiles(each / 1000, 50, 99, 99.9, 100)
        return {
            "reads": len(each),
            **dict(zip(("p50_us", "p99_us", "p999_us", "max_us"), points, strict=True)),
            "blocks_per_s": blocks_per_s,
            "idle_reads_per_s": reads_per_s,
        }


def _read(
    index: EventIndex,
    workload: Workload,
    workers: int,
    readers: int,
    mean_gap_us: int,
    capacity: int,
    write: Callable[[], float] | None,
) -> tuple[NDArray[np.float64], float]:
    """The ns of every read of `readers` threads: beside a writer, or until each has `capacity`."""
    stop = np.zeros(1, np.uint32)
    times = [np.zeros(capacity, np.uint32) for _ in range(readers)]
    counts = [0] * readers

    def read(i: int) -> None:
        counts[i] = read_prompts(
            index.native,
            workload.hashes,
            workload.starts,
            workers,
            seed=i + 1,
            mean_gap_us=mean_gap_us,
            each_ns=times[i],
            stop=stop,
        )

    threads = [threading.Thread(target=read, args=(i,)) for i in range(readers)]
    for thread in threads:
        thread.start()
    try:
        while write is not None and not all(some[0] for some in times):
            sleep(0.0001)  # every one of them has begun
        rate = 0.0 if write is None else write()
    finally:
        stop[0] = write is not None
        for thread in threads:
            thread.join()
    found = [some[:count] for some, count in zip(times, counts, strict=True)]
    return np.concatenate(found).astype(np.float64), rate


def measure(config: ConcurrentBenchConfig) -> dict[str, Any]:
    """One result per message size and number of readers."""
    results = []
    for size in config.message_blocks:
        workload = make_workload(config.workers, config.blocks, size)
        one = partial(measure_round, workload, config.workers, config.mean_gap_us)
        rounds = measure_in_turns(
            {readers: partial(one, readers) for readers in config.readers}, config.rounds
        )
        results += [
            {"message_blocks": size, "readers": readers} | rounds.spread(readers)
            for readers in config.readers
        ]
    return {"results": results}


def tables(result: Mapping[str, Any]) -> list[Table]:
    columns = (
        Column("blocks of a message", "message_blocks", 0),
        Column("readers", "readers", 0),
        Column("p50 us", "p50_us", 1),
        Column("p99 us", "p99_us", 1),
        Column("p99.9 us", "p999_us", 1),
        Column("max us", "max_us", 1),
        Column("blocks/s", "blocks_per_s", millions),
        Column("idle reads/s", "idle_reads_per_s", millions),
    )
    return [rows_table(result["results"], columns)]


run = Benchmark("concurrent", measure, tables)
