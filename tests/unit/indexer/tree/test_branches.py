"""The heaviest branches of a tree: bounded, parents first, and nothing that the tree has not."""

from contextlib import closing

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.indexer.approximate import ApproximateIndex
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.prefix_index import CacheBranch
from dynamo_router.indexer.tree import RadixTree, list_heaviest
from dynamo_router.indexer.tree._inspect import read_edges

CHAINS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(1, 3), min_size=1, max_size=6)), max_size=12
)


def tree_of(chains: list[tuple[int, list[int]]]) -> RadixTree:
    tree = RadixTree()
    for worker, local_hashes in chains:
        # A hash of its own for each prefix, the same for every worker.
        external = [
            hash(tuple(local_hashes[: i + 1])) & (2**63 - 1) for i in range(len(local_hashes))
        ]
        tree.store(worker, None, external, local_hashes)
    return tree


def branches(tree: RadixTree, looked_at: int, limit: int) -> list[CacheBranch]:
    return [CacheBranch(*branch) for branch in list_heaviest(tree, looked_at, limit)]


def path(found: list[CacheBranch], at: int) -> tuple[int, ...]:
    """The first hashes of a branch and of those above it: no two are alike."""
    branch = found[at]
    above = () if branch.parent is None else path(found, branch.parent)
    return (*above, branch.local_hash)


@given(CHAINS)
def test_with_capacity_for_all_it_is_the_whole_tree(chains: list[tuple[int, list[int]]]) -> None:
    tree = tree_of(chains)
    edges = {
        edge: (parent, local_hashes, dict(coverage))
        for edge, parent, _, local_hashes, _, coverage in read_edges(tree)
    }

    def wanted_path(edge: int) -> tuple[int, ...]:
        parent, local_hashes, _ = edges[edge]
        return (*(wanted_path(parent) if parent else ()), local_hashes[0])

    wanted = {
        wanted_path(edge): (len(local_hashes), coverage)
        for edge, (_, local_hashes, coverage) in edges.items()
    }
    found = branches(tree, 1000, 1000)
    assert {path(found, at) for at in range(len(found))} == wanted.keys()
    for at, branch in enumerate(found):
        blocks, coverage = wanted[path(found, at)]
        assert branch.blocks == blocks and branch.holders == len(coverage) and not branch.more
        listed = dict(branch.first_holders)
        assert len(listed) == min(6, len(coverage)) and listed.items() <= coverage.items()
        if branch.parent is None:
            assert branch.begin == 0
        else:
            above = found[branch.parent]
            assert branch.parent < at and branch.begin == above.begin + above.blocks


@given(CHAINS, st.integers(0, 8), st.integers(0, 5))
def test_bounds_are_kept_and_no_branch_is_without_those_above_it(
    chains: list[tuple[int, list[int]]], looked_at: int, limit: int
) -> None:
    tree = tree_of(chains)
    found = branches(tree, looked_at, limit)
    assert len(found) <= min(looked_at, limit)
    assert all(b.parent is None or b.parent < at for at, b in enumerate(found))


def test_what_many_hold_goes_before_what_is_new() -> None:
    tree = RadixTree()
    for worker in range(80):  # more holders than are listed in place
        tree.store(worker, None, [1, 2], [11, 12])
    for prompt in range(20):
        tree.store(0, None, [1000 + prompt], [2000 + prompt])
    (heaviest,) = branches(tree, 100, 1)
    assert (heaviest.local_hash, heaviest.blocks, heaviest.holders) == (11, 2, 80)
    assert len(heaviest.first_holders) == 6
    assert all(blocks == 2 for _, blocks in heaviest.first_holders)


def test_an_index_tells_of_workers_that_tell_and_of_those_that_do_not() -> None:
    hashes = np.array([5, 6], dtype=np.uint64)
    silent = ApproximateIndex()
    with closing(EventIndex(silent=silent)) as index:
        block = b'{"block_hash":1,"tokens_hash":9}'
        stored = b'{"event_id":0,"data":{"stored":{"parent_hash":null,"blocks":[%b]}}}' % block
        index.apply_cache_event((1, 0), stored)
        index.predict((2, 0), True)
        index.record((2, 0), hashes, hashes + 100, 0.0)
        told, predicted = index.branches(100, 100)
    assert told.local_hash == 9 and dict(told.first_holders) == {(1, 0): 1}
    assert predicted.local_hash == 5 and dict(predicted.first_holders) == {(2, 0): 2}
