# _remove.pxd: blocks that leave a worker.
from libc.stdint cimport uint32_t, uint64_t

from ._aliases cimport alias_drop
from ._edge cimport Edge, edge_cover, edge_coverage
from ._keys cimport find_held, forget_alias, is_key
from ...runtime.native._yield_points cimport pace_limit, pace_work
from ...runtime.native._table cimport NONE
from ._tree cimport (
    TREE_BLOCK_NOT_FOUND,
    TREE_NO_MEMORY,
    TREE_OK,
    Tree,
    settle_edge,
    split_edge,
)


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
    Tree* tree, uint32_t worker, const uint64_t* ext, uint32_t n, uint32_t* unknown
) noexcept nogil:
    """Take blocks from a worker, counting those that it does not hold; false without memory."""
    cdef uint32_t i = 0
    cdef uint32_t first, last, begin, end, most
    cdef const Edge* edge
    unknown[0] = 0
    while i < n:
        first = last = find_held(tree, worker, ext[i])
        i += 1
        if first == NONE:
            unknown[0] += 1
            pace_work(&tree.memory.pace, 1)
            continue
        # Engines evict along a chain: gather the neighbours that the event names next.
        edge = &tree.edges[tree.blocks.owner[first]]
        begin = edge.start
        end = begin + edge_coverage(edge, worker)
        most = pace_limit(&tree.memory.pace, n) - 1
        if i < n and first > begin and is_key(tree, worker, first - 1, ext[i]):
            while (
                i < n
                and first > begin
                and last - first < most
                and is_key(tree, worker, first - 1, ext[i])
            ):
                first -= 1
                i += 1
        else:
            while (
                i < n
                and last + 1 < end
                and last - first < most
                and is_key(tree, worker, last + 1, ext[i])
            ):
                last += 1
                i += 1
        if not uncover_run(tree, worker, first, last):
            return False
        pace_work(&tree.memory.pace, last + 1 - first)
    return True


cdef inline int remove_blocks(
    Tree* tree, uint32_t worker, const uint64_t* ext, uint32_t n, uint32_t* unknown
) noexcept nogil:
    cdef uint64_t dropped
    if not uncover_blocks(tree, worker, ext, n, unknown):
        return TREE_NO_MEMORY
    # What was dropped for want of room is not known any more, and rightly said to be gone.
    dropped = min(<uint64_t>unknown[0], tree.workers[worker].missing)
    tree.workers[worker].missing -= dropped
    unknown[0] -= <uint32_t>dropped
    return TREE_OK if unknown[0] == 0 else TREE_BLOCK_NOT_FOUND


cdef inline void clear_worker(Tree* tree, uint32_t worker) noexcept nogil:
    cdef uint32_t e, alias
    tree.workers[worker].missing = 0
    if tree.workers[worker].aliases != 0:
        for alias in range(tree.aliases.used, 0, -1):
            if tree.aliases.all[alias - 1].worker == worker:
                alias_drop(&tree.aliases, alias - 1)
            pace_work(&tree.memory.pace, alias & 1)
        tree.workers[worker].aliases = 0
    if tree.workers[worker].blocks == 0:
        return
    tree.workers[worker].blocks = 0
    for e in range(1, tree.edges_used):
        if tree.edges[e].len != 0 and edge_coverage(&tree.edges[e], worker) != 0:
            edge_cover(&tree.edges[e], &tree.memory, worker, 0)
            settle_edge(tree, e)
        pace_work(&tree.memory.pace, e & 1)  # looking at an edge takes less than storing a block
