"""How much work events are: counted at yield points, a block of work apart."""

import random

import pytest
from instruments.tree_check import check_integrity
from instruments.tree_faults import fail_allocations_after, watched_yield_points

from dynamo_router.base.errors import EventError
from dynamo_router.indexer.tree import RadixTree
from dynamo_router.indexer.tree._inspect import read_edges


def work_of(tree, act):
    """How many blocks' worth of work an act is."""
    points = []
    with watched_yield_points(tree, 1, lambda: points.append(0)):
        act()
    return len(points)


def store_branches(tree, worker, n, salt=0):
    """A chain of n blocks with a branch at each: as many edges, and the hashes of the chain."""
    chain = [10**6 + i for i in range(n)]
    hashes = [local + salt for local in chain]
    tree.store(worker, None, hashes, chain)
    for i in range(1, n):
        tree.store(worker, hashes[i - 1], [2 * 10**6 + salt + i], [2 * 10**6 + i])
    return chain, hashes


LEAVE = {
    "clear": lambda tree: tree.clear_all_blocks(7),
    "remove": lambda tree: tree.remove_worker(7),
}


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("salt", [0, 1 << 40])
def test_a_worker_leaves_with_work_for_what_it_holds(leave, salt):
    """Not for the edges and aliases of all others."""
    tree = RadixTree()
    store_branches(tree, 1, 3000)
    store_branches(tree, 2, 3000, salt=1 << 41)  # the same blocks under other hashes
    for first in range(0, 40, 10):
        tree.store(7, None, [salt + first, salt + first + 1], [first, first + 1])
    assert len(read_edges(tree)) > 3000
    assert work_of(tree, lambda: LEAVE[leave](tree)) <= 40
    check_integrity(tree)
    assert tree.num_blocks(7) == 0 and tree.num_blocks(1) == tree.num_blocks(2) == 5999


def test_a_fleet_that_resets_looks_at_each_of_its_edges_once():
    tree = RadixTree()
    for worker in range(64):
        for chain in range(100):
            first = 1000 * worker + 10 * chain
            tree.store(worker, None, range(first, first + 3), range(first, first + 3))
    edges = len(read_edges(tree))
    assert edges == 6400
    work = work_of(tree, lambda: [tree.clear_all_blocks(worker) for worker in range(64)])
    assert work <= 8 * edges  # 64 walks of the tree would be 32 times as many as it has
    assert len(tree) == 0


def test_a_worker_that_lost_most_leaves_with_work_for_the_rest():
    tree = RadixTree()
    chain, hashes = store_branches(tree, 7, 2000)
    store_branches(tree, 1, 2000)
    tree.remove(7, [2 * 10**6 + i for i in range(1, 2000)])
    tree.remove(7, hashes[:10:-1])
    assert tree.num_blocks(7) == 11
    assert work_of(tree, lambda: tree.clear_all_blocks(7)) <= 200
    check_integrity(tree)


@pytest.mark.parametrize("requests", range(0, 6))
def test_without_memory_for_a_list_a_worker_leaves_all_the_same(requests):
    tree = RadixTree()
    chain, hashes = store_branches(tree, 1, 40)
    fail_allocations_after(tree, requests)
    for n in range(1, 40):
        try:
            tree.store(7, None, hashes[:n], chain[:n])
        except MemoryError:
            pass
        check_integrity(tree)
    fail_allocations_after(tree, None)
    tree.clear_all_blocks(7)
    check_integrity(tree)
    assert tree.num_blocks(7) == 0 and tree.match(chain).scores == {(1, 0): 40}
    tree.store(7, None, hashes, chain)
    assert tree.match(chain).scores == {(1, 0): 40, (7, 0): 40}


def test_what_a_worker_left_behind_is_no_block_of_anybody():
    """Hashes stay in the table for a while after their blocks; positions are used again."""
    rng = random.Random(3)
    tree = RadixTree()
    tree.store(1, None, range(1000), range(1000))
    for round in range(30):
        hashes = [rng.randrange(5000) for _ in range(200)]
        hashes = list(dict.fromkeys(hashes))
        chain = [10_000 + local for local in hashes]
        tree.store(2, None, hashes, chain)
        check_integrity(tree)
        tree.store(3, None, hashes[:50], [1, *range(49)])  # the same names for other blocks
        check_integrity(tree)
        tree.remove_worker(2)
        check_integrity(tree)
        with pytest.raises(EventError):
            tree.store(2, hashes[0], [1], [1])
        if round % 3 == 0:
            tree.clear_all_blocks(3)
            check_integrity(tree)
        assert tree.match(range(1000)).scores[1, 0] == 1000
    tree.remove_worker(3)
    tree.remove_worker(1)
    check_integrity(tree)
    assert len(tree) == 0


@pytest.mark.parametrize("moved", [False, True])
def test_storing_again_what_is_held_under_other_names_is_linear(moved):
    """Every block of a path with as many edges: held where it is, or held somewhere else before."""
    n = 3000
    tree = RadixTree()
    chain, hashes = store_branches(tree, 1, n)
    tree.store(7, None, [5], [5])
    tree.store(1, None, [1 << 50], [5])  # worker 1 has one alias
    if moved:
        tree.store(1, None, [1 << 51], [6])
        for i in range(n):  # a hash of each block to come is held elsewhere
            tree.store(1, 1 << 51, [(1 << 52) + i], [i + 7])
        hashes = [(1 << 52) + i for i in range(n)]
    assert work_of(tree, lambda: tree.store(1, None, hashes, chain)) <= 12 * n
    check_integrity(tree)
    assert tree.match(chain).scores == {(1, 0): n}


def test_a_sweep_for_the_budget_has_points_for_readers():
    tree = RadixTree(max_blocks=5000)
    for i in range(5000):
        tree.store(1, None, [i], [i])
        tree.match([i])
    assert work_of(tree, lambda: tree.store(1, None, [6000], [6000])) >= 5000


def test_giving_memory_back_has_points_for_readers():
    tree = RadixTree()
    for first in range(0, 40_000, 20):
        worker = 1 if first % 800 == 0 else 2
        tree.store(worker, None, range(first, first + 20), range(first, first + 20))
    full = tree.memory_bytes()
    # 1950 edges leave, and what stays moves to where they were: 950 blocks in 47 edges at least.
    assert work_of(tree, lambda: tree.remove_worker(2)) >= 1950 + 900
    assert tree.memory_bytes() < full // 7
    check_integrity(tree)


def test_a_block_far_below_another_tiers_path_has_points_for_readers():
    upper, tree = RadixTree(), RadixTree()
    upper.store(1, None, range(20_000), range(20_000))
    assert work_of(tree, lambda: tree.store_at(1, upper, 19_999, [7], [20_000])) >= 20_000
    # The path is there: it is compared.
    assert work_of(tree, lambda: tree.store_at(1, upper, 19_999, [8], [20_001])) >= 1000
    check_integrity(tree)


def test_arrays_and_tables_grow_beside_readers():
    """Nothing else lets readers in here: a step is longer than the event."""
    tree = RadixTree()
    seen = []
    tree.store(1, None, [1], [1])
    with watched_yield_points(tree, 1 << 30, lambda: seen.append(tree.match([1]).scores)):
        tree.store(1, 1, range(2, 30_000), range(2, 30_000))
        tree.remove_worker(1)
    assert len(seen) >= 4
    assert set(seen[0].values()) <= {1} and all(len(scores) <= 1 for scores in seen)
