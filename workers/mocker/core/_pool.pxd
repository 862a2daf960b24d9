# _pool.pxd: the paged prefix cache of a virtual engine. Restates kv_manager.py and evictor.py.
#
# A full block is known by its sequence hash and has an id while it is cached; a partial block is
# only counted. A request holds its blocks from the first one on and lets go of the last one first,
# so the cached blocks of any request are a prefix of it: a look-up can stop at the first miss.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

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

cdef struct Block:
    uint64_t sequence_hash  # also the external hash
    uint64_t local_hash
    uint64_t serial    # when it came into the cache: a parent's is lower than its children's
    uint32_t parent    # id of the block before it, which is cached too; NONE at the start
    uint32_t holders   # requests that hold it
    uint32_t older     # neighbours in eviction order while nobody holds it; `newer` also links
    uint32_t newer     # the ids that are free

cdef struct Pool:
    Block* blocks      # by id
    uint32_t allocated # blocks there is memory for
    uint32_t used      # ids ever given out
    uint32_t vacant    # the first free id
    uint32_t capacity  # most blocks, full and partial, held and not
    uint32_t active    # blocks that are held, partial ones included
    uint32_t inactive  # cached blocks that nobody holds
    uint32_t oldest    # of those, the first to leave
    uint32_t newest    # and the last
    uint64_t serial    # of the next block
    uint64_t version   # grows with every change
    Table table        # id by sequence hash
    Memory memory      # of the table


cdef inline void pool_init(Pool* pool, uint32_t capacity) noexcept nogil:
    """`pool` is zeroed."""
    pool.capacity = capacity
    pool.vacant = pool.oldest = pool.newest = NONE
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


cdef inline void pool_unlink(Pool* pool, uint32_t id) noexcept nogil:
    """Take a block out of the eviction order."""
    cdef Block* block = &pool.blocks[id]
    if block.older != NONE:
        pool.blocks[block.older].newer = block.newer
    else:
        pool.oldest = block.newer
    if block.newer != NONE:
        pool.blocks[block.newer].older = block.older
    else:
        pool.newest = block.older
    pool.inactive -= 1


cdef inline void pool_acquire(Pool* pool, uint32_t id) noexcept nogil:
    """One holder more for a cached block."""
    if pool.blocks[id].holders == 0:
        pool_unlink(pool, id)
        pool.active += 1
    pool.blocks[id].holders += 1
    pool.version += 1


cdef inline void pool_release(Pool* pool, uint32_t id) noexcept nogil:
    """One holder less; a block that loses the last one becomes the newest to evict."""
    cdef Block* block = &pool.blocks[id]
    block.holders -= 1
    pool.version += 1
    if block.holders:
        return
    block.older = pool.newest
    block.newer = NONE
    if pool.newest != NONE:
        pool.blocks[pool.newest].newer = id
    else:
        pool.oldest = id
    pool.newest = id
    pool.active -= 1
    pool.inactive += 1


cdef inline uint64_t pool_evict(Pool* pool) noexcept nogil:
    """Drop the oldest block that nobody holds (there is one); its sequence hash."""
    cdef uint32_t id = pool.oldest
    cdef uint64_t sequence_hash = pool.blocks[id].sequence_hash
    pool_unlink(pool, id)
    table_remove(&pool.table, table_hash(&pool.table, sequence_hash), id)
    pool.blocks[id].newer = pool.vacant
    pool.vacant = id
    pool.version += 1
    return sequence_hash


cdef inline uint32_t pool_add(
    Pool* pool, uint64_t sequence_hash, uint64_t local_hash, uint32_t parent
) noexcept nogil:
    """Cache a new block with one holder; NONE if there is no memory."""
    cdef uint32_t id = pool.vacant
    cdef uint32_t allocated
    cdef Block* grown
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
    pool.blocks[id].sequence_hash = sequence_hash
    pool.blocks[id].local_hash = local_hash
    pool.blocks[id].serial = pool.serial
    pool.blocks[id].parent = parent
    pool.blocks[id].holders = 1
    pool.serial += 1
    pool.active += 1
    pool.version += 1
    table_add(&pool.table, table_hash(&pool.table, sequence_hash), id)
    return id
