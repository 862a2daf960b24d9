"""The changes of shape that keep the tree's meaning: edges linked, split, merged and cut off."""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from ...base.native._memory cimport LARGE, array_reserve, array_touch, enlarged_capacity
from ...base.native._table cimport (
    NONE,
    table_hash_pair,
    table_add,
    table_remove,
    table_reserve,
    table_seek,
)
from ...base.native._yield_points cimport yield_after
from ._arena cimport arena_release
from ._canonical_hashes cimport forget_blocks
from ._edge cimport (
    edge_deepest,
    edge_divide,
    edge_mark,
    edge_same_full,
    edge_truncate,
    edge_uncover_all,
)
from ._tree cimport ON_PATH, ROOT, SHADOWS, Edge, Tree
from ._workers cimport list_holders

cdef enum:
    FEW_CHILDREN = 8     # that are cheaper to move than blocks to renumber
    LEAST_EDGES = 16     # entries that are not worth giving back
    TOUCHED_AHEAD = 1 << 12  # edges whose pages are found before they are needed
    OWNERS = 32          # written in the time a block takes to be stored


cdef inline uint32_t find_child(
    const Tree* tree, uint32_t parent, uint64_t local_hash
) noexcept nogil:
    """The edge below `parent` that starts with `local_hash`, or NONE."""
    cdef uint64_t step = 0
    cdef uint32_t hashed
    cdef uint32_t child = tree.edges[parent].first_child
    # The newest child first: an only child needs no table at all.
    if child == NONE or tree.blocks.local_hash[tree.edges[child].start] == local_hash:
        return child
    if tree.edges[child].next == NONE:
        return NONE
    hashed = table_hash_pair(&tree.children, local_hash, parent)
    while True:
        child = table_seek(&tree.children, hashed, &step)
        if child == NONE or (
            tree.edges[child].parent == parent
            and tree.blocks.local_hash[tree.edges[child].start] == local_hash
        ):
            return child


cdef inline void link_child(Tree* tree, uint32_t parent, uint32_t child) noexcept nogil:
    """Hang an edge below another. Capacity in the table must have been reserved."""
    cdef Edge* edge = &tree.edges[child]
    cdef uint32_t after = tree.edges[parent].first_child
    edge.parent = parent
    edge.prev = NONE
    edge.next = after
    if after != NONE:
        tree.edges[after].prev = child
    tree.edges[parent].first_child = child
    table_add(&tree.children, table_hash_pair(&tree.children, tree.blocks.local_hash[edge.start], parent), child)


cdef inline void unlink_child(Tree* tree, uint32_t child) noexcept nogil:
    cdef Edge* edge = &tree.edges[child]
    if edge.prev != NONE:
        tree.edges[edge.prev].next = edge.next
    else:
        tree.edges[edge.parent].first_child = edge.next
    if edge.next != NONE:
        tree.edges[edge.next].prev = edge.prev
    table_remove(&tree.children, table_hash_pair(&tree.children, tree.blocks.local_hash[edge.start], edge.parent), child)


cdef inline bint reserve_edge(Tree* tree) noexcept nogil:
    """Capacity for one more edge and its place below a parent; false without memory."""
    cdef uint32_t ahead
    if not table_reserve(&tree.children, &tree.memory, 1):
        return False
    if tree.edges_free != NONE or tree.edges_used < tree.edges_touched:
        return True
    if tree.edges_used == tree.edges_capacity and not array_reserve(
        &tree.memory,
        &tree.edges,
        &tree.edges_capacity,
        enlarged_capacity(tree.edges_capacity, LEAST_EDGES),
        sizeof(Edge),
    ):
        return False
    ahead = min(tree.edges_used + TOUCHED_AHEAD, tree.edges_capacity)
    if <size_t>tree.edges_capacity * sizeof(Edge) >= LARGE:
        array_touch(&tree.memory, &tree.edges, tree.edges_touched, ahead, sizeof(Edge))
    tree.edges_touched = ahead
    return True


cdef inline void unlist_edge(Tree* tree, uint32_t e) noexcept nogil:
    """Take an edge out of the list of those not in use."""
    cdef const Edge* edge = &tree.edges[e]
    if edge.prev != NONE:
        tree.edges[edge.prev].next = edge.next
    else:
        tree.edges_free = edge.next
    if edge.next != NONE:
        tree.edges[edge.next].prev = edge.prev


cdef inline uint32_t new_edge(Tree* tree) noexcept nogil:
    """An edge without blocks, coverage or parent. Capacity must have been reserved."""
    cdef uint32_t e = tree.edges_free
    if e == NONE:
        e = tree.edges_used
        tree.edges_used += 1
    else:
        unlist_edge(tree, e)
    memset(&tree.edges[e], 0, sizeof(Edge))
    tree.edges[e].parent = tree.edges[e].first_child = NONE
    tree.edges[e].next = tree.edges[e].prev = NONE
    tree.n_edges += 1
    return e


cdef inline void drop_edge(Tree* tree, uint32_t e) noexcept nogil:
    """Forget an edge that is unlinked and has no range any more."""
    edge_uncover_all(&tree.edges[e], &tree.memory)
    tree.edges[e].len = tree.edges[e].cap = 0
    tree.edges[e].first_child = tree.edges[e].prev = NONE
    tree.edges[e].next = tree.edges_free
    if tree.edges_free != NONE:
        tree.edges[tree.edges_free].prev = e
    tree.edges_free = e
    tree.n_edges -= 1


cdef inline void own_range(Tree* tree, uint32_t start, uint32_t n, uint32_t e) noexcept nogil:
    """Let positions name the edge that they are to be blocks of. The tree is whole: no match looks
    at owners."""
    cdef uint32_t i
    for i in range(n):
        tree.blocks.owner[start + i] = e
        if i % OWNERS == OWNERS - 1:
            yield_after(&tree.memory.yield_points, 1)


cdef inline void own_end(Tree* tree, uint32_t e) noexcept nogil:
    """Let the last position of an edge's range name it too."""
    tree.blocks.owner[tree.edges[e].start + tree.edges[e].cap - 1] = e


cdef inline void adopt_children(Tree* tree, uint32_t old, uint32_t new) noexcept nogil:
    """Move the children of one edge to another, which has none."""
    cdef uint32_t child = tree.edges[old].first_child
    tree.edges[new].first_child = child
    tree.edges[old].first_child = NONE
    rename_parent(tree, child, old, new)


cdef inline void rename_parent(
    Tree* tree, uint32_t child, uint32_t old, uint32_t new
) noexcept nogil:
    """The edge that this child and its next siblings hang below has another number."""
    cdef uint64_t local_hash
    while child != NONE:
        local_hash = tree.blocks.local_hash[tree.edges[child].start]
        table_remove(&tree.children, table_hash_pair(&tree.children, local_hash, old), child)
        table_add(&tree.children, table_hash_pair(&tree.children, local_hash, new), child)
        tree.edges[child].parent = new
        child = tree.edges[child].next


cdef inline uint32_t count_children(const Tree* tree, uint32_t e, uint32_t most) noexcept nogil:
    """How many children an edge has; it stops at `most`."""
    cdef uint32_t child = tree.edges[e].first_child
    cdef uint32_t n = 0
    while child != NONE and n < most:
        n += 1
        child = tree.edges[child].next
    return n


cdef inline bint has_few_children(const Tree* tree, uint32_t e) noexcept nogil:
    return count_children(tree, e, FEW_CHILDREN + 1) <= FEW_CHILDREN


cdef inline void move_coverage(Edge* to, Edge* source) noexcept nogil:
    to.n_full = source.n_full
    to.full = source.full
    to.n_words = source.n_words
    to.n_partial = source.n_partial
    to.partial = source.partial
    source.partial = NULL
    source.n_full = source.n_words = source.n_partial = 0


cdef inline bint split_edge(Tree* tree, uint32_t e, uint32_t at) noexcept nogil:
    """Part an edge before its block `at`, 0 < at < len; false, and nothing changed, without memory.

    Block ids stay, so the halves are found by the owner of their blocks. The half that is cheaper
    to renumber becomes the new edge.
    """
    cdef Edge upper, lower
    cdef Edge* old
    cdef Edge* new
    cdef uint32_t n, parent
    cdef bint is_upper
    memset(&upper, 0, sizeof(Edge))
    memset(&lower, 0, sizeof(Edge))
    if not reserve_edge(tree):
        return False
    if not edge_divide(&tree.edges[e], &tree.memory, at, &upper, &lower):
        return False
    n = new_edge(tree)
    old = &tree.edges[e]
    new = &tree.edges[n]
    edge_mark(new, old.mark)
    new.flags = old.flags & SHADOWS
    is_upper = at <= old.len - at or not has_few_children(tree, e)
    if is_upper:
        own_range(tree, old.start, at, n)
    else:
        own_range(tree, old.start + at, old.len - at, n)
    edge_uncover_all(old, &tree.memory)
    if is_upper:
        parent = old.parent
        unlink_child(tree, e)
        new.flags = old.flags  # a chain that is being stored ends in the upper half
        old.flags &= ~ON_PATH
        new.start = old.start
        new.len = new.cap = at
        old.start += at
        old.len -= at
        old.cap -= at
        move_coverage(new, &upper)
        move_coverage(old, &lower)
        link_child(tree, parent, n)
        link_child(tree, n, e)
    else:
        new.start = old.start + at
        new.len = old.len - at
        new.cap = old.cap - at
        old.len = old.cap = at
        move_coverage(old, &upper)
        move_coverage(new, &lower)
        own_end(tree, n)
        adopt_children(tree, e, n)
        link_child(tree, e, n)
    list_holders(tree, n)
    return True


cdef inline void merge_edge(Tree* tree, uint32_t e) noexcept nogil:
    """Join an edge with its child again if a split between them has become needless."""
    cdef Edge* upper = &tree.edges[e]
    cdef uint32_t c = upper.first_child
    cdef Edge* lower
    cdef uint32_t parent
    if e == ROOT or c == NONE:
        return
    lower = &tree.edges[c]
    if (
        lower.next != NONE
        or lower.start != upper.start + upper.len
        or upper.n_partial + lower.n_partial != 0
        or not edge_same_full(upper, lower)
    ):
        return
    if upper.len > lower.len and has_few_children(tree, c):
        own_range(tree, lower.start, lower.len, e)
        unlink_child(tree, c)
        upper.len += lower.len
        upper.cap += lower.cap
        own_end(tree, e)
        edge_mark(upper, lower.mark)
        upper.flags |= lower.flags & SHADOWS
        adopt_children(tree, c, e)
        drop_edge(tree, c)
    else:
        parent = upper.parent
        own_range(tree, upper.start, upper.len, c)
        unlink_child(tree, c)
        unlink_child(tree, e)
        lower.start = upper.start
        lower.len += upper.len
        lower.cap += upper.len
        edge_mark(lower, upper.mark)
        lower.flags = upper.flags | (lower.flags & SHADOWS)
        link_child(tree, parent, c)
        drop_edge(tree, e)


cdef inline uint32_t settle_edge(Tree* tree, uint32_t e) noexcept nogil:
    """After coverage was lost: cut off what no worker holds, upwards, and merge what can be.

    Returns the lowest edge that is left of it. Without memory for the new coverage the rest stays
    as it is, which matches alike.
    """
    cdef Edge* edge
    cdef uint32_t deepest, parent, first, n
    while e != ROOT:
        edge = &tree.edges[e]
        parent = edge.parent
        first = edge.start
        deepest = edge.len if edge.first_child != NONE else edge_deepest(edge)
        if deepest != 0:
            if deepest < edge.len:
                n = edge.len - deepest
                if not edge_truncate(edge, &tree.memory, deepest):
                    return e
                forget_blocks(tree, edge, edge.start + deepest, n)
                arena_release(&tree.blocks, edge.start + deepest, edge.cap - deepest)
                edge.cap = deepest
            merge_edge(tree, e)
            merge_edge(tree, parent)
            return tree.blocks.owner[first]
        forget_blocks(tree, edge, edge.start, edge.len)
        unlink_child(tree, e)
        arena_release(&tree.blocks, edge.start, edge.cap)
        drop_edge(tree, e)
        e = parent
    return ROOT
