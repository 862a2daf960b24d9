"""What requests hold of an engine's cache: see _kv_manager.pxd."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort

from ....base.native._table cimport NONE
from ._frequency cimport frequencies_add, frequencies_free, frequencies_init, heat_of
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
from ._limits cimport LOWER, CacheLimits
from ._lower_tiers cimport (
    tell_removed,
    tier_load,
    tier_of,
    tiers_expire,
    tiers_free,
    tiers_init,
    tiers_push_down,
    tiers_reserve_deadlines,
)
from ._pool cimport (
    USUAL_LEVEL,
    Block,
    Pool,
    pool_acquire,
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
from ._retention cimport Span, span_of


cdef int kv_init(KvManager* kv, const CacheLimits* limits, bint journal) noexcept nogil:
    """`kv` is zeroed."""
    pool_init(&kv.pool, limits.device_blocks, limits.lineage, False)
    tiers_init(&kv.tiers, limits)
    kv.journal.on = journal
    kv.block_size = limits.block_size
    kv.pool.heats = limits.multi
    return frequencies_init(&kv.frequencies, limits.device_blocks) if limits.multi else 0


cdef void kv_free(KvManager* kv) noexcept nogil:
    pool_free(&kv.pool)
    tiers_free(&kv.tiers)
    journal_free(&kv.journal)
    frequencies_free(&kv.frequencies)


cdef uint32_t kv_match(
    const KvManager* kv, const Sequence* sequence, uint32_t limit, uint32_t* shared
) noexcept nogil:
    cdef uint32_t depth = 0, id
    shared[0] = 0
    while depth < limit:
        id = pool_find(&kv.pool, sequence.sequence_hashes[depth])
        if id != NONE:
            shared[0] += kv.pool.blocks[id].holders > 0
        elif tier_of(&kv.tiers, sequence.sequence_hashes[depth], &id) < 0:
            break
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
        frequencies_add(&kv.frequencies, sequence.sequence_hashes[id])
        if pool.blocks[sequence.ids[id]].ready > kv.ready:
            kv.ready = pool.blocks[sequence.ids[id]].ready
    if full > depth and store(kv, sequence, depth, full) < 0:
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
    frequencies_add(&kv.frequencies, sequence.sequence_hashes[index])
    sequence.ids[index] = id
    return 0


cdef int store(
    KvManager* kv, Sequence* sequence, uint32_t first, uint32_t last
) noexcept nogil:
    """Cache blocks first..last-1, which the device has not, and tell of them as one chain.

    Those that a lower tier has leave it; what counts as computed of them is loaded. The others
    are computed anew. They leave first, so that making room does not push them out.
    """
    cdef uint32_t i, id, n = 0
    cdef int tier, status
    cdef Block* found = NULL
    if kv.tiers.any:
        found = <Block*>malloc((last - first) * sizeof(Block))
        if found == NULL:
            return -1
        for i in range(first, last):
            tier = tier_of(&kv.tiers, sequence.sequence_hashes[i], &id)
            if tier >= 0:
                found[n] = kv.tiers.pools[tier].blocks[id]
                found[n].listed = <uint8_t>tier
                found[n].ready = 0.0
                if (i + 1) * kv.block_size <= sequence.computed:
                    found[n].ready = tier_load(&kv.tiers, tier, kv.now)
                pool_drop(&kv.tiers.pools[tier], id)
                n += 1
    status = free_blocks(kv, last - first)
    if status == 0:
        status = add_blocks(kv, sequence, first, last, found, n)
    free(found)
    return status


cdef int add_blocks(
    KvManager* kv, Sequence* sequence, uint32_t first, uint32_t last, Block* found, uint32_t n
) noexcept nogil:
    """Blocks first..last-1 come onto the device; `found` of them have left their lower tiers."""
    cdef Entry* entry = NULL
    cdef uint32_t index, at = 0, parent = sequence.ids[first - 1] if first else NONE
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
        frequencies_add(&kv.frequencies, sequence.sequence_hashes[index])
        if at < n and found[at].sequence_hash == sequence.sequence_hashes[index]:
            kv.pool.blocks[parent].ready = found[at].ready
            kv.pool.blocks[parent].level = found[at].level
            kv.pool.blocks[parent].expires = found[at].expires
            if found[at].ready > kv.ready:
                kv.ready = found[at].ready
            at += 1
        if entry != NULL:
            journal_put(
                &kv.journal, entry, sequence.sequence_hashes[index], sequence.local_hashes[index]
            )
    return tell_taken(kv, found, n)


cdef int tell_taken(KvManager* kv, Block* found, uint32_t n) noexcept nogil:
    """Tell of blocks that have left the lower tier which `listed` names."""
    cdef uint32_t first = 0, end
    while kv.journal.on and kv.tiers.told and first < n:
        end = first
        while end < n and found[end].listed == found[first].listed:
            end += 1
        if tell_removed(
            &kv.journal, kv.now, found[first].listed, found + first, end - first
        ) < 0:
            return -1
        first = end
    return 0


cdef int free_blocks(KvManager* kv, uint32_t blocks) noexcept nogil:
    """Evict until `blocks` more fit; the caller knows that they can."""
    cdef Pool* pool = &kv.pool
    cdef uint32_t wanted = pool.active + pool.inactive + blocks, i, id
    cdef Entry* entry = NULL
    cdef Block* evicted
    cdef int status = 0
    if wanted <= pool.capacity:
        return 0
    wanted -= pool.capacity
    evicted = <Block*>malloc(wanted * sizeof(Block))
    if evicted == NULL:
        return -1
    for i in range(wanted):
        id = pool_next(pool)
        evicted[i] = pool.blocks[id]
        pool_drop(pool, id)
    if kv.tiers.any:
        status = tiers_push_down(&kv.tiers, &kv.journal, kv.now, 0, evicted, wanted)
    if status == 0 and kv.journal.on:
        entry = journal_open(&kv.journal, ENTRY_REMOVED, wanted)
        if entry == NULL:
            status = -1
        else:
            entry.time = kv.now
            for i in range(wanted):
                journal_put(&kv.journal, entry, evicted[i].sequence_hash, 0)
    free(evicted)
    return status


cdef void kv_pass_time(KvManager* kv, double now) noexcept nogil:
    kv.now = kv.ready = now
    pool_expire(&kv.pool, now)
    tiers_expire(&kv.tiers, now)


cdef int kv_expect_deadlines(KvManager* kv) noexcept nogil:
    return pool_reserve_deadlines(&kv.pool) | tiers_reserve_deadlines(&kv.tiers)


cdef int kv_expect(KvManager* kv, Sequence* sequence) noexcept nogil:
    cdef uint32_t full = sequence.known // kv.block_size, shared
    cdef uint32_t cached = kv_match(kv, sequence, full, &shared)
    sequence.computed = cached * kv.block_size
    cdef int grown = kv_grow(kv, sequence, 0, kv.pool.capacity)
    if grown <= 0:
        return grown
    sequence.reserved = full - cached + (sequence.known % kv.block_size > 0)
    if free_blocks(kv, sequence.reserved) < 0:
        return -1
    kv.pool.active += sequence.reserved
    kv.pool.version += 1
    return 1


cdef int kv_arrive(KvManager* kv, Sequence* sequence) noexcept nogil:
    kv.pool.active -= sequence.reserved
    kv.pool.version += 1
    sequence.reserved = 0
    return kv_grow(kv, sequence, sequence.known - sequence.computed, kv.pool.capacity)


cdef void kv_release(KvManager* kv, Sequence* sequence) noexcept nogil:
    cdef uint32_t index = sequence.held
    cdef const Span* span
    cdef uint8_t heat
    if sequence.partial:
        kv.pool.active -= 1
        kv.pool.version += 1
        sequence.partial = 0
    if sequence.reserved:
        kv.pool.active -= sequence.reserved
        kv.pool.version += 1
        sequence.reserved = 0
    while index > 0:
        index -= 1
        span = span_of(&sequence.retention, index)
        heat = heat_of(&kv.frequencies, sequence.sequence_hashes[index])
        if span == NULL:
            pool_release(&kv.pool, sequence.ids[index], USUAL_LEVEL + heat, 0.0)
        else:
            pool_release(
                &kv.pool, sequence.ids[index], span.level + heat, kv.now + span.seconds
            )
    sequence.held = sequence.slack = 0


cdef int64_t kv_prefetch(
    KvManager* kv, Sequence* sequence, uint32_t blocks, double now
) noexcept nogil:
    cdef Pool* pool = &kv.pool
    cdef uint32_t shared, id, index
    cdef uint32_t depth = kv_match(kv, sequence, blocks, &shared), on_device = 0
    cdef int status
    while on_device < depth and pool_find(pool, sequence.sequence_hashes[on_device]) != NONE:
        on_device += 1
    if on_device == depth:
        return 0
    kv_pass_time(kv, now)
    sequence.computed = depth * kv.block_size  # so they are loaded
    status = kv_grow(kv, sequence, 0, pool.capacity)
    if status <= 0:
        return status
    for index in range(depth, 0, -1):
        id = sequence.ids[index - 1]
        pool_release(pool, id, pool.blocks[id].level, pool.blocks[id].expires)
    sequence.held = sequence.computed = 0
    return depth - on_device


cdef const Pool* pool_of(const KvManager* kv, int tier) noexcept nogil:
    """0: the device; then the tiers below it."""
    return &kv.pool if tier == 0 else &kv.tiers.pools[tier - 1]


cdef list kv_listing(const KvManager* kv, int tier):
    cdef const Pool* pool = pool_of(kv, tier)
    cdef uint32_t i
    found = []
    for i in range(pool.used):
        # Ids that are free are those the table does not know.
        if pool_find(pool, pool.blocks[i].sequence_hash) == i:
            block = pool.blocks[i]
            parent = block.parent_hash if block.has_parent else None
            found.append(
                (block.serial, block.sequence_hash, parent, block.local_hash, block.holders)
            )
    return [row[1:] for row in sorted(found)]


cdef int check_tier(int tier) except -1:
    if not 0 <= tier <= LOWER:
        raise IndexError(f"there is no tier {tier}")
    return tier


cdef int by_serial(const void* one, const void* other) noexcept nogil:
    cdef uint64_t a = (<const Block*>one).serial, b = (<const Block*>other).serial
    return (a > b) - (a < b)


cdef int kv_announce(
    KvManager* kv, double now, uint32_t max_events, uint32_t max_blocks
) noexcept nogil:
    cdef Entry* entry
    cdef int tier, tiers = 1 + LOWER if kv.tiers.told else 1
    cdef uint32_t events = 0, blocks = 0
    if not kv.journal.on:
        return 0
    for tier in range(tiers - 1, -1, -1):  # the device's last: it is that which ends a gap
        if tier == 0 or pool_of(kv, tier).capacity:
            entry = journal_open(&kv.journal, ENTRY_CLEARED, 0)
            if entry == NULL:
                return -1
            entry.time = now
            entry.tier = tier
            events += 1
    for tier in range(tiers):
        if announce_tier(kv, now, tier, max_events, max_blocks, &events, &blocks) < 0:
            return -1
    kv.journal.messages += 1
    return 0


cdef int announce_tier(
    KvManager* kv, double now, int tier, uint32_t max_events, uint32_t max_blocks,
    uint32_t* events, uint32_t* blocks,
) noexcept nogil:
    """All blocks of a tier, parents first: on the device they came first, below it they came last.
    """
    cdef const Pool* pool = pool_of(kv, tier)
    cdef Journal* journal = &kv.journal
    cdef Entry* entry = NULL
    cdef uint32_t id, i, n = 0
    cdef uint64_t previous = 0
    cdef Block* block
    cdef Block* cached = <Block*>malloc((pool.used + 1) * sizeof(Block))
    if cached == NULL:
        return -1
    for id in range(pool.used):
        if pool_find(pool, pool.blocks[id].sequence_hash) == id:
            cached[n] = pool.blocks[id]
            n += 1
    qsort(cached, n, sizeof(Block), by_serial)
    for i in range(n):
        block = &cached[i if tier == 0 else n - 1 - i]
        if (
            entry == NULL or not block.has_parent or block.parent_hash != previous
            or blocks[0] == max_blocks
        ):
            if events[0] == max_events or blocks[0] == max_blocks:
                journal.messages += 1
                events[0] = blocks[0] = 0
            entry = journal_open(journal, ENTRY_STORED, n - i)
            if entry == NULL:
                free(cached)
                return -1
            entry.time = now
            entry.tier = tier
            entry.has_parent = block.has_parent
            entry.parent = block.parent_hash
            events[0] += 1
        journal_put(journal, entry, block.sequence_hash, block.local_hash)
        blocks[0] += 1
        previous = block.sequence_hash
    free(cached)
    return 0
