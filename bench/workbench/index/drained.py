"""The mixed load through EventIndex, as the router runs it: one thread of Python posts messages
and looks up, one native thread applies. The clock stops when the mailbox is empty.
"""

import gc
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from time import perf_counter, process_time
from typing import Any

import numpy as np

from ....base.identity import WorkerWithDpRank
from ....indexer.event_index import EventIndex
from ....indexer.wire import EventWriter
from ...results import measure_in_turns, percentiles
from .config import IndexBenchConfig
from .phases import read_requests
from .workload import Hashes, Prompt, Removed, Stored, hash_prompts, plan_workload

Step = bytes | Hashes  # a message of the event plane, or a prompt to look up


def measure_drained(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per block size and worker count.

    A logical operation is a look-up, a stored or a removed event; block operations are the hashes
    in them. `drain_share` is how much of the time passed after the last operation was issued.
    """
    requests = read_requests(config)
    results = []
    for block_size, workers in product(config.block_size, config.workers):
        mixed = plan_workload(
            hash_prompts(requests, block_size),
            block_size=block_size,
            workers=workers,
            cache_blocks=max(1, config.cache_tokens // block_size),
            seed=config.seed,
        ).mixed
        steps = list(as_messages(mixed))
        blocks = sum(
            len(op.sequence_hashes) if isinstance(op, Removed) else len(op.local_hashes)
            for op in mixed
        )
        run = partial(_run, steps, blocks, workers)
        measured = measure_in_turns({"mixed": run}, config.rounds).spread("mixed")
        setting = {"block_size": block_size, "workers": workers}
        results.append(setting | {"operations": len(steps), "blocks": blocks} | measured)
    return results


def as_messages(operations: Sequence[Prompt | Removed | Stored]) -> Iterator[Step]:
    """Each event in a message of its own, numbered as its worker's publisher numbers them."""
    writer = EventWriter()
    last_ids: dict[int, int] = {}  # of each worker's events
    for op in operations:
        if isinstance(op, Prompt):
            yield op.local_hashes
            continue
        event_id = last_ids[op.worker] = last_ids.get(op.worker, 0) + 1
        if isinstance(op, Stored):
            writer.stored(op.worker, 0, event_id, op.parent, op.sequence_hashes, op.local_hashes)
        else:
            writer.removed(op.worker, 0, event_id, op.sequence_hashes)
        yield writer.message(op.worker + 1, event_id - 1, 0, "kv-events")


def _run(steps: Sequence[Step], blocks: int, workers: int) -> dict[str, float]:
    index = EventIndex()
    overlaps = np.zeros(workers, np.uint32)
    each_us: list[float] = []
    waits = 0
    try:
        for worker in range(workers):
            index.bind(WorkerWithDpRank(worker, 0), worker)
        gc.collect()
        gc.disable()
        cpu = process_time()
        started = perf_counter()
        for step in steps:
            if isinstance(step, bytes):
                while not index.post(step):
                    waits += 1
                    index.flush()
            else:
                before = perf_counter()
                index.match(step, overlaps)
                each_us.append((perf_counter() - before) * 1e6)
        issued = perf_counter()
        index.flush()
        ended = perf_counter()
        cpu = max(process_time() - cpu, 1e-9)
    finally:
        gc.enable()
        index.close()
    p50, p99 = percentiles(each_us, 50, 99)
    seconds = ended - started
    return {
        "operations_per_s": len(steps) / seconds,
        "blocks_per_s": blocks / seconds,
        "blocks_per_cpu_s": blocks / cpu,
        "drain_share": (ended - issued) / seconds,
        "match_p50_us": p50,
        "match_p99_us": p99,
        "waits": waits,
    }
