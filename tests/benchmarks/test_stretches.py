"""The longest stretches of the writer's work that keep readers of the index out."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from instruments.stretches import StretchWatch
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from dynamo_router.indexer import RadixTree

WORKERS = 64
EVENT, SHORT = 1000, 8
"""blocks of an event"""
runs = pytest.mark.parametrize("run", [EVENT, SHORT])


@pytest.fixture
def hashes(measured: bool) -> NDArray[np.uint64]:
    blocks = 6_000_000 if measured else 10_000
    return np.random.default_rng(7).integers(0, 2**64, blocks, np.uint64)


def watch(
    benchmark: BenchmarkFixture, tree: RadixTree, acts: Iterable[Callable[[], object]]
) -> None:
    """Carry the acts out once; the longest stretch, in us of CPU, is in the extra information."""
    stretches = StretchWatch(tree)

    def carry_out() -> None:
        for act in acts:
            stretches.begin()
            act()
            stretches.end()

    benchmark.pedantic(carry_out)
    longest = stretches.take_longest()
    benchmark.extra_info["longest_us"] = longest
    print(f"{benchmark.name}: readers are kept out for {longest:.0f} us at most")
    assert longest > 0


def stores(tree: RadixTree, hashes: NDArray[np.uint64], run: int) -> list[Callable[[], object]]:
    def store(at: int) -> None:
        blocks = hashes[at : at + run]
        tree.store(at // run % WORKERS, None, blocks, blocks)

    return [lambda at=at: store(at) for at in range(0, len(hashes), run)]  # type: ignore[misc]


@runs
def test_growth(benchmark: BenchmarkFixture, hashes: NDArray[np.uint64], run: int) -> None:
    tree = RadixTree()
    watch(benchmark, tree, stores(tree, hashes, run))


@runs
def test_workers_removed(benchmark: BenchmarkFixture, hashes: NDArray[np.uint64], run: int) -> None:
    tree = RadixTree()
    for store in stores(tree, hashes, run):
        store()
    watch(
        benchmark,
        tree,
        [lambda worker=worker: tree.remove_worker(worker) for worker in range(WORKERS)],  # type: ignore[misc]
    )


def test_a_sweep_for_the_budget(benchmark: BenchmarkFixture, hashes: NDArray[np.uint64]) -> None:
    blocks = hashes[: len(hashes) // SHORT]
    tree = RadixTree(max_blocks=len(blocks))
    for at in range(len(blocks)):
        tree.store(at % WORKERS, None, blocks[at : at + 1], blocks[at : at + 1])
        tree.match(blocks[at : at + 1])
    watch(benchmark, tree, [lambda: tree.store(1, None, [1], [1])])


def test_a_block_below_a_path_of_another_tier(
    benchmark: BenchmarkFixture, hashes: NDArray[np.uint64]
) -> None:
    upper, lower = RadixTree(), RadixTree()
    path = hashes[:100_000]
    upper.store(1, None, path, path)
    watch(benchmark, lower, [lambda: lower.store_at(1, upper, int(path[-1]), [1], [1])])
