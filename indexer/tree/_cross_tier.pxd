# _graft.pxd: blocks below a path that another tree knows, whether this tree has it or not; and
# matching them. The tree of a lower storage tier needs both: what it holds continues what the
# tiers above hold, and the blocks in between are holes to it. A hole is cut off when nothing hangs
# below it any more, as everywhere in the tree.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from ._arena cimport arena_allocate, arena_reserve
from ._edge cimport Edge, edge_coverage
from ._keys cimport find_held
from ...runtime.native._memory cimport Memory, array_grow, array_release
from ._remove cimport uncover_run
from ._store cimport Cursor, common_run, is_behind, place, store_below
from ...runtime.native._table cimport NONE, hash_key, table_add, table_reserve
from ._tree cimport (
    ROOT,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_NOT_FOUND,
    Tree,
    find_canonical,
    find_child,
    link_child,
    new_edge,
    own_range,
    reserve_edge,
    settle_edge,
    split_edge,
)

cdef struct Path:        # from the root down; keys are the canonical ones of where it was read
    uint64_t* local      # one array, of 2 n numbers
    uint64_t* ext        # its second half
    uint32_t n


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
    while up != ROOT:
        left += tree.edges[up].len
        up = tree.edges[up].parent
    path.n = left
    path.local = <uint64_t*>array_grow(memory, NULL, 0, path_size(path))
    if path.local == NULL:
        return False
    path.ext = path.local + path.n
    while e != ROOT:
        left -= run
        memcpy(path.local + left, tree.blocks.local + tree.edges[e].start, run * sizeof(uint64_t))
        memcpy(path.ext + left, tree.blocks.ext + tree.edges[e].start, run * sizeof(uint64_t))
        e = tree.edges[e].parent
        run = tree.edges[e].len
    return True


cdef inline bint append_holes(
    Tree* tree, Cursor* cursor, const uint64_t* ext, const uint64_t* local, uint32_t n
) noexcept nogil:
    """New blocks that nobody holds, behind the end of an edge; false without memory."""
    cdef uint32_t e, i
    cdef Edge* edge
    if not (
        reserve_edge(tree)
        and arena_reserve(&tree.blocks, &tree.memory, n)
        and table_reserve(&tree.by_ext, &tree.memory, n)
    ):
        return False
    e = new_edge(tree)
    edge = &tree.edges[e]
    edge.start = arena_allocate(&tree.blocks, n, e)
    edge.len = edge.cap = n
    memcpy(tree.blocks.local + edge.start, local, n * sizeof(uint64_t))
    memcpy(tree.blocks.ext + edge.start, ext, n * sizeof(uint64_t))
    for i in range(n):
        if find_canonical(tree, ext[i]) == NONE:
            table_add(&tree.by_ext, hash_key(ext[i]), edge.start + i)
        else:
            tree.shadowed += 1
    own_range(tree, edge.start, n, e)
    tree.n_blocks += n
    link_child(tree, cursor.edge, e)
    cursor.edge = e
    cursor.at = n
    return True


cdef inline bint reach(Tree* tree, const Path* path, Cursor* cursor) noexcept nogil:
    """Put the cursor at the end of a path, which becomes the end of an edge; makes what is missing.

    False without memory; then the cursor is as far as it got.
    """
    cdef uint32_t i = 0
    cdef uint32_t child, run, block
    cdef const Edge* edge
    cursor.edge = ROOT
    cursor.at = 0
    while i < path.n:
        child = find_child(tree, cursor.edge, path.local[i])
        if child == NONE:
            return append_holes(tree, cursor, path.ext + i, path.local + i, path.n - i)
        edge = &tree.edges[child]
        run = common_run(
            tree.blocks.local + edge.start, path.local + i, min(edge.len, path.n - i)
        )
        block = edge.start + run - 1
        if run < edge.len and not split_edge(tree, child, run):
            return False
        place(tree, cursor, block)
        i += run
    return True


cdef inline int store_below_path(
    Tree* tree,
    uint32_t worker,
    const Path* path,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
) noexcept nogil:
    cdef Cursor cursor
    cdef uint32_t held, child, last
    cdef int status
    if not reach(tree, path, &cursor):
        settle_edge(tree, cursor.edge)
        return TREE_NO_MEMORY
    # Where the worker re-uses a hash for the first block, the old block goes first: that may cut
    # off the path, of which the worker need not hold anything.
    held = find_held(tree, worker, ext[0])
    child = find_child(tree, cursor.edge, local[0])
    if (
        held != NONE
        and (child == NONE or held != tree.edges[child].start)
        and not is_behind(tree, held, cursor)
        and not (uncover_run(tree, worker, held, held) and reach(tree, path, &cursor))
    ):
        settle_edge(tree, cursor.edge)
        return TREE_NO_MEMORY
    last = tree.edges[cursor.edge].start + cursor.at - 1
    status = store_below(tree, worker, cursor, ext, local, n)
    settle_edge(tree, tree.blocks.owner[last])
    return status


cdef inline int graft_chain(
    Tree* tree,
    uint32_t worker,
    const Tree* source,
    uint32_t source_worker,
    uint64_t parent,
    const uint64_t* ext,
    const uint64_t* local,
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
    status = store_below_path(tree, worker, &path, ext, local, n)
    array_release(&tree.memory, path.local, path_size(&path))
    return status


cdef inline void match_continued(
    const Tree* tree,
    const uint64_t* local,
    uint32_t n,
    const uint32_t* places,
    uint32_t* reached,
    uint32_t* gained,
    uint32_t n_out,
) noexcept nogil:
    """How far each worker's blocks in this tree continue what it holds of a chain elsewhere.

    A worker's place in the arrays is places[its number in the tree], or without `places` the
    number it is bound to; one at n_out or above is passed over. `reached` are the leading blocks
    it holds elsewhere; they grow by what this tree holds from there on without a hole, and so does
    `gained`. Reads the tree only, scratch included.
    """
    cdef uint32_t e = ROOT
    cdef uint32_t depth = 0
    cdef uint32_t w, at, matched, covered
    cdef const Edge* edge
    cdef bint going = True
    while depth < n and going:
        e = find_child(tree, e, local[depth])
        if e == NONE:
            return
        edge = &tree.edges[e]
        matched = common_run(
            tree.blocks.local + edge.start, local + depth, min(edge.len, n - depth)
        )
        going = False
        for w in range(tree.workers_used):
            at = places[w] if places != NULL else tree.numbers[w]
            if at >= n_out or tree.workers[w].blocks == 0 or reached[at] < depth:
                continue  # unknown, empty, or stopped above this edge
            covered = depth + min(edge_coverage(edge, w), matched)
            if covered > reached[at]:
                gained[at] += covered - reached[at]
                reached[at] = covered
            if reached[at] >= depth + matched:
                going = True
        depth += matched
        if matched < edge.len:
            return
