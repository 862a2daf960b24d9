"""dynamo-router bench concurrent: the index, read while events are written to it at full speed."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ....base.errors import RouterError
from ....base.identity import WorkerWithDpRank
from ....indexer.event_index import EventIndex
from ....indexer.wire import EventWriter
from ....process.settings import bad_setting, option
from ...results import Output, format_number, new_table, percentiles, spread
from ._read_write import read_prompts

PROMPTS = 256
PROMPT_BLOCKS = 64
SHARED_BLOCKS = 48  # of a prompt, with the other prompts of its family
FAMILIES = 16
HOLDERS = 4  # one in so many workers holds a prompt
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
        for key in ("workers", "blocks", "mean_gap_us", "rounds"):
            if getattr(self, key) < 1:
                raise bad_setting(key, f"{getattr(self, key)} must be at least 1")
        if self.workers > 4096:
            raise bad_setting("workers", f"{self.workers} must be at most 4096")
        for key in ("readers", "message_blocks"):
            if not getattr(self, key) or min(getattr(self, key)) < 1:
                raise bad_setting(key, "must be numbers of at least 1")


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


class Round(NamedTuple):
    """One setting in one round."""

    each_us: NDArray[np.float64]  # of all reads beside the writer
    blocks_per_s: float  # written beside the readers
    reads_per_s: float  # of all readers together, back to back, with nothing written


def measure_round(workload: Workload, workers: int, readers: int, mean_gap_us: int) -> Round:
    """Read beside a writer, then alone."""
    index = EventIndex(max_messages=len(workload.traffic) + 1, max_bytes=1 << 40)
    try:
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
            raise RouterError("the traffic is not what it is meant to be, or nobody read")
        return Round(each / 1000, blocks_per_s, reads_per_s)
    finally:
        index.close()


def _read(
    index: EventIndex,
    workload: Workload,
    workers: int,
    readers: int,
    mean_gap_us: int,
    capacity: int,
    write: Callable[[], float] | None,
) -> tuple[NDArray[np.float64], float]:
    """The ns of every read of so many threads: beside a writer, or until each has `capacity`."""
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


def measure_concurrent(config: ConcurrentBenchConfig) -> list[dict[str, Any]]:
    """One result per message size and number of readers."""
    results = []
    for size in config.message_blocks:
        workload = make_workload(config.workers, config.blocks, size)
        rounds: dict[int, list[Round]] = defaultdict(list)
        for turn in range(config.rounds):
            first = turn % len(config.readers)
            for readers in (*config.readers[first:], *config.readers[:first]):
                one = measure_round(workload, config.workers, readers, config.mean_gap_us)
                rounds[readers].append(one)
        results += [
            {"message_blocks": size, "readers": readers} | _digest(rounds[readers])
            for readers in config.readers
        ]
    return results


def _digest(rounds: Sequence[Round]) -> dict[str, Any]:
    points = [percentiles(one.each_us, 50, 99, 99.9, 100) for one in rounds]
    names = ("p50_us", "p99_us", "p999_us", "max_us")
    return {
        "reads": sum(len(one.each_us) for one in rounds),
        **{name: spread([point[i] for point in points]) for i, name in enumerate(names)},
        "blocks_per_s": spread([one.blocks_per_s for one in rounds]),
        "idle_reads_per_s": spread([one.reads_per_s for one in rounds]),
    }


def concurrent_table(results: Sequence[dict[str, Any]]) -> Table:
    """The results: medians of the rounds."""
    table = new_table("message", "readers")
    for column in ("p50 us", "p99 us", "p99.9 us", "max us", "blocks/s", "idle reads/s"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            f"{result['message_blocks']} blocks",
            str(result["readers"]),
            *(
                format_number(result[key]["median"], 1)
                for key in ("p50_us", "p99_us", "p999_us", "max_us")
            ),
            f"{result['blocks_per_s']['median'] / 1e6:.1f} M",
            f"{result['idle_reads_per_s']['median'] / 1e6:.2f} M",
        )
    return table


def run(config: ConcurrentBenchConfig) -> int:
    """The command."""
    output = Output(config.json)
    results = measure_concurrent(config)
    output.print(concurrent_table(results))
    content = {
        "benchmark": "concurrent",
        "workers": config.workers,
        "blocks": config.blocks,
        "mean_gap_us": config.mean_gap_us,
        "rounds": config.rounds,
        "results": results,
    }
    output.write(content)
    return 0
