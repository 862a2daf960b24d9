"""What requests hold of an engine's cache: see _kv_manager.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort

from ....runtime.native._table cimport NONE
from ._journal cimport (
    ENTRY_CLEARED,
    ENTRY_REMOVED,
    ENTRY_STORED,
    Entry,
    Journal,
    journal_free,
    journal_open,
    journal_put,
)
from ._pool cimport (
    Block,
    Pool,
    pool_add,
    pool_evict,
    pool_find,
    pool_free,
    pool_acquire,
    pool_init,
    pool_release,
)


cdef int kv_init(
    KvManager* kv, uint32_t capacity, uint32_t block_size, bint journal
) noexcept nogil:
    """`kv` is zeroed."""
    pool_init(&kv.pool, capacity)
    kv.journal.on = journal
    kv.block_size = block_size
    return 0


cdef void kv_free(KvManager* kv) noexcept nogil:
    pool_free(&kv.pool)
    journal_free(&kv.journal)


cdef uint32_t kv_match(
    const KvManager* kv, const Sequence* sequence, uint32_t limit, uint32_t* shared
) noexcept nogil:
    cdef uint32_t depth = 0, id
    shared[0] = 0
    while depth < limit:
        id = pool_find(&kv.pool, sequence.sequence_hashes[depth])
        if id == NONE:
            break
        shared[0] += kv.pool.blocks[id].holders > 0
        depth += 1
    return depth


cdef uint32_t kv_cached_tokens(const KvManager* kv, const Sequence* sequence) noexcept nogil:
    cdef uint32_t shared
    return kv.block_size * kv_match(
        kv, sequence, (sequence.known - 1) // kv.block_size, &shared
    )


cdef int kv_grow(
    KvManager* kv, Sequence* sequence, uint32_t tokens, uint32_t limit
) noexcept nogil:
    cdef Pool* pool = &kv.pool
    cdef uint32_t computed = sequence.computed + tokens
    cdef uint32_t full = computed // kv.block_size, rest = computed % kv.block_size
    cdef uint32_t first = sequence.held, depth, id, shared = 0
    cdef bint promoted = sequence.partial and full > first
    cdef bint opened
    if promoted:
        first += 1
    opened = rest > 0 and (not sequence.partial or promoted)
    depth = first
    while depth < full:
        id = pool_find(pool, sequence.sequence_hashes[depth])
        if id == NONE:
            break
        sequence.ids[depth] = id
        shared += pool.blocks[id].holders > 0
        depth += 1
    if pool.active + (full - first - shared) + opened > limit:
        return 0
    if promoted and promote(kv, sequence, first - 1) < 0:
        return -1
    for id in range(first, depth):
        pool_acquire(pool, sequence.ids[id])
    if full > depth:
        if free_blocks(kv, full - depth) < 0:
            return -1
        if store(kv, sequence, depth, full) < 0:
            return -1
    if opened:
        if free_blocks(kv, 1) < 0:
            return -1
        pool.active += 1
        pool.version += 1
        sequence.partial = 1
    sequence.held = full
    sequence.computed = computed
    sequence.slack = kv.block_size - rest - 1 if rest else 0
    return 1


cdef int promote(KvManager* kv, Sequence* sequence, uint32_t index) noexcept nogil:
    """The partial block has become full: block `index`, new or one that is cached already."""
    cdef uint32_t id = pool_find(&kv.pool, sequence.sequence_hashes[index])
    kv.pool.active -= 1
    kv.pool.version += 1
    sequence.partial = 0
    if id == NONE:
        return store(kv, sequence, index, index + 1)
    pool_acquire(&kv.pool, id)
    sequence.ids[index] = id
    return 0


cdef int store(
    KvManager* kv, Sequence* sequence, uint32_t first, uint32_t last
) noexcept nogil:
    """Cache blocks first..last-1, for which there is room, and tell of them as one chain."""
    cdef Entry* entry = NULL
    cdef uint32_t index, parent = sequence.ids[first - 1] if first else NONE
    if kv.journal.on:
        entry = journal_open(&kv.journal, ENTRY_STORED, last - first)
        if entry == NULL:
            return -1
        entry.time = kv.now
        entry.request = sequence.request
        entry.first_block = first
        if first:
            entry.has_parent = 1
            entry.parent = sequence.sequence_hashes[first - 1]
    for index in range(first, last):
        parent = pool_add(
            &kv.pool, sequence.sequence_hashes[index], sequence.local_hashes[index], parent
        )
        if parent == NONE:
            return -1
        sequence.ids[index] = parent
        if entry != NULL:
            journal_put(
                &kv.journal, entry, sequence.sequence_hashes[index], sequence.local_hashes[index]
            )
    return 0


cdef int free_blocks(KvManager* kv, uint32_t blocks) noexcept nogil:
    """Evict until `blocks` more fit; the caller knows that they can."""
    cdef Pool* pool = &kv.pool
    cdef uint32_t wanted = pool.active + pool.inactive + blocks, i
    cdef uint64_t sequence_hash
    cdef Entry* entry = NULL
    if wanted <= pool.capacity:
        return 0
    wanted -= pool.capacity
    if kv.journal.on:
        entry = journal_open(&kv.journal, ENTRY_REMOVED, wanted)
        if entry == NULL:
            return -1
        entry.time = kv.now
    for i in range(wanted):
        sequence_hash = pool_evict(pool)
        if entry != NULL:
            journal_put(&kv.journal, entry, sequence_hash, 0)
    return 0


cdef void kv_release(KvManager* kv, Sequence* sequence) noexcept nogil:
    cdef uint32_t index = sequence.held
    if sequence.partial:
        kv.pool.active -= 1
        kv.pool.version += 1
        sequence.partial = 0
    while index > 0:
        index -= 1
        pool_release(&kv.pool, sequence.ids[index])
    sequence.held = sequence.slack = 0


cdef list kv_listing(const KvManager* kv):
    cdef const Pool* pool = &kv.pool
    cdef uint32_t i
    found = []
    for i in range(pool.used):
        # Ids that are free are those the table does not know.
        if pool_find(pool, pool.blocks[i].sequence_hash) == i:
            block = pool.blocks[i]
            parent = None if block.parent == NONE else pool.blocks[block.parent].sequence_hash
            found.append(
                (block.serial, block.sequence_hash, parent, block.local_hash, block.holders)
            )
    return [row[1:] for row in sorted(found)]


cdef int by_serial(const void* one, const void* other) noexcept nogil:
    cdef uint64_t a = (<const Block*>one).serial, b = (<const Block*>other).serial
    return (a > b) - (a < b)


cdef int kv_announce(
    KvManager* kv, double now, uint32_t max_events, uint32_t max_blocks
) noexcept nogil:
    cdef Pool* pool = &kv.pool
    cdef Journal* journal = &kv.journal
    cdef Block* cached = NULL
    cdef Entry* entry
    cdef uint32_t id, i, n = 0, events = 1, blocks = 0
    cdef uint64_t previous = 0
    if not journal.on:
        return 0
    entry = journal_open(journal, ENTRY_CLEARED, 0)
    if entry == NULL:
        return -1
    entry.time = now
    cached = <Block*>malloc((pool.used + 1) * sizeof(Block))
    if cached == NULL:
        return -1
    for id in range(pool.used):
        if pool_find(pool, pool.blocks[id].sequence_hash) == id:
            cached[n] = pool.blocks[id]
            n += 1
    qsort(cached, n, sizeof(Block), by_serial)
    entry = NULL
    for i in range(n):
        if entry == NULL or cached[i].parent == NONE or (
            pool.blocks[cached[i].parent].sequence_hash != previous
        ) or blocks == max_blocks:
            if events == max_events or blocks == max_blocks:
                journal.messages += 1
                events = blocks = 0
            entry = journal_open(journal, ENTRY_STORED, n - i)
            if entry == NULL:
                free(cached)
                return -1
            entry.time = now
            if cached[i].parent != NONE:
                entry.has_parent = 1
                entry.parent = pool.blocks[cached[i].parent].sequence_hash
            events += 1
        journal_put(journal, entry, cached[i].sequence_hash, cached[i].local_hash)
        blocks += 1
        previous = cached[i].sequence_hash
    journal.messages += 1
    free(cached)
    return 0
