"""What can be made to go wrong in a tree, and watched in it, for tests.

Built by tests/instruments/build.py over the kernels' own declarations; no part of the package.
"""
from dynamo_router.indexer.tree._radix cimport RadixTree
from dynamo_router.indexer.tree._tree cimport ON_PATH, Tree
from dynamo_router.base.native._yield_points cimport YieldPoints
from libc.stdint cimport uint32_t, uint64_t

from contextlib import contextmanager


def fail_allocations_after(RadixTree tree not None, requests):
    """Let so many further requests for memory succeed, and all later ones fail; None: none fails."""
    tree.tree.memory.fail_after = -1 if requests is None else requests


cdef void call_watcher(void* watcher) noexcept nogil:
    with gil:
        (<object>watcher)()


@contextmanager
def watched_yield_points(RadixTree tree not None, uint32_t step, watcher):
    """Meanwhile call `watcher()` where others may read the tree: every `step` blocks of work, and
    where they are let in for a while.

    It may read the tree, and must not raise.
    """
    if step == 0:
        raise ValueError("a step of no blocks")
    tree.tree.memory.yield_points = YieldPoints(
        call_watcher, call_watcher, call_watcher, <void*>watcher, step, 0
    )
    try:
        yield
    finally:
        tree.tree.memory.yield_points.yield_to_readers = NULL


def flip_bit(RadixTree tree not None, what, uint32_t at=0):
    """Flip the lowest bit of one number of the structure, the one at `at` if there are several.

    For tests that check_integrity sees it. A second call makes it good, and must come before any
    other use of the tree. KeyError: no such number.
    """
    cdef Tree* t = tree.tree
    cdef uint32_t* small = NULL
    cdef uint64_t* large = NULL
    if what == "n_edges":
        small = &t.n_edges
    elif what == "n_workers":
        small = &t.n_workers
    elif what == "free_blocks":
        small = &t.blocks.free_blocks
    elif what == "used":
        small = &t.blocks.used
    elif what == "by_external_hash.count":
        small = &t.by_external_hash.count
    elif what == "children.count":
        small = &t.children.count
    elif what == "edges_used":
        small = &t.edges_used
    elif what == "owner":
        small = &t.blocks.owner[at]
    elif what == "edge.parent":
        small = &t.edges[at].parent
    elif what == "edge.prev":
        small = &t.edges[at].prev
    elif what == "edge.len":
        small = &t.edges[at].len
    elif what == "edge.cap":
        small = &t.edges[at].cap
    elif what == "edge.full":
        small = &t.edges[at].full.few[0]
    elif what == "edge.partial":
        small = &t.edges[at].partial[0].blocks
    elif what == "worker.aliases":
        small = &t.workers[at].aliases.used
    elif what == "alias.block":
        small = &t.workers[at].aliases.all[0].block
    elif what == "worker.edges":
        small = &t.workers[at].edges[0]
    elif what == "edge.flags":
        t.edges[at].flags ^= ON_PATH
    elif what == "shadowed":
        large = &t.shadowed
    elif what == "stale":
        large = &t.stale
    elif what == "n_aliases":
        large = &t.n_aliases
    elif what == "n_blocks":
        large = &t.n_blocks
    elif what == "worker.blocks":
        large = &t.workers[at].blocks
    elif what == "alias.external_hash":
        large = &t.workers[at].aliases.all[0].external_hash
    elif what == "local_hash":
        large = &t.blocks.local_hash[at]
    elif what == "external_hash":
        large = &t.blocks.external_hash[at]
    elif what == "filled":
        large = &t.blocks.filled[at]
    elif what == "bytes":
        t.memory.bytes ^= 1
    else:
        raise KeyError(what)
    if small != NULL:
        small[0] ^= 1
    if large != NULL:
        large[0] ^= 1
