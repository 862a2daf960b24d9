# _pool.pxd: the blocks of one storage tier of a virtual engine: its device's, or those below.
#
# A full block is known by its sequence hash and has an id while it is cached; a partial block is
# only counted. A request holds its blocks from the first one on and lets go of the last one first,
# so the device's blocks of any request are a prefix of it: a look-up can stop at the first miss.
#
# Blocks that nobody holds leave by level, the lowest first, and within a level in the order in
# which they were let go of. A level above the usual one may end at some time: the block then counts
# as let go of at the usual level at that time. Where uses are counted (multi-lru), a level has four
# parts by how often the block was used, the seldom used one first. A block's level is at least that of the blocks behind
# it, and lasts at least as long, so a parent leaves after them. Under lineage eviction, a block that
# has others behind it is in no order at all: it gets its place, as the newest, when the last of
# those has left.
from libc.math cimport INFINITY
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from ....base.native._memory cimport Memory, memory_init
from ....base.native._mix cimport GOLDEN
from ....base.native._table cimport (
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

from ._deadlines cimport (
    Deadline,
    Deadlines,
    deadlines_free,
    deadlines_pop,
    deadlines_push,
    deadlines_reserve,
    deadlines_sift,
)

cdef enum:
    HEATS = 4              # how often a block was used: see _frequency.pxd; 0 unless that counts
    LEVELS = 404           # TensorRT-LLM's retention priorities, 0 to 100, each with its heats
    USUAL_LEVEL = 140      # the default priority, 35, at heat 0
    HOTTEST_USUAL = 143    # and at the highest; levels above it may end

cdef struct Block:
    uint64_t sequence_hash  # also the external hash
    uint64_t local_hash
    uint64_t parent_hash   # of the block before it, in whatever tier, if it has_parent
    uint64_t serial        # when it came into the tier: on the device after its parent
    double ready           # when it can be used: its transfer from a lower tier is over
    double expires         # when its level falls to the usual one; INFINITY: never
    double awaited         # the one of its deadlines that is kept; 0: none
    double behind_until    # when the last of the blocks behind it has fallen to the usual level
    uint32_t parent        # on the device: id of the block before it; NONE at the start
    uint32_t holders       # requests that hold it
    uint32_t older         # neighbours in eviction order while it is `listed`; `newer` also links
    uint32_t newer         # the ids that are free
    uint32_t behind        # blocks behind it that nobody holds; on the device
    uint16_t behind_level  # the highest at which one of those was let go of while there were any
    uint16_t level
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
    uint32_t oldest[404]   # of those that are listed, the first to leave of each level
    uint32_t newest[404]   # and the last
    int lowest             # no level below it has any
    Deadlines deadlines    # of levels that end
    uint64_t serial        # of the next block
    uint64_t version       # grows with every change
    bint lineage           # evict leaves only: see above
    bint heats             # uses are counted: levels have their four parts
    bint below             # it is a lower tier's
    Table table            # id by sequence hash
    Memory memory          # of the table


cdef inline void pool_init(
    Pool* pool, uint32_t capacity, bint lineage, bint below
) noexcept nogil:
    """`pool` is zeroed. `below`: of a lower tier, into which blocks come before their parents."""
    cdef int level
    pool.capacity = capacity
    pool.lineage = lineage
    pool.below = below
    pool.vacant = NONE
    for level in range(LEVELS):
        pool.oldest[level] = pool.newest[level] = NONE
    pool.lowest = LEVELS
    memory_init(&pool.memory)
    table_init(&pool.table, GOLDEN)  # every run alike


cdef inline void pool_free(Pool* pool) noexcept nogil:
    free(pool.blocks)
    pool.blocks = NULL
    deadlines_free(&pool.deadlines)
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
    cdef uint16_t level = block.level
    block.listed = 1
    block.older = pool.newest[level]
    block.newer = NONE
    if block.older != NONE:
        pool.blocks[block.older].newer = id
    else:
        pool.oldest[level] = id
    pool.newest[level] = id
    if level < pool.lowest:
        pool.lowest = level


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
    while pool.lowest < LEVELS and pool.oldest[pool.lowest] == NONE:
        pool.lowest += 1 if pool.heats else HEATS


cdef inline void pool_acquire(Pool* pool, uint32_t id) noexcept nogil:
    """One holder more for a cached block."""
    cdef Block* block = &pool.blocks[id]
    if block.holders == 0:
        pool_unlink(pool, id)
        if block.parent != NONE:
            pool.blocks[block.parent].behind -= 1
        pool.inactive -= 1
        pool.active += 1
    block.holders += 1
    pool.version += 1


cdef inline uint64_t deadline_order(const Pool* pool, const Block* block) noexcept nogil:
    """Of levels that end at one time the lowest order ends first: a parent's after those behind it."""
    return block.serial if pool.below else ~block.serial


cdef inline bint is_due(const Pool* pool, const Deadline* due) noexcept nogil:
    """Whether the block still has the level that was to end then."""
    cdef const Block* block = &pool.blocks[due.id]
    return (
        block.holders == 0 and block.expires == due.at
        and deadline_order(pool, block) == due.order
    )


cdef inline void pool_forget(Pool* pool, const Deadline* due) noexcept nogil:
    """A deadline is not kept any more."""
    cdef Block* block = &pool.blocks[due.id]
    if block.awaited == due.at and deadline_order(pool, block) == due.order:
        block.awaited = 0.0


cdef inline int pool_reserve_deadlines(Pool* pool) noexcept nogil:
    """Levels of this pool may end from now on: 0; -1: no memory."""
    return deadlines_reserve(&pool.deadlines, 2 * pool.capacity + 1) if pool.capacity else 0


cdef inline void pool_await(Pool* pool, uint32_t id) noexcept nogil:
    """Remember when a block's level ends, unless it is remembered. Half of what is may be outdated.
    """
    cdef Deadlines* deadlines = &pool.deadlines
    cdef Deadline due
    cdef uint32_t place, kept = 0
    if pool.blocks[id].awaited == pool.blocks[id].expires:
        return
    if deadlines.length == deadlines.capacity:
        for place in range(deadlines.length):
            if is_due(pool, &deadlines.heap[place]):
                deadlines.heap[kept] = deadlines.heap[place]
                kept += 1
            else:
                pool_forget(pool, &deadlines.heap[place])
        deadlines.length = kept
        for place in range(kept // 2, 0, -1):
            deadlines_sift(deadlines, place - 1)
    due.at = pool.blocks[id].expires
    due.order = deadline_order(pool, &pool.blocks[id])
    due.id = id
    pool.blocks[id].awaited = due.at
    deadlines_push(deadlines, due)


cdef inline void pool_set_level(
    Pool* pool, uint32_t id, uint16_t level, double expires
) noexcept nogil:
    """A block that nobody holds gets a level, at least that of the blocks behind it."""
    cdef Block* block = &pool.blocks[id]
    if level <= HOTTEST_USUAL:
        expires = 0.0
    if block.behind and block.behind_level >= level:
        level = block.behind_level
        expires = max(expires, block.behind_until)
    block.level = level
    block.expires = expires if level > HOTTEST_USUAL else INFINITY
    if block.expires < INFINITY:
        pool_await(pool, id)


cdef inline void pool_release(
    Pool* pool, uint32_t id, uint16_t level, double expires
) noexcept nogil:
    """One holder less; a block that loses the last one becomes the newest to evict of its level.

    A level above the usual one ends at `expires`, if that is finite: pool_reserve_deadlines was
    called.
    """
    cdef Block* block = &pool.blocks[id]
    cdef Block* parent
    block.holders -= 1
    pool.version += 1
    if block.holders:
        return
    pool_set_level(pool, id, level, expires)
    if block.parent != NONE:
        parent = &pool.blocks[block.parent]
        if parent.behind == 0:
            parent.behind_level = 0
            parent.behind_until = 0.0
        parent.behind += 1
        parent.behind_level = max(parent.behind_level, block.level)
        if block.level > HOTTEST_USUAL:
            parent.behind_until = max(parent.behind_until, block.expires)
    pool.active -= 1
    pool.inactive += 1
    if not pool.lineage or block.behind == 0:
        pool_link(pool, id)


cdef inline uint16_t level_after(const Pool* pool, const Block* block) noexcept nogil:
    """The usual level of a block whose own has ended: not below that of the blocks behind it."""
    if not pool.heats or not block.behind:
        return USUAL_LEVEL
    return min(max(<int>block.behind_level, <int>USUAL_LEVEL), <int>HOTTEST_USUAL)


cdef inline void pool_expire(Pool* pool, double now) noexcept nogil:
    """Levels that end until then end, in the order of time."""
    cdef Deadline due
    cdef Block* block
    cdef bint listed
    while pool.deadlines.length and pool.deadlines.heap[0].at <= now:
        due = deadlines_pop(&pool.deadlines)
        pool_forget(pool, &due)
        if not is_due(pool, &due):
            continue
        block = &pool.blocks[due.id]
        listed = block.listed
        pool_unlink(pool, due.id)
        if block.behind and block.behind_until > due.at:
            pool_set_level(pool, due.id, block.behind_level, block.behind_until)
        else:
            block.level = level_after(pool, block)
            block.expires = INFINITY
        if listed:
            pool_link(pool, due.id)


cdef inline void pool_drop(Pool* pool, uint32_t id) noexcept nogil:
    """Forget a block that nobody holds. Its data stay readable until the next one is added."""
    cdef Block* block = &pool.blocks[id]
    cdef Block* parent
    pool_unlink(pool, id)
    pool.inactive -= 1
    if block.parent != NONE:
        parent = &pool.blocks[block.parent]
        parent.behind -= 1
        if pool.lineage and parent.holders == 0 and parent.behind == 0:
            pool_link(pool, block.parent)
    table_remove(&pool.table, table_hash(&pool.table, block.sequence_hash), id)
    block.expires = INFINITY
    block.newer = pool.vacant
    pool.vacant = id
    pool.version += 1


cdef inline uint32_t pool_next(const Pool* pool) noexcept nogil:
    """The block to evict next, NONE if every block is held."""
    return pool.oldest[pool.lowest] if pool.lowest < LEVELS else NONE


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
    block.expires = INFINITY
    block.holders = 1
    pool.serial += 1
    pool.active += 1
    pool.version += 1
    table_add(&pool.table, table_hash(&pool.table, sequence_hash), id)
    return id
