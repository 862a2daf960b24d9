"""Resident memory per cached block, and the first tree of a process apart from the second.

Each index is measured in a process of its own, this module run, because memory that an earlier one
gave back would be found again by the next.
"""

import asyncio
import ctypes
import gc
import resource
import sys
from collections.abc import Iterable
from functools import partial
from itertools import product
from time import perf_counter, process_time
from typing import Any, NamedTuple

import msgspec

from ....process.child_process import ask_module
from ...results import measure_in_turns
from .config import IndexBenchConfig
from .phases import read_requests
from .rivals import IndexAdapter, available_adapters
from .workload import hash_prompts, plan_workload

TIMEOUT_S = 600.0


class Ask(msgspec.Struct):
    """What one child is to measure."""

    index: str
    block_size: int
    workers: int
    trace: str | None
    requests: int
    seed: int


def measure_memory(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per block size, worker count and index.

    An entry is one block held by one worker. `first` and `second` are store rates of the first
    tree in a fresh process and of one made when the first was gone, by the clock and (`_cpu`) by
    what they took of a core; `first_faults` are pages that the kernel had to find for the first.
    RouterError if a child fails.
    """
    results = []
    for block_size, workers, name in product(config.block_size, config.workers, config.indexes):
        if name in ("lists", "events") and "arrays" in config.indexes:
            continue  # the same tree
        ask = Ask(name, block_size, workers, config.trace, config.requests, config.seed)
        run = partial(_in_child, ask)
        measured = measure_in_turns({name: run}, min(3, config.rounds)).spread(name)
        setting = {"block_size": block_size, "workers": workers, "contender": name}
        results.append(setting | measured | {"entries": round(measured["entries"]["median"])})
    return results


def _in_child(ask: Ask) -> dict[str, float]:
    what = f"measuring the memory of {ask.index}"
    return asyncio.run(ask_module(__name__, ask, dict[str, float], what, TIMEOUT_S))


def measure_here(ask: Ask) -> dict[str, float]:
    """In this process; only in a fresh one does it mean anything."""
    config = IndexBenchConfig(trace=ask.trace, requests=ask.requests)
    prompts = hash_prompts(read_requests(config), ask.block_size)
    stores = plan_workload(
        prompts, block_size=ask.block_size, workers=ask.workers, cache_blocks=1, seed=ask.seed
    ).stores
    entries = sum(len(store.local_hashes) for store in stores)
    make = available_adapters()[ask.index]
    index = make()
    # The arguments are made before, so that they are not counted.
    ready = [index.ready_store(store) for store in stores]
    give_back_memory()
    gc.disable()
    before = resident_bytes()
    first = _store(index, ready)
    give_back_memory()
    used = resident_bytes() - before
    del index
    gc.collect()
    second = _store(make(), ready)
    return {
        "entries": entries,
        "bytes_per_entry": used / entries,
        "first": entries / first.seconds,
        "second": entries / second.seconds,
        "first_cpu": entries / first.cpu_seconds,
        "second_cpu": entries / second.cpu_seconds,
        "first_faults": first.faults,
        "second_faults": second.faults,
    }


class Fill(NamedTuple):
    """What filling one tree took."""

    seconds: float
    cpu_seconds: float
    faults: int


def _store(index: IndexAdapter, ready: Iterable[Any]) -> Fill:
    faults, cpu, started = _page_faults(), process_time(), perf_counter()
    for each in ready:
        index.store(each)
    return Fill(perf_counter() - started, process_time() - cpu, _page_faults() - faults)


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def give_back_memory() -> None:
    """Return what was freed to the system, where its C library can, so that it counts anew."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Bytes of this process in memory now (Linux); elsewhere the most it ever had."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    ask = msgspec.json.decode(sys.stdin.buffer.read(), type=Ask)
    sys.stdout.buffer.write(msgspec.json.encode(measure_here(ask)))
