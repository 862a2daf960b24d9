"""Memory given back after blocks left.

Arrays can only lose their ends, so what stands there is moved to free places before: edges of the
arena, and entries of the array of edges. That begins when seven eighths of an array lie idle and
goes on until hardly any do, so a seventh of a block is moved for each that left. Tables are rebuilt at a smaller size in one pass, as when they grow.
"""
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._memory cimport array_trim, shrunk_capacity
from ...base.native._table cimport (
    NONE,
    Table,
    table_hash,
    table_hash_pair,
    table_bits,
    table_open,
    table_prefetch,
    table_remove,
    table_rename,
    table_trim,
)
from ...base.native._yield_points cimport yield_after
from ._arena cimport arena_release, arena_reuse, arena_trim
from ._canonical_hashes cimport fill_hashes, is_canonical, trim_hashes
from ._edge cimport lowest64
from ._external_hashes cimport alias_by_block, alias_move
from ._shape cimport LEAST_EDGES, count_children, own_range, rename_parent, unlist_edge
from ._tree cimport AHEAD, SHADOWS, Aliases, Edge, Tree
from ._workers cimport list_holders

cdef enum:
    MOVES = 4             # blocks moved for one that left
    MOST_CHILDREN = 1024  # of an edge that moves


cdef inline void move_aliases(
    Tree* tree, uint32_t worker, uint32_t old, uint32_t new, uint32_t n
) noexcept nogil:
    """A worker's n blocks from `old` on have moved to `new`."""
    cdef Aliases* aliases = tree.workers[worker].aliases
    cdef uint32_t i, alias
    if aliases == NULL:
        return
    for i in range(n):
        yield_after(&tree.memory.yield_points, 1)
        alias = alias_by_block(aliases, old + i)
        if alias != NONE:
            alias_move(aliases, alias, new + i)


cdef inline void move_entry(
    Tree* tree, const Edge* edge, uint32_t old, uint32_t new
) noexcept nogil:
    """The block of an edge has another position, where there may be a stale entry for its hash."""
    cdef uint32_t hashed = table_hash(&tree.by_external_hash, tree.blocks.external_hash[old])
    if not edge.flags & SHADOWS or is_canonical(tree, old):
        table_rename(&tree.by_external_hash, hashed, old, new)
        return
    while tree.stale != 0 and table_remove(&tree.by_external_hash, hashed, new):
        tree.stale -= 1


cdef inline bint move_edge_blocks(Tree* tree, uint32_t e, bint entered) noexcept nogil:
    """Move an edge's blocks to a free range; false if there is none that is large enough.

    `entered`: the table of canonical hashes is to follow.
    """
    cdef Edge* edge = &tree.edges[e]
    cdef uint32_t old = edge.start
    cdef uint32_t new = arena_reuse(&tree.blocks, edge.len, e)
    cdef uint32_t i
    cdef uint64_t word
    cdef const uint64_t* external_hashes
    if new == NONE:
        return False
    external_hashes = tree.blocks.external_hash + old
    for i in range(edge.len):
        if entered:
            if i + AHEAD < edge.len:
                table_prefetch(&tree.by_external_hash, table_hash(&tree.by_external_hash, external_hashes[i + AHEAD]))
            move_entry(tree, edge, old + i, new + i)
        tree.blocks.local_hash[new + i] = tree.blocks.local_hash[old + i]
        tree.blocks.external_hash[new + i] = external_hashes[i]
        yield_after(&tree.memory.yield_points, 1)  # the edge is still where it was
    own_range(tree, new, edge.len, e)
    if tree.n_aliases != 0:
        for i in range(edge.n_partial):
            move_aliases(tree, edge.partial[i].worker, old, new, edge.partial[i].blocks)
        if edge.n_words == 0:
            for i in range(edge.n_full):
                move_aliases(tree, edge.full.few[i], old, new, edge.len)
        for i in range(edge.n_words):
            word = edge.full.words[i]
            while word != 0:
                move_aliases(tree, 64 * i + lowest64(word), old, new, edge.len)
                word &= word - 1
    arena_release(&tree.blocks, old, edge.cap)
    edge.start = new
    edge.cap = edge.len
    return True


cdef inline void compact_arena(Tree* tree) noexcept nogil:
    """Move the last edges forward while enough before them is free and credit is left."""
    cdef Table new
    cdef bint anew
    cdef uint32_t e
    if tree.blocks.free_blocks > tree.blocks.used // 8 * 7:
        tree.compacting_blocks = True
    if tree.compacting_blocks:
        # A new table of hashes, if one is due soon, takes less than finding all entries in the old.
        anew = (
            tree.stale > tree.n_blocks
            and tree.shadowed == 0
            and tree.credit > tree.n_blocks
            and table_open(&new, &tree.memory, table_bits(tree.n_blocks, 2))
        )
        while tree.blocks.free_blocks > tree.blocks.used // 8:
            e = tree.blocks.owner[tree.blocks.used - 1]
            if tree.edges[e].len > tree.credit:
                break
            tree.credit -= tree.edges[e].len
            if not move_edge_blocks(tree, e, not anew):
                tree.compacting_blocks = False
                break
        if anew:
            fill_hashes(tree, &new)
        if tree.blocks.free_blocks <= tree.blocks.used // 8:
            tree.compacting_blocks = False
    if not tree.compacting_blocks:
        arena_trim(&tree.blocks, &tree.memory)


cdef inline void renumber_edge(Tree* tree, uint32_t old, uint32_t new) noexcept nogil:
    """Give an edge another entry, which is not in use and not in the list of those any more."""
    cdef Edge* edge = &tree.edges[new]
    edge[0] = tree.edges[old]
    own_range(tree, edge.start, edge.cap, new)
    table_rename(
        &tree.children, table_hash_pair(&tree.children, tree.blocks.local_hash[edge.start], edge.parent), old, new
    )
    if edge.prev != NONE:
        tree.edges[edge.prev].next = new
    else:
        tree.edges[edge.parent].first_child = new
    if edge.next != NONE:
        tree.edges[edge.next].prev = new
    rename_parent(tree, edge.first_child, old, new)
    list_holders(tree, new)


cdef inline void compact_edges(Tree* tree) noexcept nogil:
    """Move the last edges to entries before them while enough of those are not in use."""
    cdef uint32_t last, new, children
    cdef uint64_t wanted, cost
    if tree.n_edges < tree.edges_used // 8:
        tree.compacting_edges = True
    while tree.compacting_edges and tree.n_edges < tree.edges_used - tree.edges_used // 8:
        last = tree.edges_used - 1
        if tree.edges[last].len == 0:
            unlist_edge(tree, last)
            yield_after(&tree.memory.yield_points, 1)
        else:
            children = count_children(tree, last, MOST_CHILDREN)
            cost = tree.edges[last].cap + children
            if cost > tree.credit or children == MOST_CHILDREN:
                # An edge with MOST_CHILDREN stays: giving them another parent is one step.
                tree.credit -= min(tree.credit, <uint64_t>children)
                return
            tree.credit -= cost
            new = tree.edges_free
            unlist_edge(tree, new)
            renumber_edge(tree, last, new)
            yield_after(&tree.memory.yield_points, children + 1)
        tree.edges_used -= 1
    tree.compacting_edges = False
    wanted = shrunk_capacity(tree.edges_used, LEAST_EDGES)
    if wanted < <uint64_t>tree.edges_capacity // 2:
        tree.edges_touched = min(tree.edges_touched, <uint32_t>wanted)
        array_trim(&tree.memory, &tree.edges, &tree.edges_capacity, wanted, sizeof(Edge))


cdef inline void compact_tree(Tree* tree, uint64_t left) noexcept nogil:
    """Give memory back after `left` blocks left the tree."""
    if left == 0:
        return
    tree.credit = min(tree.credit + MOVES * left, <uint64_t>tree.blocks.used)
    compact_arena(tree)
    compact_edges(tree)
    trim_hashes(tree)
    table_trim(&tree.children, &tree.memory)
