# _pool.pxd: the blocks of one storage tier of a virtual engine: its device's, or those below.
#
# A full block is known by its sequence hash and has an id while it is cached; a partial block is
# only counted. A request holds its blocks from the first one on and lets go of the last one first,
# so the device's blocks of any request are a prefix of it: a look-up can stop at the first miss.
#
# Blocks that nobody holds leave by level, the lowest first, and within a level in the order in
# which they were let go of. A block's level is at least that of the blocks behind it, so a parent
# leaves after them. Under lineage eviction, a block that has others behind it is in no order at
# all: it gets its place, as the newest, when the last of those has left.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from ....runtime.native._memory cimport Memory, memory_init
from ....runtime.native._mix cimport GOLDEN
from ....runtime.native._table cimport (
    NONE,
    Table,
    table_hash,
    table_add,
    table_free,
    table_init,
    table_remove,
    table_reserve,
    table_seek,
)

cdef enum:
    LEVELS = 3             # never needed again, unknown, promised to return
    USUAL_LEVEL = 1

cdef struct Block:
    uint64_t sequence_hash  # also the external hash
    uint64_t local_hash
    uint64_t parent_hash   # of the block before it, in whatever tier, if it has_parent
    uint64_t serial        # when it came into the tier: on the device after its parent
    double ready           # when it can be used: its transfer from a lower tier is over
    uint32_t parent        # on the device: id of the block before it; NONE at the start
    uint32_t holders       # requests that hold it
    uint32_t older         # neighbours in eviction order while it is `listed`; `newer` also links
    uint32_t newer         # the ids that are free
    uint32_t behind[3]     # blocks behind it that nobody holds, by their levels; on the device
    uint8_t level
    uint8_t listed         # whether it is in the order of eviction
    uint8_t has_parent

cdef struct Pool:
    Block* blocks          # by id
    uint32_t allocated     # blocks there is memory for
    uint32_t used          # ids ever given out
    uint32_t vacant        # the first free id
    uint32_t capacity      # most blocks, full and partial, held and not
    uint32_t active        # blocks that are held, partial ones included
    uint32_t inactive      # cached blocks that nobody holds
    uint32_t oldest[3]     # of those that are listed, the first to leave of each level
    uint32_t newest[3]     # and the last
    uint64_t serial        # of the next block
    uint64_t version       # grows with every change
    bint lineage           # evict leaves only: see above
    Table table            # id by sequence hash
    Memory memory          # of the table


cdef inline void pool_init(Pool* pool, uint32_t capacity, bint lineage) noexcept nogil:
    """`pool` is zeroed."""
    cdef int level
    pool.capacity = capacity
    pool.lineage = lineage
    pool.vacant = NONE
    for level in range(LEVELS):
        pool.oldest[level] = pool.newest[level] = NONE
    memory_init(&pool.memory)
    table_init(&pool.table, GOLDEN)  # every run alike


cdef inline void pool_free(Pool* pool) noexcept nogil:
    free(pool.blocks)
    pool.blocks = NULL
    table_free(&pool.table, &pool.memory)


cdef inline uint32_t pool_find(const Pool* pool, uint64_t sequence_hash) noexcept nogil:
    """The id of a cached block; NONE if it is not cached."""
    cdef uint32_t hashed = table_hash(&pool.table, sequence_hash)
    cdef uint64_t step = 0
    cdef uint32_t id = table_seek(&pool.table, hashed, &step)
    while id != NONE and pool.blocks[id].sequence_hash != sequence_hash:
        id = table_seek(&pool.table, hashed, &step)
    return id


cdef inline void pool_link(Pool* pool, uint32_t id) noexcept nogil:
    """Put a block that nobody holds into the eviction order, as its level's newest."""
    cdef Block* block = &pool.blocks[id]
    cdef uint8_t level = block.level
    block.listed = 1
    block.older = pool.newest[level]
    block.newer = NONE
    if block.older != NONE:
        pool.blocks[block.older].newer = id
    else:
        pool.oldest[level] = id
    pool.newest[level] = id


cdef inline void pool_unlink(Pool* pool, uint32_t id) noexcept nogil:
    """Take a block out of the eviction order, if it is in it."""
    cdef Block* block = &pool.blocks[id]
    if not block.listed:
        return
    block.listed = 0
    if block.older != NONE:
        pool.blocks[block.older].newer = block.newer
    else:
        pool.oldest[block.level] = block.newer
    if block.newer != NONE:
        pool.blocks[block.newer].older = block.older
    else:
        pool.newest[block.level] = block.older


cdef inline bint is_leaf(const Block* block) noexcept nogil:
    return block.behind[0] + block.behind[1] + block.behind[2] == 0


cdef inline void pool_acquire(Pool* pool, uint32_t id) noexcept nogil:
    """One holder more for a cached block."""
    cdef Block* block = &pool.blocks[id]
    if block.holders == 0:
        pool_unlink(pool, id)
        if block.parent != NONE:
            pool.blocks[block.parent].behind[block.level] -= 1
        pool.inactive -= 1
        pool.active += 1
    block.holders += 1
    pool.version += 1


cdef inline void pool_release(Pool* pool, uint32_t id, uint8_t level) noexcept nogil:
    """One holder less; a block that loses the last one becomes the newest to evict of its level."""
    cdef Block* block = &pool.blocks[id]
    block.holders -= 1
    pool.version += 1
    if block.holders:
        return
    if block.behind[2]:
        level = 2
    elif block.behind[1] and level == 0:
        level = 1
    block.level = level
    if block.parent != NONE:
        pool.blocks[block.parent].behind[level] += 1
    pool.active -= 1
    pool.inactive += 1
    if not pool.lineage or is_leaf(block):
        pool_link(pool, id)


cdef inline void pool_drop(Pool* pool, uint32_t id) noexcept nogil:
    """Forget a block that nobody holds. Its data stay readable until the next one is added."""
    cdef Block* block = &pool.blocks[id]
    cdef Block* parent
    pool_unlink(pool, id)
    pool.inactive -= 1
    if block.parent != NONE:
        parent = &pool.blocks[block.parent]
        parent.behind[block.level] -= 1
        if pool.lineage and parent.holders == 0 and is_leaf(parent):
            pool_link(pool, block.parent)
    table_remove(&pool.table, table_hash(&pool.table, block.sequence_hash), id)
    block.newer = pool.vacant
    pool.vacant = id
    pool.version += 1


cdef inline uint32_t pool_next(const Pool* pool) noexcept nogil:
    """The block to evict next, NONE if every block is held."""
    cdef int level
    for level in range(LEVELS):
        if pool.oldest[level] != NONE:
            return pool.oldest[level]
    return NONE


cdef inline uint32_t pool_add(
    Pool* pool, uint64_t sequence_hash, uint64_t local_hash, uint32_t parent
) noexcept nogil:
    """Cache a new block with one holder; NONE if there is no memory.

    `parent` is an id of this pool, or NONE.
    """
    cdef uint32_t id = pool.vacant
    cdef uint32_t allocated
    cdef Block* grown
    cdef Block* block
    if not table_reserve(&pool.table, &pool.memory, 1):
        return NONE
    if id != NONE:
        pool.vacant = pool.blocks[id].newer
    else:
        if pool.used == pool.allocated:
            allocated = 64 if pool.allocated < 32 else pool.allocated * 2
            if allocated > pool.capacity:
                allocated = pool.capacity
            grown = <Block*>realloc(pool.blocks, allocated * sizeof(Block))
            if grown == NULL:
                return NONE
            pool.blocks = grown
            pool.allocated = allocated
        id = pool.used
        pool.used += 1
    block = &pool.blocks[id]
    memset(block, 0, sizeof(Block))
    block.sequence_hash = sequence_hash
    block.local_hash = local_hash
    block.serial = pool.serial
    block.parent = parent
    if parent != NONE:
        block.has_parent = 1
        block.parent_hash = pool.blocks[parent].sequence_hash
    block.level = USUAL_LEVEL
    block.holders = 1
    pool.serial += 1
    pool.active += 1
    pool.version += 1
    table_add(&pool.table, table_hash(&pool.table, sequence_hash), id)
    return id
