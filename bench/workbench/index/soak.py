"""A long run of stores and removals: does an index's memory stay flat? `bench index --soak`."""

from random import Random
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ....base.errors import EventError
from ....indexer.tree import RadixTree
from ...results import Column, rows_table
from .memory import resident_bytes

FAMILIES = 256  # prefixes that chains share
PREFIX_BLOCKS = 8
CHAINS = 20_000  # of 1 to 63 blocks below a shared prefix; each worker holds half of them
WORKERS = 8
WINDOWS = 20  # of each phase, for which figures are kept
SETTLED = 0.25  # of a phase: what the memory is compared with afterwards
SLACK = 1.05  # how much more than that still counts as flat


class _Traffic:
    """Random events of workers that cache and evict; content is new once none holds it."""

    def __init__(self, seed: int, chains: int, workers: int) -> None:
        self._random = Random(seed)
        self._content = np.random.default_rng(seed)
        self._workers = workers
        self._chains = [self._make_chain() for _ in range(chains)]
        self._holders: list[set[int]] = [set() for _ in range(chains)]
        prefixes = self._content.integers(0, 1 << 63, (FAMILIES, PREFIX_BLOCKS), np.uint64)
        self._prefixes = list(prefixes)

    def _make_chain(self) -> NDArray[np.uint64]:
        blocks = self._random.randrange(1, 64)
        return self._content.integers(1 << 63, (1 << 64) - 1, blocks, np.uint64)

    def begin(self, tree: RadixTree) -> None:
        """Every worker holds every prefix, which stays."""
        for holders in self._holders:
            holders.clear()
        for worker in range(self._workers):
            for prefix in self._prefixes:
                tree.store(worker, None, prefix, prefix)

    def apply_one(self, tree: RadixTree) -> int:
        """One event; returns its blocks."""
        at = int(self._random.random() * len(self._chains))
        worker = int(self._random.random() * self._workers)
        chain, holders = self._chains[at], self._holders[at]
        if worker in holders:
            holders.remove(worker)
            tree.remove(worker, chain[::-1])
            if not holders:
                self._chains[at] = self._make_chain()
        else:
            holders.add(worker)
            parent = int(self._prefixes[at % FAMILIES][-1])
            try:
                tree.store(worker, parent, chain, chain)
            except EventError as error:
                if error.code != "parent_evicted":
                    raise
        return len(chain)


def measure_soak(
    events: int, seed: int, *, chains: int = CHAINS, workers: int = WORKERS
) -> dict[str, Any]:
    """Apply `events` stored and removed events, half of them without a budget, half with one;
    figures of every window, and whether memory stayed flat in each phase.

    A phase is flat if neither the tree's own count nor the process's resident set ever rose more
    than 5 % above its highest value in the phase's first quarter. An event that contradicts what is
    held raises EventError: there are none in this traffic.
    """
    traffic = _Traffic(seed, chains, workers)
    unbounded = _run_phase("unbounded", RadixTree(), traffic, events // 2)
    budget = max(1, unbounded["windows"][-1]["blocks"] // 2)
    rest = events - events // 2
    bounded = _run_phase("budget", RadixTree(max_blocks=budget), traffic, rest)
    phases = [unbounded, bounded]
    return {"phases": phases, "budget": budget, "flat": all(phase["flat"] for phase in phases)}


def _run_phase(name: str, tree: RadixTree, traffic: _Traffic, events: int) -> dict[str, Any]:
    traffic.begin(tree)
    windows = []
    for window in range(WINDOWS):
        count = events * (window + 1) // WINDOWS - events * window // WINDOWS
        blocks, started = 0, perf_counter()
        for _ in range(count):
            blocks += traffic.apply_one(tree)
        seconds = perf_counter() - started
        windows.append(
            {
                "events": count,
                "events_per_s": count / seconds if count else 0.0,
                "changed_blocks": blocks,
                "blocks": len(tree),
                "memory_bytes": tree.memory_bytes(),
                "rss_bytes": resident_bytes(),
                "evicted_blocks": tree.evicted()[0],
            }
        )
    return {"phase": name, "windows": windows, "flat": _is_flat(windows)}


def _is_flat(windows: list[dict[str, Any]]) -> bool:
    settled = int(len(windows) * SETTLED)
    return all(
        max(each[key] for each in windows[settled:])
        <= SLACK * max(each[key] for each in windows[:settled])
        for key in ("memory_bytes", "rss_bytes")
    )


def soak_table(result: dict[str, Any]) -> Table:
    """The first settled and the last window of each phase."""
    parts = ("a quarter", int(WINDOWS * SETTLED) - 1), ("end", -1)
    rows = [
        {"phase": phase["phase"], "part": part, **phase["windows"][place]}
        for phase in result["phases"]
        for part, place in parts
    ]
    columns = (
        Column("phase", "phase"),
        Column("part", "part"),
        Column("events/s", "events_per_s", 0),
        Column("blocks", "blocks", 0),
        Column("tree", "memory_bytes", _megabytes),
        Column("resident", "rss_bytes", _megabytes),
        Column("evicted blocks", "evicted_blocks", 0),
    )
    return rows_table(rows, columns, "soak: " + ("flat" if result["flat"] else "GROWING"))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
