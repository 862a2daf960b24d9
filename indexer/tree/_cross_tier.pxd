"""Blocks below a path that another tree knows, whether this tree has it or not.

The tree of a lower storage tier needs that: what it holds continues what the tiers above hold, and
the blocks in between are holes to it. A hole is cut off when nothing hangs below it any more, as
everywhere in the tree.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from ...base.native._memory cimport Memory, array_give_back, array_grow
from ...base.native._table cimport NONE, table_hash
from ...base.native._yield_points cimport exclude_readers, admit_readers, yield_after, yield_limit
from ._arena cimport arena_allocate, arena_reserve, common_run
from ._canonical_hashes cimport enter_run, reserve_hashes, shadow_block
from ._external_hashes cimport find_held
from ._position cimport TreePosition, position_behind, position_is_below
from ._remove cimport uncover_run
from ._shape cimport (
    find_child,
    link_child,
    new_edge,
    own_range,
    reserve_edge,
    settle_edge,
    split_edge,
)
from ._store cimport store_at
from ._tree cimport ROOT, SHADOWS, TREE_NO_MEMORY, TREE_OK, TREE_PARENT_NOT_FOUND, Edge, Tree

cdef enum:
    SHORT_PATH = 1024           # blocks that are copied in a few us
    COMPARED = 16               # in the time a block takes to be stored

cdef struct Path:               # from the root down
    uint64_t* local_hashes      # one array, of 2 n numbers
    uint64_t* external_hashes   # its second half: the canonical ones of where it was read
    uint32_t n                  # blocks


cdef inline size_t path_size(const Path* path) noexcept nogil:
    return 2 * <size_t>path.n * sizeof(uint64_t)


cdef inline bint read_path(
    Path* path, Memory* memory, const Tree* tree, uint32_t block
) noexcept nogil:
    """The path down to a block, that one included; false without memory."""
    cdef uint32_t e = tree.blocks.owner[block]
    cdef uint32_t run = block + 1 - tree.edges[e].start
    cdef uint32_t left = run
    cdef uint32_t up = tree.edges[e].parent
    cdef uint32_t start
    while up != ROOT:
        left += tree.edges[up].len
        up = tree.edges[up].parent
    path.n = left
    path.local_hashes = <uint64_t*>array_grow(memory, NULL, 0, path_size(path))
    if path.local_hashes == NULL:
        return False
    path.external_hashes = path.local_hashes + path.n
    # The other tree stands still, and no reader knows the path.
    if path.n > SHORT_PATH:
        admit_readers(&memory.yield_points)
    while e != ROOT:
        left -= run
        start = tree.edges[e].start
        memcpy(path.local_hashes + left, tree.blocks.local_hash + start, run * sizeof(uint64_t))
        memcpy(
            path.external_hashes + left, tree.blocks.external_hash + start, run * sizeof(uint64_t)
        )
        e = tree.edges[e].parent
        run = tree.edges[e].len
    if path.n > SHORT_PATH:
        exclude_readers(&memory.yield_points)
    return True


cdef inline bint append_holes(
    Tree* tree,
    TreePosition* position,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    """New blocks that no worker holds, behind the end of an edge; false without memory."""
    cdef uint32_t e, i
    cdef Edge* edge
    if not (
        reserve_edge(tree)
        and arena_reserve(&tree.blocks, &tree.memory, n)
        and reserve_hashes(tree, n)
    ):
        return False
    e = new_edge(tree)
    edge = &tree.edges[e]
    edge.start = arena_allocate(&tree.blocks, n, e)
    edge.cap = n
    for i in range(n):  # no match finds the edge yet
        tree.blocks.local_hash[edge.start + i] = local_hashes[i]
        tree.blocks.external_hash[edge.start + i] = external_hashes[i]
        yield_after(&tree.memory.yield_points, 1)
        if not enter_run(tree, edge.start, i, table_hash(&tree.by_external_hash, external_hashes[i])):
            shadow_block(tree, edge.start + i)
            edge.flags |= SHADOWS
    own_range(tree, edge.start, n, e)
    edge.len = n
    tree.n_blocks += n
    link_child(tree, position.edge, e)
    position.edge = e
    position.at = n
    return True


cdef inline bint position_at_path_end(
    Tree* tree, const Path* path, TreePosition* position
) noexcept nogil:
    """Move to the end of a path, which becomes the end of an edge; makes what is missing.

    False without memory; then the position is as far as it got.
    """
    cdef uint32_t i = 0
    cdef uint32_t child, run, same, at, block
    cdef const Edge* edge
    position.edge = ROOT
    position.at = 0
    while i < path.n:
        child = find_child(tree, position.edge, path.local_hashes[i])
        if child == NONE:
            return append_holes(
                tree, position, path.external_hashes + i, path.local_hashes + i, path.n - i
            )
        edge = &tree.edges[child]
        run = yield_limit(&tree.memory.yield_points, min(edge.len, path.n - i))
        at = 0
        while True:
            same = common_run(
                tree.blocks.local_hash + edge.start + at, path.local_hashes + i + at, run
            )
            at += same
            if same < run or at == min(edge.len, path.n - i):
                break
            yield_after(&tree.memory.yield_points, run // COMPARED + 1)
            run = min(run, min(edge.len, path.n - i) - at)
        run = at
        block = edge.start + run - 1
        if run < edge.len and not split_edge(tree, child, run):
            return False
        position_behind(tree, position, block)
        i += run
    return True


cdef inline int store_at_path_end(
    Tree* tree,
    uint32_t worker,
    const Path* path,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    cdef TreePosition position
    cdef uint32_t held, child, last
    cdef int status
    if not position_at_path_end(tree, path, &position):
        settle_edge(tree, position.edge)
        return TREE_NO_MEMORY
    # Where the worker re-uses a hash for the first block, the old block goes first: that may cut
    # off the path, of which the worker need not hold anything.
    held = find_held(tree, worker, external_hashes[0])
    child = find_child(tree, position.edge, local_hashes[0])
    if (
        held != NONE
        and (child == NONE or held != tree.edges[child].start)
        and not position_is_below(tree, position, held)
        and not (
            uncover_run(tree, worker, held, held) and position_at_path_end(tree, path, &position)
        )
    ):
        settle_edge(tree, position.edge)
        return TREE_NO_MEMORY
    last = tree.edges[position.edge].start + position.at - 1
    status = store_at(tree, worker, position, external_hashes, local_hashes, n)
    settle_edge(tree, tree.blocks.owner[last])
    return status


cdef inline int store_cross_tier(
    Tree* tree,
    uint32_t worker,
    const Tree* source,
    uint32_t source_worker,
    uint64_t parent,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    """Store blocks below the one that `source_worker` calls `parent` in another tree."""
    cdef Path path
    cdef int status
    cdef uint32_t block = find_held(source, source_worker, parent)
    if block == NONE:
        return TREE_PARENT_NOT_FOUND
    if n == 0:
        return TREE_OK
    if not read_path(&path, &tree.memory, source, block):
        return TREE_NO_MEMORY
    status = store_at_path_end(tree, worker, &path, external_hashes, local_hashes, n)
    array_give_back(&tree.memory, path.local_hashes, path_size(&path))
    return status
