"""The blocks in use: sequence hash -> the workers that hold it, each with a reference count.

A hash table with linear probing. Entries move when it grows, shrinks or loses one, so a pointer
into it lives until the next call. To grow or shrink takes no time of its own: the entries of the
table before are moved a few with each call, so for a while there are two. No Python object is
touched, so nothing here needs the GIL.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    WHOLE = 1 << 30         # weight of a full block, in units of Holder.loss
    MOVED = 0xFFFFFFFF      # Block.count in the table before: it is in the new one, or is gone

cdef struct Holder:         # one worker's hold on one block
    uint32_t worker         # dense worker number
    uint32_t refs           # how often its requests hold the block, > 0
    uint32_t loss           # what the block weighs less than a full one, 0..WHOLE; 0 if refs > 1

cdef union Holders:
    Holder one              # where Block.count is 1
    Holder* many            # else: sorted by worker, `capacity` entries allocated

cdef struct Block:
    uint64_t hash           # sequence hash
    uint32_t count          # workers that hold it; 0: the slot is empty
    uint32_t capacity       # entries allocated in held.many; 0 where count is 1
    Holders held

cdef struct Blocks:
    Block* slots            # `capacity` of them
    uint64_t capacity       # a power of two
    uint64_t count          # blocks, those of `old` too; at most half of `slots`
    uint32_t shift          # 64 - log2(capacity)
    uint32_t old_shift      # as `shift`, of `old`
    uint32_t sparse         # calls of blocks_trim in a row that found most of it empty
    Block* old              # the table before, NULL if it is empty; nothing is added to it
    uint64_t old_capacity   # its slots
    uint64_t moved          # those that have been looked at: MOVED or never used

cdef int blocks_init(Blocks* blocks) except -1 nogil
cdef void blocks_free(Blocks* blocks) noexcept nogil

# Empties it, where no block has more than one holder.
cdef void blocks_clear(Blocks* blocks) noexcept nogil

# Room for `more` hashes that are new, so that blocks_acquire need not grow. -1: no memory.
cdef int blocks_reserve(Blocks* blocks, uint64_t more) noexcept nogil

# Gives back memory where most of the table was empty for some calls; to be called after a batch of
# releases.
cdef void blocks_trim(Blocks* blocks) noexcept nogil

# One more reference of `worker`: its holder, refs == 1 if it is new. NULL: no memory, unchanged.
# There must be room (blocks_reserve).
cdef Holder* blocks_acquire(Blocks* blocks, uint64_t hash, uint32_t worker) noexcept nogil

# One reference of `worker` less. True if that was its last: `loss` then is what the block weighed
# less than one. The reference must exist.
cdef bint blocks_release(
    Blocks* blocks, uint64_t hash, uint32_t worker, uint32_t* loss
) noexcept nogil

# The hold of `worker` on a block, NULL if none.
cdef Holder* blocks_holder(Blocks* blocks, uint64_t hash, uint32_t worker) noexcept nogil


cdef extern from * nogil:
    void __builtin_prefetch(const void* address) noexcept


cdef inline uint64_t blocks_home(const Blocks* blocks, uint64_t hash) noexcept nogil:
    # Fibonacci hashing: a caller's "hashes" may be small consecutive integers.
    return (hash * <uint64_t>0x9E3779B97F4A7C15) >> blocks.shift


cdef inline Block* blocks_find_old(const Blocks* blocks, uint64_t hash) noexcept nogil:
    """The block's slot in the table before; NULL if it is not there."""
    cdef uint64_t at
    if blocks.old == NULL:
        return NULL
    at = (hash * <uint64_t>0x9E3779B97F4A7C15) >> blocks.old_shift
    while blocks.old[at].count:
        if blocks.old[at].hash == hash and blocks.old[at].count != MOVED:
            return &blocks.old[at]
        at = (at + 1) & (blocks.old_capacity - 1)
    return NULL


cdef inline void blocks_prefetch(const Blocks* blocks, uint64_t hash) noexcept nogil:
    __builtin_prefetch(&blocks.slots[blocks_home(blocks, hash)])


cdef inline Block* blocks_find(const Blocks* blocks, uint64_t hash) noexcept nogil:
    """The block's slot; NULL if no request holds it."""
    cdef uint64_t at = blocks_home(blocks, hash)
    while blocks.slots[at].count:
        if blocks.slots[at].hash == hash:
            return &blocks.slots[at]
        at = (at + 1) & (blocks.capacity - 1)
    return blocks_find_old(blocks, hash)


cdef inline Holder* block_holders(Block* block) noexcept nogil:
    """The block's `count` holders, in one array."""
    return &block.held.one if block.capacity == 0 else block.held.many
