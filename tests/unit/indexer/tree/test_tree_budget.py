"""A tree with a budget: what it drops, what it keeps, and what it says of events about the rest."""

import pytest
from instruments.tree_check import check_integrity
from instruments.tree_faults import fail_allocations_after

from dynamo_router.base.errors import EventError
from dynamo_router.indexer.tree import RadixTree


def refusal(act, *args):
    with pytest.raises(EventError) as caught:
        act(*args)
    return caught.value.code


@pytest.mark.parametrize("budget", [0, -1, 2**64])
def test_a_budget_that_holds_nothing_is_refused(budget):
    with pytest.raises(ValueError, match="max_blocks must be at least 1"):
        RadixTree(max_blocks=budget)
    with pytest.raises(TypeError):
        RadixTree(max_blocks="1")


def test_branches_of_use_longest_ago_are_dropped_first_and_from_their_ends():
    tree = RadixTree(max_blocks=100)
    for chain in range(10):
        tree.store(
            1, None, range(100 * chain, 100 * chain + 10), range(100 * chain, 100 * chain + 10)
        )
    for used in (0, 4, 9):
        tree.match(range(100 * used, 100 * used + 10))
    tree.store(2, None, range(5000, 5020), range(5000, 5020))
    check_integrity(tree)
    assert 94 <= len(tree) <= 100  # a little below, so that the next event need not drop any
    for used in (0, 4, 9):
        assert tree.match(range(100 * used, 100 * used + 10)).scores == {(1, 0): 10}
    assert tree.match(range(5000, 5020)).scores == {(2, 0): 20}
    assert sum(len(tree.match([100 * chain])) for chain in range(10)) == 8
    blocks, branches = tree.evicted()
    assert blocks == 120 - len(tree) == tree.num_missing(1) and branches == 3
    assert tree.num_missing(2) == 0


def test_a_prefix_outlives_what_continues_it():
    tree = RadixTree(max_blocks=64)
    tree.store(1, None, range(32), range(32))
    for branch in range(100, 1100, 100):
        tree.store(1, 31, range(branch, branch + 10), range(branch, branch + 10))
        check_integrity(tree)
        assert tree.match(range(32)).scores == {(1, 0): 32}
        assert tree.match([*range(32), *range(branch, branch + 10)]).scores == {(1, 0): 42}


def test_children_of_dropped_blocks_are_told_from_lost_events():
    tree = RadixTree(max_blocks=4)
    tree.store(1, None, range(10), range(10))
    assert refusal(tree.store, 1, 9, [50], [50]) == "parent_evicted"
    assert refusal(tree.store, 2, 9, [50], [50]) == "parent_not_found"  # it lost nothing
    assert tree.num_missing(1) == 7 and len(tree) == 4
    tree.remove(1, [50, 9, 8])
    assert tree.num_missing(1) == 4
    assert refusal(tree.remove, 2, [9]) == "block_not_found"
    tree.clear_all_blocks(1)
    assert tree.num_missing(1) == 0
    assert refusal(tree.store, 1, 9, [50], [50]) == "parent_not_found"


def test_a_hash_that_moves_below_a_dropped_block_is_not_held_where_it_was():
    tree = RadixTree(max_blocks=4)
    tree.store(1, None, range(10), range(10))
    assert refusal(tree.store, 1, 9, [3], [77]) == "parent_evicted"
    assert tree.match(range(10)).scores == {(1, 0): 3}


@pytest.mark.parametrize("requests", range(0, 6))
def test_without_memory_the_budget_is_kept_all_the_same(requests):
    """Partial coverage has to become full when an edge is cut, which may take memory."""
    tree = RadixTree(max_blocks=40)
    tree.store(0, None, range(40), range(40))
    for worker in range(1, 12):
        tree.store(worker, None, range(20 + worker), range(20 + worker))
    fail_allocations_after(tree, requests)
    for worker in range(20, 23):
        try:
            tree.store(worker, None, range(100, 130), range(100, 130))
        except MemoryError:
            pass
        check_integrity(tree)
        assert len(tree) <= 40
    fail_allocations_after(tree, None)
    for worker, blocks in tree.match(range(40)).scores.items():
        assert blocks <= (40 if worker[0] == 0 else 20 + worker[0])


def test_what_workers_call_otherwise_counts_as_blocks():
    """Engines that hash differently take as much memory for one prompt as for one each."""
    tree = RadixTree(max_blocks=1000)
    for worker in range(64):
        own = worker << 32
        tree.store(worker, None, range(own, own + 50), range(50))
        check_integrity(tree)
        assert len(tree) + tree.num_aliases() <= 1000
    assert len(tree) > 1 and tree.num_aliases() > 500
    assert min(tree.evicted()) > 0
    scores = tree.match(range(50)).scores
    assert scores and all(overlap <= 50 for overlap in scores.values())


def test_removals_of_what_was_never_held_make_no_claim_too_many():
    """They lower what the tree thinks it dropped; a block below one of those is still elsewhere."""
    tree = RadixTree(max_blocks=4)
    tree.store(1, None, range(10), range(10))
    assert tree.num_missing(1) == 6
    tree.remove(1, [1000, 1001, 1002, 1003, 1004, 1005])
    assert tree.num_missing(1) == 0
    assert refusal(tree.store, 1, 9, [2], [77]) == "parent_not_found"
    assert tree.match(range(10)).scores == {(1, 0): 2}  # 2 is below 9 now
