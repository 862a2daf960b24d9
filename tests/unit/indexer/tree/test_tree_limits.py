"""What nobody sends in good faith, or at no size that a test can have."""

import pytest
from instruments.containers import enlarged_capacity, longest_probes, shrunk_capacity
from instruments.tree_check import check_integrity

from dynamo_router.indexer.tree import RadixTree

MOST = 2**32 - 2
TWO64 = 2**64
GOLDEN = 0x9E3779B97F4A7C15
INVERSE = pow(GOLDEN, -1, TWO64)


def crafted_key(n, product=lambda n: (7 << 32) + n):
    """Keys whose product with a multiplier that everybody knows has the same upper half."""
    folded = product(n) * INVERSE % TWO64
    return folded ^ (folded >> 32)


def test_keys_that_are_crafted_to_collide_do_not():
    tree = RadixTree()
    hashes = [crafted_key(n) for n in range(8000)]
    tree.store(1, None, hashes, range(8000))
    assert longest_probes(tree)[0] <= 300
    tree.remove(1, hashes)
    assert len(tree) == 0


def test_children_of_edges_with_foreseeable_numbers_do_not_collide():
    """Each edge has two children; the first hashes of the second ones make up for its number."""
    tree = RadixTree()
    offset = 0xD1B54A32D192ED03
    for edge in range(1, 3000):
        local = (5 - (edge + 1) * offset) % TWO64
        tree.store(1, None, [4 * edge], [edge])
        tree.store(1, 4 * edge, [4 * edge + 1], [9])
        tree.store(1, 4 * edge, [4 * edge + 2], [local])
    assert longest_probes(tree)[1] <= 300
    check_integrity(tree)


def test_two_trees_hash_differently():
    """Or their tables would have the same shape."""
    shapes = set()
    for _ in range(8):
        tree = RadixTree()
        tree.store(1, None, range(1, 3000), range(1, 3000))
        shapes.add(longest_probes(tree))
    assert len(shapes) > 1


@pytest.mark.parametrize("items", [0, 1, 2**31, 2_863_311_531, 3_435_973_837, MOST - 1, MOST])
def test_capacities_of_billions_do_not_wrap(items):
    """32 bits do from 2.86e9 items on where arrays grow, from 3.44e9 where they shrink."""
    grown = enlarged_capacity(items, 16)
    assert grown == min(items + items // 2 + 16, MOST)
    assert grown > items or items == MOST
    assert shrunk_capacity(items, 16) == items + items // 4 + 16
