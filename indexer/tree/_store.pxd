"""Blocks that a worker reports."""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from ...base.native._table cimport (
    NONE,
    table_hash,
    table_prefetch,
)
from ...base.native._yield_points cimport yield_after, yield_limit
from ._arena cimport arena_allocate, arena_extend, arena_release, arena_reserve, common_run
from ._canonical_hashes cimport (
    enter_run,
    find_canonical,
    is_canonical,
    reserve_hashes,
    shadow_block,
)
from ._edge cimport STORED, edge_cover, edge_is_full, edge_mark
from ._external_hashes cimport (
    alias_add,
    alias_by_external_hash,
    find_held,
    forget_alias,
    has_aliases,
    reserve_alias,
)
from ._position cimport (
    TreePosition,
    position_advance,
    position_behind,
    position_has_passed,
    unflag_path,
)
from ._remove cimport uncover_blocks, uncover_run
from ._shape cimport (
    drop_edge,
    find_child,
    link_child,
    new_edge,
    own_range,
    reserve_edge,
    split_edge,
)
from ._tree cimport (
    AHEAD,
    ROOT,
    SHADOWS,
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_EVICTED,
    TREE_PARENT_NOT_FOUND,
    Aliases,
    Edge,
    Tree,
)
from ._workers cimport list_edge

cdef enum:
    CONTINUATION = 8  # least capacity of an edge that continues a worker's own chain

cdef inline uint32_t canonical_run(
    const Tree* tree,
    uint32_t block,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    """How many blocks from `block` on are the chain's, under their canonical hashes."""
    cdef uint32_t run = common_run(tree.blocks.local_hash + block, local_hashes, n)
    cdef uint32_t i
    run = common_run(tree.blocks.external_hash + block, external_hashes, run)
    if tree.shadowed != 0:
        for i in range(run):
            if not is_canonical(tree, block + i):
                return i
    return run


cdef inline uint32_t enter_canonical(
    Tree* tree, uint32_t worker, uint32_t start, uint32_t n
) noexcept nogil:
    """Enter canonical hashes until one is in use already; returns how many went in.

    Capacity in the table must have been reserved.
    """
    cdef const uint64_t* external_hashes = tree.blocks.external_hash + start
    cdef const Aliases* aliases = tree.workers[worker].aliases
    cdef uint32_t i
    for i in range(min(n, <uint32_t>AHEAD)):
        table_prefetch(&tree.by_external_hash, table_hash(&tree.by_external_hash, external_hashes[i]))
    for i in range(n):
        if i + AHEAD < n:
            table_prefetch(&tree.by_external_hash, table_hash(&tree.by_external_hash, external_hashes[i + AHEAD]))
        if alias_by_external_hash(aliases, external_hashes[i]) != NONE:
            return i
        if not enter_run(tree, start, i, table_hash(&tree.by_external_hash, external_hashes[i])):
            return i
    return n


cdef inline bint append_run(
    Tree* tree,
    TreePosition* position,
    uint32_t worker,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
    bint shadow,
    uint32_t* appended,
) noexcept nogil:
    """Store new blocks behind the end of an edge; false, and nothing changed, without memory.

    *appended: how many; it stops before a hash that is another block's already, and at a yield
    point, with capacity for the others kept. With `shadow` the first block is such a one, and goes
    in without an entry.
    """
    cdef uint32_t e = position.edge
    cdef uint32_t count = n
    cdef uint32_t start, wanted
    cdef Edge* edge
    cdef bint alone
    appended[0] = 0
    if not (
        reserve_edge(tree)
        and arena_reserve(&tree.blocks, &tree.memory, n + CONTINUATION)
        and reserve_hashes(tree, n)
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
        count = n - (edge.cap - edge.len)
        if arena_extend(&tree.blocks, edge.start + edge.cap, count, e):
            edge.cap += count
    if alone and edge.cap > edge.len:
        count = min(n, edge.cap - edge.len)
        start = edge.start + edge.len
    else:
        count = max(n, <uint32_t>CONTINUATION) if alone else n
        e = new_edge(tree)
        start = arena_allocate(&tree.blocks, count, e)
        edge = &tree.edges[e]
        edge.start = start
        edge.cap = count
        count = n
    wanted = count = yield_limit(&tree.memory.yield_points, count)
    memcpy(tree.blocks.local_hash + start, local_hashes, count * sizeof(uint64_t))
    memcpy(tree.blocks.external_hash + start, external_hashes, count * sizeof(uint64_t))
    if shadow:
        shadow_block(tree, start)
        edge.flags |= SHADOWS
        count = 1
    else:
        count = enter_canonical(tree, worker, start, count)
    own_range(tree, start, count, e)
    edge_mark(edge, STORED)
    edge.len += count
    tree.n_blocks += count
    tree.workers[worker].blocks += count
    appended[0] = count
    if e != position.edge:
        if count < wanted:
            arena_release(&tree.blocks, start + count, edge.cap - count)
            edge.cap = count
        if count == 0:
            drop_edge(tree, e)
            return True
        edge_cover(edge, &tree.memory, worker, count)  # the first one is listed in place
        link_child(tree, position.edge, e)
        list_edge(tree, worker, e)
    if count != 0:
        position_behind(tree, position, start + count - 1)
    return True


cdef inline int store_one(
    Tree* tree, TreePosition* position, uint32_t worker, uint64_t external_hash, uint64_t local_hash
) noexcept nogil:
    """Store one block where its hash may differ from the canonical one."""
    cdef Edge* edge
    cdef uint32_t held = find_held(tree, worker, external_hash)
    cdef uint32_t last = NONE
    cdef uint32_t block, appended
    cdef bint shadow
    if not reserve_alias(tree, worker):
        return TREE_NO_MEMORY
    edge = &tree.edges[position.edge]
    if position.edge != ROOT:
        last = edge.start + position.at - 1
    if position.at == edge.len:
        block = find_child(tree, position.edge, local_hash)
        if block != NONE:
            block = tree.edges[block].start
    else:
        block = edge.start + position.at
        if tree.blocks.local_hash[block] != local_hash:
            block = NONE
    if held != NONE and held != block:
        if position_has_passed(tree, position, held):
            return TREE_INVALID_SEQUENCE
        # The worker re-used the hash for another block. Dropping the old one may reshape the
        # tree, but not the block before the position, which the worker holds.
        if not uncover_run(tree, worker, held, held):
            return TREE_NO_MEMORY
        if last != NONE:
            position_behind(tree, position, last)
        return store_one(tree, position, worker, external_hash, local_hash)
    if block == NONE:
        if position.at != edge.len:
            if not split_edge(tree, position.edge, position.at):
                return TREE_NO_MEMORY
            position_behind(tree, position, last)
        shadow = find_canonical(tree, external_hash) != NONE
        if not append_run(
            tree, position, worker, &external_hash, &local_hash, 1, shadow, &appended
        ):
            return TREE_NO_MEMORY
        if shadow:
            block = tree.edges[position.edge].start + position.at - 1
            alias_add(tree, worker, external_hash, block)
        return TREE_OK
    if tree.blocks.owner[block] != position.edge:
        position.edge = tree.blocks.owner[block]
        position.at = 0
    if held == NONE:
        forget_alias(tree, worker, block)
    if not position_advance(tree, position, worker, 1):
        return TREE_NO_MEMORY
    if held == NONE and (
        tree.blocks.external_hash[block] != external_hash or not is_canonical(tree, block)
    ):
        alias_add(tree, worker, external_hash, block)
    return TREE_OK


cdef inline int refuse_orphans(
    Tree* tree,
    uint32_t worker,
    const uint64_t* external_hashes,
    uint32_t n,
    bint lossy,
    bint missing,
) noexcept nogil:
    """What a chain without a known parent means: a TreeStatus. `lossy`: the parent may have been
    dropped; `missing`: some of what the worker holds was, and it did not say that it is gone."""
    cdef uint32_t elsewhere
    if not lossy:
        return TREE_PARENT_NOT_FOUND
    # If so, the worker does hold these blocks, and not, under the same hashes, others.
    if not uncover_blocks(tree, worker, external_hashes, n, &elsewhere):
        return TREE_NO_MEMORY
    if not missing:
        return TREE_PARENT_NOT_FOUND
    tree.workers[worker].missing += n
    tree.workers[worker].lossy = True
    return TREE_PARENT_EVICTED


cdef inline int store_from(
    Tree* tree,
    uint32_t worker,
    TreePosition* position,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    cdef Edge* edge
    cdef uint32_t i = 0
    cdef uint32_t block, child, run
    cdef int status
    tree.fresh = NONE
    while i < n:
        edge = &tree.edges[position.edge]
        if (
            position.at < edge.len
            and tree.blocks.local_hash[edge.start + position.at] != local_hashes[i]
        ):
            # The chain leaves the edge here.
            block = edge.start + position.at - 1
            if not split_edge(tree, position.edge, position.at):
                return TREE_NO_MEMORY
            position_behind(tree, position, block)
            edge = &tree.edges[position.edge]
        run = 0
        if position.at < edge.len:
            child = position.edge
        else:
            child = find_child(tree, position.edge, local_hashes[i])
        if child == NONE:
            if not append_run(
                tree, position, worker, external_hashes + i, local_hashes + i, n - i, False, &run
            ):
                return TREE_NO_MEMORY
        elif not has_aliases(tree, worker):
            if child != position.edge:
                block = tree.edges[child].start
            else:
                block = edge.start + position.at
            edge = &tree.edges[child]
            run = canonical_run(
                tree,
                block,
                external_hashes + i,
                local_hashes + i,
                yield_limit(&tree.memory.yield_points, min(edge.start + edge.len - block, n - i)),
            )
            if run != 0:
                position.edge = child
                position.at = block - edge.start
                if not position_advance(tree, position, worker, run):
                    return TREE_NO_MEMORY
        if run == 0:
            # A hash that is not the canonical one, or may not be.
            run = 1
            status = store_one(tree, position, worker, external_hashes[i], local_hashes[i])
            if status != TREE_OK:
                return status
        i += run
        yield_after(&tree.memory.yield_points, run)
    if position.edge != ROOT:
        tree.fresh = tree.edges[position.edge].start + position.at - 1
    return TREE_OK


cdef inline int store_at(
    Tree* tree,
    uint32_t worker,
    TreePosition position,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    """Store a chain at a position: behind a block that the worker holds, or an edge's end."""
    cdef int status
    position.on_path = False
    status = store_from(tree, worker, &position, external_hashes, local_hashes, n)
    if position.on_path:
        unflag_path(tree, position.edge)
    return status


cdef inline int store_chain(
    Tree* tree,
    uint32_t worker,
    bint has_parent,
    uint64_t parent,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    """Store a chain below what the worker calls `parent`, or at the root: a TreeStatus."""
    cdef TreePosition position
    cdef uint32_t block
    position.edge = ROOT
    position.at = 0
    if has_parent:
        block = find_held(tree, worker, parent)
        if block == NONE:
            return refuse_orphans(
                tree,
                worker,
                external_hashes,
                n,
                tree.workers[worker].lossy,
                tree.workers[worker].missing != 0,
            )
        position_behind(tree, &position, block)
    return store_at(tree, worker, position, external_hashes, local_hashes, n)
