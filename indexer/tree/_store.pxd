# _store.pxd: blocks that a worker reports.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ._aliases cimport alias_add, alias_by_key, aliases_reserve
from ._arena cimport arena_allocate, arena_extend, arena_release, arena_reserve
from ._edge cimport STORED, Edge, edge_cover, edge_coverage, edge_is_full, edge_mark
from ._keys cimport find_held, forget_alias, is_canonical
from ...runtime.native._yield_points cimport pace_limit, pace_work
from ._remove cimport uncover_blocks, uncover_run
from ...runtime.native._table cimport NONE, hash_key, table_prefetch, table_put, table_reserve, table_seek
from ._tree cimport (
    AHEAD,
    ROOT,
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_EVICTED,
    TREE_PARENT_NOT_FOUND,
    Tree,
    Worker,
    drop_edge,
    find_canonical,
    find_child,
    link_child,
    merge_edge,
    new_edge,
    own_range,
    reserve_edge,
    split_edge,
)

cdef enum:
    STRIDE = 128      # hashes compared at once
    CONTINUATION = 8  # least room of an edge that continues a worker's own chain


cdef struct Cursor:
    uint32_t edge   # where a chain has got to: an edge
    uint32_t at     # and how many of its blocks are behind


cdef inline void place(const Tree* tree, Cursor* cursor, uint32_t block) noexcept nogil:
    """Put the cursor behind a block."""
    cursor.edge = tree.blocks.owner[block]
    cursor.at = block + 1 - tree.edges[cursor.edge].start


cdef inline bint advance(
    Tree* tree, Cursor* cursor, uint32_t worker, uint32_t run
) noexcept nogil:
    """Let the worker cover the next `run` blocks of the edge; false without memory."""
    cdef Edge* edge = &tree.edges[cursor.edge]
    cdef uint32_t covered = edge_coverage(edge, worker)
    cdef uint32_t last, parent
    edge_mark(edge, STORED)
    cursor.at += run
    if cursor.at <= covered:
        return True
    if not edge_cover(edge, &tree.memory, worker, cursor.at):
        return False
    tree.workers[worker].blocks += cursor.at - covered
    if cursor.at == edge.len:
        # A hole may have been filled.
        last = edge.start + edge.len - 1
        parent = edge.parent
        merge_edge(tree, cursor.edge)
        merge_edge(tree, parent)
        place(tree, cursor, last)
    return True


cdef inline uint32_t common_run(const uint64_t* a, const uint64_t* b, uint32_t n) noexcept nogil:
    """How many leading elements are equal."""
    cdef uint32_t i = 0
    # The C library's comparison uses vectors that we may not assume.
    while i + STRIDE <= n and memcmp(a + i, b + i, STRIDE * sizeof(uint64_t)) == 0:
        i += STRIDE
    while i + 4 <= n and (
        (a[i] ^ b[i]) | (a[i + 1] ^ b[i + 1]) | (a[i + 2] ^ b[i + 2]) | (a[i + 3] ^ b[i + 3])
    ) == 0:
        i += 4
    while i < n and a[i] == b[i]:
        i += 1
    return i


cdef inline uint32_t known_run(
    const Tree* tree, uint32_t block, const uint64_t* ext, const uint64_t* local, uint32_t n
) noexcept nogil:
    """How many blocks from `block` on are the chain's, under their canonical keys."""
    cdef uint32_t run = common_run(tree.blocks.local + block, local, n)
    cdef uint32_t i
    run = common_run(tree.blocks.ext + block, ext, run)
    if tree.shadowed != 0:
        for i in range(run):
            if not is_canonical(tree, block + i):
                return i
    return run


cdef inline uint32_t enter_blocks(
    Tree* tree, uint32_t worker, uint32_t start, uint32_t n
) noexcept nogil:
    """Enter canonical keys until one is in use already; returns how many went in.

    Room in the table must have been reserved.
    """
    cdef const uint64_t* ext = tree.blocks.ext + start
    cdef bint aliases = tree.workers[worker].aliases != 0
    cdef uint32_t i, hashed, other
    cdef uint64_t step
    for i in range(min(n, <uint32_t>AHEAD)):
        table_prefetch(&tree.by_ext, hash_key(ext[i]))
    for i in range(n):
        if i + AHEAD < n:
            table_prefetch(&tree.by_ext, hash_key(ext[i + AHEAD]))
        if aliases and alias_by_key(&tree.aliases, worker, ext[i]) != NONE:
            return i
        hashed = hash_key(ext[i])
        step = 0
        while True:
            other = table_seek(&tree.by_ext, hashed, &step)
            if other == NONE:
                break
            if tree.blocks.ext[other] == ext[i]:
                return i
        table_put(&tree.by_ext, hashed, step, start + i)
    return n


cdef inline bint append_run(
    Tree* tree,
    Cursor* cursor,
    uint32_t worker,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
    bint shadow,
    uint32_t* appended,
) noexcept nogil:
    """Store new blocks behind the end of an edge; false, and nothing changed, without memory.

    *appended: how many; it stops before a key that is another block's already, and where the pace
    wants it to, with room for the others kept. With `shadow` the first block is such a one, and
    goes in without an entry.
    """
    cdef uint32_t e = cursor.edge
    cdef uint32_t room = n
    cdef uint32_t start, wanted
    cdef Edge* edge
    cdef bint alone
    appended[0] = 0
    if not (
        reserve_edge(tree)
        and arena_reserve(&tree.blocks, &tree.memory, n + CONTINUATION)
        and table_reserve(&tree.by_ext, &tree.memory, n)
    ):
        return False
    edge = &tree.edges[e]
    alone = (
        e != ROOT
        and edge.first_child == NONE
        and edge.n_full == 1
        and edge.n_partial == 0
        and edge_is_full(edge, worker)
    )
    if alone and edge.cap - edge.len < n:
        room = n - (edge.cap - edge.len)
        if arena_extend(&tree.blocks, edge.start + edge.cap, room, e):
            edge.cap += room
    if alone and edge.cap > edge.len:
        room = min(n, edge.cap - edge.len)
        start = edge.start + edge.len
    else:
        room = max(n, <uint32_t>CONTINUATION) if alone else n
        e = new_edge(tree)
        start = arena_allocate(&tree.blocks, room, e)
        edge = &tree.edges[e]
        edge.start = start
        edge.cap = room
        room = n
    wanted = room = pace_limit(&tree.memory.pace, room)
    memcpy(tree.blocks.local + start, local, room * sizeof(uint64_t))
    memcpy(tree.blocks.ext + start, ext, room * sizeof(uint64_t))
    if shadow:
        tree.shadowed += 1
        room = 1
    else:
        room = enter_blocks(tree, worker, start, room)
    own_range(tree, start, room, e)
    edge_mark(edge, STORED)
    edge.len += room
    tree.n_blocks += room
    tree.workers[worker].blocks += room
    appended[0] = room
    if e != cursor.edge:
        if room < wanted:
            arena_release(&tree.blocks, start + room, edge.cap - room)
            edge.cap = room
        if room == 0:
            drop_edge(tree, e)
            return True
        edge_cover(edge, &tree.memory, worker, room)  # the first one is listed in place
        link_child(tree, cursor.edge, e)
    if room != 0:
        place(tree, cursor, start + room - 1)
    return True


cdef inline bint is_behind(const Tree* tree, uint32_t block, Cursor cursor) noexcept nogil:
    """Whether a block lies on the path from the root to the cursor."""
    cdef uint32_t home = tree.blocks.owner[block]
    while cursor.edge != ROOT:
        if cursor.edge == home:
            return block - tree.edges[home].start < cursor.at
        cursor.edge = tree.edges[cursor.edge].parent
        cursor.at = tree.edges[cursor.edge].len
    return False


cdef inline int store_one(
    Tree* tree, Cursor* cursor, uint32_t worker, uint64_t ext, uint64_t local
) noexcept nogil:
    """Store one block where keys may differ from the canonical ones."""
    cdef Worker* holder = &tree.workers[worker]
    cdef Edge* edge = &tree.edges[cursor.edge]
    cdef uint32_t held = find_held(tree, worker, ext)
    cdef uint32_t last = NONE if cursor.edge == ROOT else edge.start + cursor.at - 1
    cdef uint32_t block, appended
    cdef bint shadow
    if not aliases_reserve(&tree.aliases, &tree.memory):
        return TREE_NO_MEMORY
    if held != NONE and is_behind(tree, held, cursor[0]):
        return TREE_INVALID_SEQUENCE
    if cursor.at == edge.len:
        block = find_child(tree, cursor.edge, local)
        if block != NONE:
            block = tree.edges[block].start
    else:
        block = edge.start + cursor.at
        if tree.blocks.local[block] != local:
            block = NONE
    if held != NONE and held != block:
        # The worker re-used the hash for another block. Dropping the old one may reshape the
        # tree, but not the block behind the cursor, which the worker holds.
        if not uncover_run(tree, worker, held, held):
            return TREE_NO_MEMORY
        if last != NONE:
            place(tree, cursor, last)
        return store_one(tree, cursor, worker, ext, local)
    if block == NONE:
        if cursor.at != edge.len:
            if not split_edge(tree, cursor.edge, cursor.at):
                return TREE_NO_MEMORY
            place(tree, cursor, last)
        shadow = find_canonical(tree, ext) != NONE
        if not append_run(tree, cursor, worker, &ext, &local, 1, shadow, &appended):
            return TREE_NO_MEMORY
        if shadow:
            block = tree.edges[cursor.edge].start + cursor.at - 1
            alias_add(&tree.aliases, worker, ext, block)
            holder.aliases += 1
        return TREE_OK
    if tree.blocks.owner[block] != cursor.edge:
        cursor.edge = tree.blocks.owner[block]
        cursor.at = 0
    if held == NONE and holder.aliases != 0:
        forget_alias(tree, worker, block)
    if not advance(tree, cursor, worker, 1):
        return TREE_NO_MEMORY
    if held == NONE and (tree.blocks.ext[block] != ext or not is_canonical(tree, block)):
        alias_add(&tree.aliases, worker, ext, block)
        holder.aliases += 1
    return TREE_OK


cdef inline int refuse_orphans(
    Tree* tree, uint32_t worker, const uint64_t* ext, uint32_t n
) noexcept nogil:
    """What a chain without a known parent means."""
    cdef uint32_t elsewhere
    if tree.workers[worker].missing == 0:
        return TREE_PARENT_NOT_FOUND
    # The parent may have been dropped. Then the worker does hold these blocks, and not, under the
    # same hashes, others.
    if not uncover_blocks(tree, worker, ext, n, &elsewhere):
        return TREE_NO_MEMORY
    tree.workers[worker].missing += n
    return TREE_PARENT_EVICTED


cdef inline int store_below(
    Tree* tree,
    uint32_t worker,
    Cursor cursor,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
) noexcept nogil:
    """Store a chain behind the cursor: behind a block that the worker holds, or an edge's end."""
    cdef Edge* edge
    cdef uint32_t i = 0
    cdef uint32_t block, child, run
    cdef int status
    tree.fresh = NONE
    while i < n:
        edge = &tree.edges[cursor.edge]
        if cursor.at < edge.len and tree.blocks.local[edge.start + cursor.at] != local[i]:
            # The chain leaves the edge here.
            block = edge.start + cursor.at - 1
            if not split_edge(tree, cursor.edge, cursor.at):
                return TREE_NO_MEMORY
            place(tree, &cursor, block)
            edge = &tree.edges[cursor.edge]
        run = 0
        if cursor.at < edge.len:
            child = cursor.edge
        else:
            child = find_child(tree, cursor.edge, local[i])
        if child == NONE:
            if not append_run(tree, &cursor, worker, ext + i, local + i, n - i, False, &run):
                return TREE_NO_MEMORY
        elif tree.workers[worker].aliases == 0:
            if child != cursor.edge:
                block = tree.edges[child].start
            else:
                block = edge.start + cursor.at
            edge = &tree.edges[child]
            run = known_run(
                tree,
                block,
                ext + i,
                local + i,
                pace_limit(&tree.memory.pace, min(edge.start + edge.len - block, n - i)),
            )
            if run != 0:
                cursor.edge = child
                cursor.at = block - edge.start
                if not advance(tree, &cursor, worker, run):
                    return TREE_NO_MEMORY
        if run == 0:
            # A key that is not the canonical one, or may not be.
            run = 1
            status = store_one(tree, &cursor, worker, ext[i], local[i])
            if status != TREE_OK:
                return status
        i += run
        pace_work(&tree.memory.pace, run)
    if cursor.edge != ROOT:
        tree.fresh = tree.edges[cursor.edge].start + cursor.at - 1
    return TREE_OK


cdef inline int store_chain(
    Tree* tree,
    uint32_t worker,
    bint has_parent,
    uint64_t parent,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
) noexcept nogil:
    cdef Cursor cursor
    cdef uint32_t block
    cursor.edge = ROOT
    cursor.at = 0
    if has_parent:
        block = find_held(tree, worker, parent)
        if block == NONE:
            return refuse_orphans(tree, worker, ext, n)
        place(tree, &cursor, block)
    return store_below(tree, worker, cursor, ext, local, n)
