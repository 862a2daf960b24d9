"""The blocks in use, by sequence hash. Used by the `_sequences` kernel; see _blocks.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove, memset

cdef enum:
    MIN_CAPACITY = 4096     # slots of an empty table, 128 KiB: some prompts fit without growing
    MIN_SHIFT = 64 - 12
    MOVED_FOR_EACH = 2      # slots of the table before, for each block that is added
    MOVED_AT_LEAST = 64     # for each request that is booked
    MOVED_BY_TRIM = 1024
    SPARSE_TRIMS = 64       # in a row, before a table shrinks: the next prompt may be as long


cdef int blocks_init(Blocks* blocks) except -1 nogil:
    blocks.slots = <Block*>calloc(MIN_CAPACITY, sizeof(Block))
    if blocks.slots == NULL:
        with gil:
            raise MemoryError
    blocks.capacity = MIN_CAPACITY
    blocks.shift = MIN_SHIFT
    blocks.count = 0
    blocks.sparse = 0
    blocks.old = NULL
    return 0


cdef void blocks_free(Blocks* blocks) noexcept nogil:
    cdef uint64_t at
    if blocks.slots == NULL:
        return
    move(blocks, blocks.old_capacity)
    for at in range(blocks.capacity):
        if blocks.slots[at].count and blocks.slots[at].capacity:
            free(blocks.slots[at].held.many)
    free(blocks.slots)
    blocks.slots = NULL


cdef void blocks_clear(Blocks* blocks) noexcept nogil:
    free(blocks.old)
    blocks.old = NULL
    memset(blocks.slots, 0, blocks.capacity * sizeof(Block))
    blocks.count = 0


cdef int blocks_reserve(Blocks* blocks, uint64_t more) noexcept nogil:
    cdef uint64_t capacity = blocks.capacity
    if (blocks.count + more) * 8 >= capacity:
        blocks.sparse = 0
    while (blocks.count + more) * 2 > capacity:
        capacity *= 2
    if capacity != blocks.capacity and resize(blocks, capacity) < 0:
        return -1
    move(blocks, MOVED_AT_LEAST + MOVED_FOR_EACH * more)
    return 0


cdef void blocks_trim(Blocks* blocks) noexcept nogil:
    cdef uint64_t capacity = blocks.capacity
    move(blocks, MOVED_BY_TRIM)
    if blocks.old != NULL:
        return
    if capacity == MIN_CAPACITY or blocks.count * 8 >= capacity:
        blocks.sparse = 0
        return
    blocks.sparse += 1
    if blocks.sparse < SPARSE_TRIMS:
        return
    blocks.sparse = 0
    # Shrinks to a quarter full at most, so that a table does not grow again at once.
    while capacity > MIN_CAPACITY and blocks.count * 8 < capacity:
        capacity //= 2
    if capacity < blocks.capacity:
        resize(blocks, capacity)  # without memory for that it stays as it is


cdef int resize(Blocks* blocks, uint64_t capacity) noexcept nogil:
    """Begins to move to a table of `capacity` slots; -1 if there is no memory for one."""
    cdef Block* slots = <Block*>calloc(capacity, sizeof(Block))
    if slots == NULL:
        return -1
    move(blocks, blocks.old_capacity)  # nothing is left, but where it shrank and grows at once
    blocks.old = blocks.slots
    blocks.old_capacity = blocks.capacity
    blocks.old_shift = blocks.shift
    blocks.moved = 0
    blocks.slots = slots
    blocks.capacity = capacity
    blocks.shift = 64
    while capacity > 1:
        capacity //= 2
        blocks.shift -= 1
    return 0


cdef void move(Blocks* blocks, uint64_t slots) noexcept nogil:
    """Moves the blocks of the next `slots` of the old table, and frees it after the last one."""
    cdef uint64_t end
    if blocks.old == NULL:
        return
    end = min(blocks.moved + slots, blocks.old_capacity)
    while blocks.moved < end:
        if blocks.old[blocks.moved].count not in (0, MOVED):
            move_block(blocks, &blocks.old[blocks.moved])
        blocks.moved += 1
    if end == blocks.old_capacity:
        free(blocks.old)
        blocks.old = NULL


cdef void move_block(Blocks* blocks, Block* old) noexcept nogil:
    """To its slot in the new table."""
    cdef uint64_t at = blocks_home(blocks, old.hash)
    while blocks.slots[at].count:
        at = (at + 1) & (blocks.capacity - 1)
    blocks.slots[at] = old[0]
    old.count = MOVED


cdef Block* slot_of(Blocks* blocks, uint64_t hash) noexcept nogil:
    """Where a block is in the new table, after it was moved there; an empty slot: no request has it."""
    cdef uint64_t at = blocks_home(blocks, hash)
    cdef Block* block = &blocks.slots[at]
    cdef Block* old
    while block.count and block.hash != hash:
        at = (at + 1) & (blocks.capacity - 1)
        block = &blocks.slots[at]
    if block.count == 0 and blocks.old != NULL:
        old = blocks_find_old(blocks, hash)
        if old != NULL:
            block[0] = old[0]
            old.count = MOVED
    return block


cdef Holder* blocks_acquire(Blocks* blocks, uint64_t hash, uint32_t worker) noexcept nogil:
    cdef Block* block = slot_of(blocks, hash)
    cdef Holder* holder
    if block.count == 0:
        block.hash = hash
        block.count = 1
        block.capacity = 0
        holder = &block.held.one
        holder.worker = worker
        holder.refs = 0
        holder.loss = 0
        blocks.count += 1
    else:
        holder = find_holder(block, worker)
        if holder == NULL:
            holder = insert_holder(block, worker)
            if holder == NULL:
                return NULL
    holder.refs += 1
    return holder


cdef bint blocks_release(
    Blocks* blocks, uint64_t hash, uint32_t worker, uint32_t* loss
) noexcept nogil:
    cdef Block* block = slot_of(blocks, hash)
    cdef Holder* holder = &block.held.one if block.capacity == 0 else find_holder(block, worker)
    holder.refs -= 1
    if holder.refs:
        return False
    loss[0] = holder.loss
    if block.count == 1:
        remove_block(blocks, block)
    else:
        remove_holder(block, holder)
    return True


cdef Holder* blocks_holder(Blocks* blocks, uint64_t hash, uint32_t worker) noexcept nogil:
    cdef Block* block = blocks_find(blocks, hash)
    return NULL if block == NULL else find_holder(block, worker)


cdef void remove_block(Blocks* blocks, Block* block) noexcept nogil:
    """Empties a slot and moves later ones back over it, so that every probe still arrives."""
    cdef uint64_t mask = blocks.capacity - 1
    cdef uint64_t hole = <uint64_t>(block - blocks.slots)
    cdef uint64_t at = hole
    cdef uint64_t home
    blocks.count -= 1
    while True:
        at = (at + 1) & mask
        if blocks.slots[at].count == 0:
            break
        home = blocks_home(blocks, blocks.slots[at].hash)
        # It may move only if its home is not in (hole, at], taken around the end of the table.
        if ((at - home) & mask) >= ((at - hole) & mask):
            blocks.slots[hole] = blocks.slots[at]
            hole = at
    blocks.slots[hole].count = 0


cdef uint32_t lower_bound(const Holder* holders, uint32_t count, uint32_t worker) noexcept nogil:
    """Where `worker` stands, or would stand, among sorted holders."""
    cdef uint32_t low = 0
    cdef uint32_t middle
    while low < count:
        middle = (low + count) // 2
        if holders[middle].worker < worker:
            low = middle + 1
        else:
            count = middle
    return low


cdef Holder* find_holder(Block* block, uint32_t worker) noexcept nogil:
    cdef Holder* holders = block_holders(block)
    cdef uint32_t at = lower_bound(holders, block.count, worker)
    if at < block.count and holders[at].worker == worker:
        return &holders[at]
    return NULL


cdef Holder* insert_holder(Block* block, uint32_t worker) noexcept nogil:
    """Adds a holder without references to a block that has others; NULL if there is no memory."""
    cdef Holder* many
    cdef uint32_t at
    cdef uint32_t capacity = block.capacity
    if capacity == 0:
        capacity = 4
        many = <Holder*>malloc(capacity * sizeof(Holder))
        if many == NULL:
            return NULL
        many[0] = block.held.one
        block.held.many = many
        block.capacity = capacity
    elif block.count == capacity:
        many = <Holder*>realloc(block.held.many, 2 * <size_t>capacity * sizeof(Holder))
        if many == NULL:
            return NULL
        block.held.many = many
        block.capacity = 2 * capacity
    many = block.held.many
    at = lower_bound(many, block.count, worker)
    memmove(&many[at + 1], &many[at], (block.count - at) * sizeof(Holder))
    block.count += 1
    many[at].worker = worker
    many[at].refs = 0
    many[at].loss = 0
    return &many[at]


cdef void remove_holder(Block* block, Holder* holder) noexcept nogil:
    """Takes one of several holders away; the last one left is kept within the block."""
    cdef Holder* many = block.held.many
    cdef Holder* smaller
    cdef uint32_t at = <uint32_t>(holder - many)
    block.count -= 1
    memmove(holder, holder + 1, (block.count - at) * sizeof(Holder))
    if block.count == 1:
        block.held.one = many[0]
        block.capacity = 0
        free(many)
    elif block.count * 4 <= block.capacity and block.capacity > 4:
        smaller = <Holder*>realloc(many, (block.capacity // 2) * sizeof(Holder))
        if smaller != NULL:
            block.held.many = smaller
            block.capacity //= 2
