"""The longest stretches of the writer's work that keep readers of the index out."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ....indexer import RadixTree
from ...results import spread
from ._stretches import StretchWatch
from .config import IndexBenchConfig

EVENT = 1000  # blocks
SHORT = 8  # blocks of an edge, in the second half
WORKERS = 64
MOST_BLOCKS = 6_000_000

Acts = tuple[str, RadixTree, Iterator[Callable[[], object]]]


def measure_stretches(config: IndexBenchConfig) -> list[dict[str, Any]]:
    """One result per kind of work, of a tree of up to 6 M blocks: us of the thread's CPU time."""
    blocks = min(MOST_BLOCKS, config.max_blocks)
    longest: dict[str, list[float]] = {}
    for round in range(min(3, config.rounds)):
        hashes = np.random.default_rng(config.seed + round).integers(0, 2**64, blocks, np.uint64)
        for name, tree, acts in _work(hashes):
            watch = StretchWatch(tree)
            for act in acts:
                watch.begin()
                act()
                watch.end()
            longest.setdefault(name, []).append(watch.take_longest())
            del watch  # it lets go of the tree, which the next work may be of
    return [
        {"work": name, "blocks": blocks, "longest_us": spread(each)}
        for name, each in longest.items()
    ]


def _work(hashes: np.ndarray[Any, np.dtype[np.uint64]]) -> Iterator[Acts]:
    for run in (EVENT, SHORT):
        tree = RadixTree()
        runs = [hashes[at : at + run] for at in range(0, len(hashes), run)]
        yield (
            f"growth, events of {run}",
            tree,
            (
                lambda i=i, run=run, tree=tree: tree.store(i % WORKERS, None, run, run)  # type: ignore[misc]
                for i, run in enumerate(runs)
            ),
        )
        yield (
            f"workers removed, edges of {run}",
            tree,
            (
                lambda worker=worker, tree=tree: tree.remove_worker(worker)  # type: ignore[misc]
                for worker in range(WORKERS)
            ),
        )
    tree = RadixTree(max_blocks=len(hashes) // SHORT)
    for i in range(len(hashes) // SHORT):
        tree.store(i % WORKERS, None, hashes[i : i + 1], hashes[i : i + 1])
        tree.match(hashes[i : i + 1])
    yield "a sweep for the budget", tree, iter([lambda: tree.store(1, None, [1], [1])])
    upper, lower = RadixTree(), RadixTree()
    path = hashes[:100_000]
    upper.store(1, None, path, path)
    yield (
        "a block below 100,000 of another tier",
        lower,
        iter([lambda: lower.store_at(1, upper, int(path[-1]), [1], [1])]),
    )
