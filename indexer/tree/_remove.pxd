"""Blocks that leave a worker."""
from libc.stdint cimport uint32_t, uint64_t

from ...runtime.native._table cimport NONE
from ...runtime.native._yield_points cimport yield_after, yield_limit
from ._edge cimport edge_cover, edge_coverage
from ._external_hashes cimport alias_drop, find_held, forget_alias, worker_calls_block
from ._shape cimport settle_edge, split_edge
from ._tree cimport TREE_BLOCK_NOT_FOUND, TREE_NO_MEMORY, TREE_OK, Edge, Tree


cdef inline bint uncover_run(
    Tree* tree, uint32_t worker, uint32_t first, uint32_t last
) noexcept nogil:
    """Take blocks [first, last] of one edge, all covered, from a worker; false without memory."""
    cdef uint32_t e = tree.blocks.owner[first]
    cdef uint32_t covered = tree.edges[e].start + edge_coverage(&tree.edges[e], worker)
    cdef uint32_t block
    if last + 1 < covered:
        # What it keeps behind them must be a prefix of an edge again.
        if not split_edge(tree, e, last + 1 - tree.edges[e].start):
            return False
        e = tree.blocks.owner[first]
    if not edge_cover(&tree.edges[e], &tree.memory, worker, first - tree.edges[e].start):
        return False
    tree.workers[worker].blocks -= last + 1 - first
    if tree.workers[worker].aliases != 0:
        for block in range(first, last + 1):
            forget_alias(tree, worker, block)
    settle_edge(tree, e)
    return True


cdef inline bint uncover_blocks(
    Tree* tree, uint32_t worker, const uint64_t* external_hashes, uint32_t n, uint32_t* unknown
) noexcept nogil:
    """Take blocks from a worker, counting those that it does not hold; false without memory."""
    cdef uint32_t i = 0
    cdef uint32_t first, last, begin, end, most
    cdef const Edge* edge
    unknown[0] = 0
    while i < n:
        first = last = find_held(tree, worker, external_hashes[i])
        i += 1
        if first == NONE:
            unknown[0] += 1
            yield_after(&tree.memory.yield_points, 1)
            continue
        # Engines evict along a chain: gather the neighbours that the event names next.
        edge = &tree.edges[tree.blocks.owner[first]]
        begin = edge.start
        end = begin + edge_coverage(edge, worker)
        most = yield_limit(&tree.memory.yield_points, n) - 1
        if (
            i < n
            and first > begin
            and worker_calls_block(tree, worker, first - 1, external_hashes[i])
        ):
            while (
                i < n
                and first > begin
                and last - first < most
                and worker_calls_block(tree, worker, first - 1, external_hashes[i])
            ):
                first -= 1
                i += 1
        else:
            while (
                i < n
                and last + 1 < end
                and last - first < most
                and worker_calls_block(tree, worker, last + 1, external_hashes[i])
            ):
                last += 1
                i += 1
        if not uncover_run(tree, worker, first, last):
            return False
        yield_after(&tree.memory.yield_points, last + 1 - first)
    return True


cdef inline int remove_blocks(
    Tree* tree, uint32_t worker, const uint64_t* external_hashes, uint32_t n, uint32_t* unknown
) noexcept nogil:
    """Take blocks from a worker: a TreeStatus. *unknown: how many it neither holds nor has lost."""
    cdef uint64_t dropped
    if not uncover_blocks(tree, worker, external_hashes, n, unknown):
        return TREE_NO_MEMORY
    # What was dropped to keep the budget is not known any more, and rightly said to be gone.
    dropped = min(<uint64_t>unknown[0], tree.workers[worker].missing)
    tree.workers[worker].missing -= dropped
    unknown[0] -= <uint32_t>dropped
    return TREE_OK if unknown[0] == 0 else TREE_BLOCK_NOT_FOUND


cdef inline void clear_worker(Tree* tree, uint32_t worker) noexcept nogil:
    """Take all blocks from a worker."""
    cdef uint32_t e, alias
    tree.workers[worker].missing = 0
    if tree.workers[worker].aliases != 0:
        for alias in range(tree.aliases.used, 0, -1):
            if tree.aliases.all[alias - 1].worker == worker:
                alias_drop(&tree.aliases, alias - 1)
            yield_after(&tree.memory.yield_points, alias & 1)
        tree.workers[worker].aliases = 0
    if tree.workers[worker].blocks == 0:
        return
    tree.workers[worker].blocks = 0
    for e in range(1, tree.edges_used):
        if tree.edges[e].len != 0 and edge_coverage(&tree.edges[e], worker) != 0:
            edge_cover(&tree.edges[e], &tree.memory, worker, 0)
            settle_edge(tree, e)
        # Looking at an edge takes less than storing a block.
        yield_after(&tree.memory.yield_points, e & 1)
