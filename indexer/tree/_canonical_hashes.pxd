"""The table of canonical external hashes: which block an engine means.

A block that leaves the tree one by one takes its entry along. What a whole worker leaves behind at
once stays in the table, stale, for that would be most of the work: a look-up passes over an entry
whose position is not a block of that hash any more. The table is made anew without them, from the
blocks there are, when they are seven of eight entries, when blocks move anyway (_compact.pxd), or,
if they are a quarter of it, when it would have to grow.
"""
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._table cimport (
    NONE,
    Table,
    table_hash,
    table_add,
    table_bits,
    table_has_capacity,
    table_open,
    table_prefetch,
    table_put,
    table_remove,
    table_replace,
    table_reserve,
    table_seek,
    table_trim,
)
from ...base.native._yield_points cimport exclude_readers, admit_readers, yield_after
from ._tree cimport AHEAD, SHADOWS, Edge, Tree

cdef enum:
    FEW_STALE = 4        # one stale entry of this many in a full table is not worth a new table
    MOST_STALE = 8       # entries a block, or slots, from which on a new table is due


cdef inline bint is_live(const Tree* tree, uint32_t block) noexcept nogil:
    """Whether a position is a block of the tree.

    An owner that has not been overwritten since the block left names an edge that is not in use, or
    is elsewhere now.
    """
    cdef uint32_t e
    if block >= tree.blocks.used:
        return False
    e = tree.blocks.owner[block]
    return e < tree.edges_used and block - tree.edges[e].start < tree.edges[e].len


cdef inline uint32_t find_canonical(const Tree* tree, uint64_t external_hash) noexcept nogil:
    """The block whose canonical hash this is, or NONE."""
    cdef uint64_t step = 0
    cdef uint32_t hashed = table_hash(&tree.by_external_hash, external_hash)
    cdef uint32_t block
    while True:
        block = table_seek(&tree.by_external_hash, hashed, &step)
        if block == NONE:
            return NONE
        if (
            block < tree.blocks.used
            and tree.blocks.external_hash[block] == external_hash
            and (tree.stale == 0 or is_live(tree, block))
        ):
            return block


cdef inline bint is_canonical(const Tree* tree, uint32_t block) noexcept nogil:
    return tree.shadowed == 0 or find_canonical(tree, tree.blocks.external_hash[block]) == block


cdef inline uint32_t enter_run(Tree* tree, uint32_t start, uint32_t i, uint32_t hashed) noexcept nogil:
    """Enter the canonical hash of block start + i, which is not in the tree yet; those from `start`
    on are entered already. False if it is another block's. Capacity must have been reserved.
    """
    cdef uint64_t external_hash = tree.blocks.external_hash[start + i]
    cdef uint64_t step = 0
    cdef bint known = False
    cdef uint32_t other
    while True:
        other = table_seek(&tree.by_external_hash, hashed, &step)
        if other == NONE:
            break
        if other == start + i:
            known = True  # from an earlier life of the position
        elif other - start < i or tree.stale == 0 or is_live(tree, other):
            if tree.blocks.external_hash[other] == external_hash:
                return False
    if known:
        tree.stale -= 1
    else:
        table_put(&tree.by_external_hash, hashed, step, start + i)
    return True


cdef inline void shadow_block(Tree* tree, uint32_t block) noexcept nogil:
    """A block goes in whose hash is another one's: it has no entry, not even a stale one."""
    cdef uint32_t hashed = table_hash(&tree.by_external_hash, tree.blocks.external_hash[block])
    while tree.stale != 0 and table_remove(&tree.by_external_hash, hashed, block):
        tree.stale -= 1
    tree.shadowed += 1


cdef inline void forget_blocks(
    Tree* tree, const Edge* edge, uint32_t start, uint32_t n
) noexcept nogil:
    """Take blocks that leave an edge out of the table. No match finds them any more."""
    cdef const uint64_t* external_hashes = tree.blocks.external_hash + start
    cdef uint32_t i
    if tree.leaving_stale and not edge.flags & SHADOWS:
        tree.stale += n
        tree.n_blocks -= n
        return
    for i in range(min(n, <uint32_t>AHEAD)):
        table_prefetch(&tree.by_external_hash, table_hash(&tree.by_external_hash, external_hashes[i]))
    for i in range(n):
        if i + AHEAD < n:
            table_prefetch(&tree.by_external_hash, table_hash(&tree.by_external_hash, external_hashes[i + AHEAD]))
        if not table_remove(&tree.by_external_hash, table_hash(&tree.by_external_hash, external_hashes[i]), start + i):
            tree.shadowed -= 1
        yield_after(&tree.memory.yield_points, 1)
    tree.n_blocks -= n


cdef inline void fill_hashes(Tree* tree, Table* new) noexcept nogil:
    """Let an empty table take the place of the present one, without stale entries."""
    cdef const Edge* edge
    cdef uint32_t e, i
    cdef const uint64_t* external_hashes
    admit_readers(&tree.memory.yield_points)
    for e in range(1, tree.edges_used):
        edge = &tree.edges[e]
        external_hashes = tree.blocks.external_hash + edge.start
        for i in range(min(edge.len, <uint32_t>AHEAD)):
            table_prefetch(new, table_hash(&tree.by_external_hash, external_hashes[i]))
        for i in range(edge.len):
            if i + AHEAD < edge.len:
                table_prefetch(new, table_hash(&tree.by_external_hash, external_hashes[i + AHEAD]))
            if (
                not edge.flags & SHADOWS
                or find_canonical(tree, external_hashes[i]) == edge.start + i
            ):
                table_add(new, table_hash(&tree.by_external_hash, external_hashes[i]), edge.start + i)
    exclude_readers(&tree.memory.yield_points)
    table_replace(&tree.by_external_hash, new, &tree.memory)
    tree.stale = 0


cdef inline bint rebuild_hashes(Tree* tree, uint32_t bits) noexcept nogil:
    """Make the table anew, of 2**bits slots, without stale entries; false without memory."""
    cdef Table new
    if not table_open(&new, &tree.memory, bits):
        return False
    fill_hashes(tree, &new)
    return True


cdef inline bint reserve_hashes(Tree* tree, uint32_t more) noexcept nogil:
    """Capacity for `more` entries; false without memory."""
    cdef Table* table = &tree.by_external_hash
    cdef uint64_t live = table.count - tree.stale
    if table_has_capacity(table, more):
        return True
    if tree.stale * FEW_STALE > table.count and rebuild_hashes(
        tree, table_bits(live + more + live // 4, 4)
    ):
        return True
    return table_reserve(table, &tree.memory, more)


cdef inline void trim_hashes(Tree* tree) noexcept nogil:
    """Give memory back if most of the table is stale or empty, and there is memory to do so."""
    cdef Table* table = &tree.by_external_hash
    cdef uint64_t live = table.count - tree.stale
    if tree.stale == 0:
        table_trim(table, &tree.memory)
    elif table.count > MOST_STALE * live or live * (2 * MOST_STALE) <= table.mask:
        rebuild_hashes(tree, table_bits(live, 2))
