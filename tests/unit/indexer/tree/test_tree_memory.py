"""The tree's memory: bounded, given back, refused at any moment; and the check of it."""

import random

import pytest
from instruments.tree_check import check_integrity
from instruments.tree_faults import fail_allocations_after, flip_bit

from dynamo_router.base.errors import EventError
from dynamo_router.indexer.tree import RadixTree
from dynamo_router.indexer.tree._inspect import read_edges


@pytest.fixture
def tree():
    tree = RadixTree()
    yield tree
    check_integrity(tree)


def test_memory_is_bounded_by_what_is_held(tree):
    """A long churn of chains leaves no more behind than one round of it."""
    rng = random.Random(5)
    hashes = [[rng.getrandbits(64) for _ in range(rng.randrange(1, 60))] for _ in range(300)]

    def churn():
        live = []
        for chain in hashes:
            tree.store(rng.randrange(20), None, chain, chain)
            live.append(chain)
        for worker in range(20):
            tree.clear_all_blocks(worker)
        assert len(tree) == 0

    for _ in range(3):
        churn()
    full = tree.memory_bytes()
    for _ in range(10):
        churn()
    assert tree.memory_bytes() <= full * 1.3


def random_chains(rng, n, longest):
    return [[rng.getrandbits(64) for _ in range(rng.randrange(1, longest))] for _ in range(n)]


@pytest.mark.parametrize("salted", [False, True])
def test_memory_is_given_back_as_blocks_leave(salted):
    """Whatever the order of removal, what stays allocated follows what is held."""
    rng = random.Random(9)
    tree = RadixTree()
    empty = tree.memory_bytes()
    chains = random_chains(rng, 3000, 60)
    for worker in range(3):
        for chain in chains:
            hashes = [external_hash ^ worker for external_hash in chain] if salted else chain
            tree.store(worker, None, hashes, chain)
    full, blocks = tree.memory_bytes(), len(tree)
    rng.shuffle(chains)
    for left in (1000, 100, 10, 0):
        while len(chains) > left:
            chain = chains.pop()
            for worker in range(3):
                tree.remove(
                    worker, [external_hash ^ worker for external_hash in chain] if salted else chain
                )
        check_integrity(tree)
        assert tree.memory_bytes() <= full * 10 * len(tree) / blocks + empty + 8192
        assert all(
            tree.match(chain).scores == {(w, 0): len(chain) for w in range(3)} for chain in chains
        )
    for chain in random_chains(rng, 300, 60):
        tree.store(1, None, chain, chain)
    check_integrity(tree)


def test_what_many_workers_took_is_given_back_as_they_go(tree):
    """In whatever order."""
    few = 100
    order = list(range(5000))
    random.Random(3).shuffle(order)
    for worker in order[:few]:
        tree.store(worker, None, [1], [1])
    small = tree.memory_bytes()
    for worker in order[few:]:
        tree.store(worker, None, [1], [1])
    large = tree.memory_bytes()
    assert large > 10 * small
    leaving = order[few:]
    random.Random(4).shuffle(leaving)
    for worker in leaving:
        tree.remove_worker(worker)
    check_integrity(tree)
    assert tree.memory_bytes() < 3 * small
    assert tree.match([1]).scores == {(worker, 0): 1 for worker in order[:few]}
    for worker in order[:few]:
        tree.remove_worker(worker)
    assert tree.workers() == []


def test_memory_is_given_back_when_a_worker_goes():
    tree = RadixTree()
    chains = random_chains(random.Random(1), 2000, 100)
    for chain in chains[:50]:
        tree.store(1, None, chain, chain)
    small = tree.memory_bytes()
    for chain in chains:
        tree.store(2, None, chain, chain)
    assert tree.memory_bytes() > 10 * small
    tree.remove_worker(2)
    check_integrity(tree)
    assert tree.memory_bytes() <= 2 * small
    for chain in chains[:50]:
        assert tree.match(chain).scores == {(1, 0): len(chain)}


@pytest.mark.parametrize(
    "what",
    [
        *("n_edges", "n_workers", "n_blocks", "shadowed", "free_blocks", "used", "bytes"),
        *("stale", "n_aliases", "edge.flags", "worker.edges"),
        *(
            "by_external_hash.count",
            "children.count",
            "edges_used",
            "owner",
            "local_hash",
            "external_hash",
            "filled",
        ),
        *("edge.parent", "edge.prev", "edge.len", "edge.cap", "edge.full", "edge.partial"),
        *("worker.blocks", "worker.aliases", "alias.block", "alias.external_hash"),
    ],
)
def test_the_integrity_check_sees_every_number_that_is_wrong(tree, what):
    """A tree with a hole, a branch, partial coverage, an alias, a free range and a free edge."""
    tree.store(1, None, [10, 11, 12, 13], [10, 11, 12, 13])
    tree.store(2, None, [10, 11, 12], [10, 11, 12])
    tree.store(3, None, [70, 71, 72], [10, 11, 40])
    for other in (100, 200, 300):
        tree.store(4, None, range(other, other + 5), range(other, other + 5))
    tree.remove(4, range(100, 105))
    tree.remove(4, range(200, 205))
    check_integrity(tree)
    partial = next(
        edge
        for edge, _, _, local_hashes, _, coverage in read_edges(tree)
        if any(blocks < len(local_hashes) for _, blocks in coverage)
    )
    at = 1 if what.startswith(("edge.", "worker.")) else 0
    if what == "edge.partial":
        at = partial
    elif "alias" in what:
        at = 2  # the third worker's
    flip_bit(tree, what, at)
    try:
        with pytest.raises(AssertionError):
            check_integrity(tree)
    finally:
        flip_bit(tree, what, at)


def test_a_number_that_is_not_there_cannot_be_flipped(tree):
    with pytest.raises(KeyError):
        flip_bit(tree, "nonsense")


def test_every_single_request_for_memory_may_fail():
    """As many runs of one scenario as it makes requests, another one of them failing each time."""
    chain = list(range(300))

    def run(tree):
        yield lambda: tree.store(1, None, chain, chain)
        for worker in range(2, 9):
            yield lambda w=worker: tree.store(w, None, chain[: 40 * w], chain[: 40 * w])
        yield lambda: tree.store(9, None, [k + 7000 for k in chain], chain)  # aliases
        yield lambda: tree.store(1, None, [*chain[:50], 900], [*chain[:50], 900])  # a split
        yield lambda: tree.remove(1, chain[100:200])
        yield lambda: tree.remove(9, [k + 7000 for k in chain])
        for worker in range(1, 9):
            yield lambda w=worker: tree.clear_all_blocks(w)

    for requests in range(1000):
        tree = RadixTree(max_blocks=280)
        fail_allocations_after(tree, requests)
        failed = False
        for act in run(tree):
            try:
                act()
            except MemoryError:
                failed = True
            except EventError:
                pass
            check_integrity(tree)
            assert len(tree) <= 280
        if not failed:
            break
    assert 10 < requests < 999


@pytest.mark.parametrize("requests", range(0, 8))
def test_without_memory_to_compact_nothing_is_lost(requests):
    tree = RadixTree()
    chains = random_chains(random.Random(2), 400, 40)
    for worker, chain in enumerate(chains):
        tree.store(worker % 2, None, [external_hash ^ worker % 2 for external_hash in chain], chain)
        tree.store(3, None, chain, chain)
    fail_allocations_after(tree, requests)
    for worker, chain in enumerate(chains[:380]):
        try:
            tree.remove(worker % 2, [external_hash ^ worker % 2 for external_hash in chain])
            tree.remove(3, chain)
        except MemoryError:
            fail_allocations_after(tree, None)
            tree.remove(3, chain)
            fail_allocations_after(tree, 0)
    check_integrity(tree)
    fail_allocations_after(tree, None)
    for worker, chain in enumerate(chains):
        held = {(worker % 2, 0): len(chain), (3, 0): len(chain)} if worker >= 380 else {}
        assert tree.match(chain).scores == held


@pytest.mark.parametrize("requests", range(0, 14))
def test_without_memory_the_tree_stays_consistent(tree, requests):
    chain = list(range(200))
    fail_allocations_after(tree, requests)
    failed = 0
    for act in (
        lambda: tree.store(1, None, chain, chain),
        lambda: tree.store(2, None, chain[:50], chain[:50]),
        lambda: tree.store(3, None, chain[:50] + [900], chain[:50] + [900]),
        lambda: [tree.store(w, None, chain[:10], chain[:10]) for w in range(200)],
        lambda: tree.store(1, 199, [7000], [300]),
        lambda: tree.store(4, None, [7000], [0]),
        lambda: tree.remove(1, [20, 25, 30]),
    ):
        try:
            act()
        except (MemoryError, EventError):
            failed += 1
        check_integrity(tree)
    assert failed
    fail_allocations_after(tree, None)
    for worker in range(200):
        tree.remove_worker(worker)
    assert len(tree) == 0
