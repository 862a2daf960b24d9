# _lower_tiers.pxd: host memory and disk below a device's cache.
#
# A block is in one tier at a time. What the device evicts goes down to host memory, what that has
# no room for goes to disk, and what that has no room for is gone. What a prompt needs is loaded
# onto the device, and leaves the tier it was in. Each tier has a link to the device, which carries
# one block after another.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from ....base.native._table cimport NONE
from ._journal cimport (
    ENTRY_REMOVED,
    ENTRY_STORED,
    Entry,
    Journal,
    journal_open,
    journal_put,
)
from ._limits cimport LOWER, CacheLimits
from ._pool cimport (
    Block,
    Pool,
    pool_add,
    pool_drop,
    pool_expire,
    pool_find,
    pool_free,
    pool_init,
    pool_next,
    pool_release,
    pool_reserve_deadlines,
)

cdef struct LowerTiers:
    Pool pools[2]          # host memory, disk
    double block_s[2]      # see CacheLimits
    double link_free[2]    # when the tier's link has carried all that it was given
    bint any               # whether there is a tier
    bint told              # whether its blocks are announced


cdef inline void tiers_init(LowerTiers* tiers, const CacheLimits* limits) noexcept nogil:
    """`tiers` is zeroed."""
    cdef int i
    for i in range(LOWER):
        pool_init(&tiers.pools[i], limits.lower_blocks[i], False, True)
        tiers.block_s[i] = limits.block_s[i]
        tiers.any = tiers.any or limits.lower_blocks[i] > 0
    tiers.told = tiers.any and not limits.hidden


cdef inline void tiers_free(LowerTiers* tiers) noexcept nogil:
    cdef int i
    for i in range(LOWER):
        pool_free(&tiers.pools[i])


cdef inline void tiers_expire(LowerTiers* tiers, double now) noexcept nogil:
    """See pool_expire."""
    cdef int i
    for i in range(LOWER):
        pool_expire(&tiers.pools[i], now)


cdef inline int tiers_reserve_deadlines(LowerTiers* tiers) noexcept nogil:
    """See pool_reserve_deadlines."""
    cdef int i, status = 0
    for i in range(LOWER):
        status |= pool_reserve_deadlines(&tiers.pools[i])
    return status


cdef inline int tier_of(const LowerTiers* tiers, uint64_t sequence_hash, uint32_t* id) noexcept nogil:
    """Which tier has a block, and under which id; -1: none."""
    cdef int i
    if tiers.any:
        for i in range(LOWER):
            id[0] = pool_find(&tiers.pools[i], sequence_hash)
            if id[0] != NONE:
                return i
    return -1


cdef inline double tier_load(LowerTiers* tiers, int tier, double now) noexcept nogil:
    """Give the tier's link one block more to carry; when that is on the device."""
    if tiers.link_free[tier] < now:
        tiers.link_free[tier] = now
    tiers.link_free[tier] += tiers.block_s[tier]
    return tiers.link_free[tier]


cdef inline int tell_stored(
    Journal* journal, double now, int tier, const Block* blocks, uint32_t n
) noexcept nogil:
    """Tell that these came into a lower tier, in chains: the last one is the first of its chain."""
    cdef Entry* entry = NULL
    cdef uint32_t i
    cdef uint64_t previous = 0
    for i in range(n, 0, -1):
        block = &blocks[i - 1]
        if entry == NULL or not block.has_parent or block.parent_hash != previous:
            entry = journal_open(journal, ENTRY_STORED, i)
            if entry == NULL:
                return -1
            entry.time = now
            entry.tier = tier + 1
            entry.has_parent = block.has_parent
            entry.parent = block.parent_hash
        journal_put(journal, entry, block.sequence_hash, block.local_hash)
        previous = block.sequence_hash
    return 0


cdef inline int tell_removed(
    Journal* journal, double now, int tier, const Block* blocks, uint32_t n
) noexcept nogil:
    """Tell that these have left a lower tier."""
    cdef Entry* entry
    cdef uint32_t i
    if n == 0:
        return 0
    entry = journal_open(journal, ENTRY_REMOVED, n)
    if entry == NULL:
        return -1
    entry.time = now
    entry.tier = tier + 1
    for i in range(n):
        journal_put(journal, entry, blocks[i].sequence_hash, 0)
    return 0


cdef inline int tiers_push_down(
    LowerTiers* tiers, Journal* journal, double now, int tier, const Block* blocks, uint32_t n
) noexcept nogil:
    """Blocks that the tier above has evicted, in that order, go to this one; -1: no memory.

    Room is made for all of them first. Where they are more than the tier holds, the first of them
    pass it by. They are told of here; that they have left where they were, by the caller.
    """
    cdef Pool* pool
    cdef Block* evicted
    cdef uint32_t over, excess, i, id
    cdef bint tell = tiers.told and journal.on
    cdef int status = 0
    while tier < LOWER and tiers.pools[tier].capacity == 0:
        tier += 1
    if tier == LOWER or n == 0:
        return 0
    pool = &tiers.pools[tier]
    over = n - pool.capacity if n > pool.capacity else 0
    excess = pool.inactive + n - over
    excess = excess - pool.capacity if excess > pool.capacity else 0
    evicted = <Block*>malloc((excess + over + 1) * sizeof(Block))
    if evicted == NULL:
        return -1
    for i in range(excess):
        id = pool_next(pool)
        evicted[i] = pool.blocks[id]
        pool_drop(pool, id)
    for i in range(over):
        evicted[excess + i] = blocks[i]
    status = tiers_push_down(tiers, journal, now, tier + 1, evicted, excess + over)
    if status == 0 and tell:
        status = tell_removed(journal, now, tier, evicted, excess)
    free(evicted)
    for i in range(over, n):
        if status < 0:
            break
        id = pool_add(pool, blocks[i].sequence_hash, blocks[i].local_hash, NONE)
        if id == NONE:
            return -1
        pool.blocks[id].has_parent = blocks[i].has_parent
        pool.blocks[id].parent_hash = blocks[i].parent_hash
        pool_release(pool, id, blocks[i].level, blocks[i].expires)
    if status == 0 and tell:
        status = tell_stored(journal, now, tier, blocks + over, n - over)
    return status
