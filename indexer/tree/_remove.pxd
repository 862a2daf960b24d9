"""Blocks that leave a worker."""
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._table cimport NONE, prefetch
from ...base.native._yield_points cimport yield_after, yield_limit
from ._edge cimport edge_cover, edge_coverage
from ._external_hashes cimport (
    drop_aliases,
    find_held,
    forget_alias,
    has_aliases,
    worker_calls_block,
)
from ._shape cimport settle_edge, split_edge
from ._tree cimport (
    AHEAD,
    TREE_BLOCK_NOT_FOUND,
    TREE_NO_MEMORY,
    TREE_OK,
    Edge,
    Tree,
    Worker,
)
from ._workers cimport unlist_worker


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
    if has_aliases(tree, worker):
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
    # What was dropped to keep the budget is not known any more, and rightly removed.
    dropped = min(<uint64_t>unknown[0], tree.workers[worker].missing)
    tree.workers[worker].missing -= dropped
    unknown[0] -= <uint32_t>dropped
    return TREE_OK if unknown[0] == 0 else TREE_BLOCK_NOT_FOUND


cdef inline void leave_edge(Tree* tree, uint32_t worker, uint32_t e) noexcept nogil:
    """Take all of an edge from a worker that leaves, if it covers any."""
    if e >= tree.edges_used or edge_coverage(&tree.edges[e], worker) == 0:
        return
    edge_cover(&tree.edges[e], &tree.memory, worker, 0)
    settle_edge(tree, e)


cdef inline void clear_worker(Tree* tree, uint32_t worker) noexcept nogil:
    """Take all blocks from a worker."""
    cdef Worker* holder = &tree.workers[worker]
    cdef uint32_t i
    holder.missing = 0
    holder.lossy = False
    holder.blocks = 0
    drop_aliases(tree, worker)
    tree.leaving_stale = True
    if holder.unlisted:
        for i in range(1, tree.edges_used):
            leave_edge(tree, worker, i)
            yield_after(&tree.memory.yield_points, i & 1)  # less than storing a block
    else:
        for i in range(holder.edges_used):
            if i + AHEAD < holder.edges_used:
                prefetch(&tree.edges[holder.edges[i + AHEAD]])
            leave_edge(tree, worker, holder.edges[i])
            yield_after(&tree.memory.yield_points, 1)
    tree.leaving_stale = False
    unlist_worker(tree, worker)
