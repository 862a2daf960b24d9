"""One tree per storage tier. The caller owns them all.

The device's tree is the one that routes; its worker numbers name a worker in every function here.
A tree of a lower tier learns of a worker with the first event of that tier, so that a fleet
without lower tiers pays one comparison per match and per change of workers.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ..tree._ops cimport (
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_NOT_FOUND,
    Hits,
    Tree,
    WorkerInfo,
    WorkerKey,
    hits_free,
    tree_bind,
    tree_clear,
    tree_drop_worker,
    tree_find_worker,
    tree_holds,
    tree_intern_worker,
    tree_match,
    tree_match_continued,
    tree_refuse_orphans,
    tree_remove,
    tree_store,
    tree_store_cross_tier,
    tree_worker_info,
    tree_workers_end,
)
from ..wire._events cimport EVENT_REMOVED, EVENT_STORED, Event

cdef enum:
    DEVICE = 0
    HOST = 1
    DISK = 2
    EXTERNAL = 3
    TIERS = 4            # Event.tier counts up to it

cdef enum:               # rows of a match's result
    ROW_HOST = 0
    ROW_DISK = 1         # and external storage, which is worth as much
    ROW_REACHED = 2      # leading blocks in any tier
    ROWS = 3

cdef struct TierCounters:
    uint64_t stored_events   # stored events applied
    uint64_t removed_events  # removed events
    uint64_t cleared_events  # cleared events
    uint64_t stored          # blocks stored
    uint64_t removed         # blocks removed
    uint64_t unknown         # removals of blocks that were not held
    uint64_t orphans         # stored events whose parent no tier has

cdef struct Tiers:
    Tree* trees[4]           # by Event.tier; owned by others
    bint lower               # whether any event of a lower tier was applied
    TierCounters counters[4] # by Event.tier

cdef struct TierHits:
    uint32_t count           # workers; those that hold nothing of the chain are among them
    WorkerKey* workers       # who they are, for the caller to free
    uint32_t* table          # TIERS rows of count overlaps, for the caller to free


cdef inline uint32_t tier_worker(const Tiers* tiers, uint8_t tier, uint32_t worker) noexcept nogil:
    """A worker's number in the tree of a tier; UINT32_MAX if it is unknown there."""
    cdef WorkerKey key
    if tier == DEVICE:
        return worker
    key = tree_worker_info(tiers.trees[DEVICE], worker).key
    return tree_find_worker(tiers.trees[tier], key.worker_id, key.dp_rank)


cdef inline int tier_store(
    Tiers* tiers,
    const Event* event,
    uint32_t worker,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
) noexcept nogil:
    """Store in the event's tier, below a parent that the worker holds in this tier or another. Of
    one that no tier has, any of them may have dropped it to keep its budget."""
    cdef Tree* tree = tiers.trees[event.tier]
    cdef uint32_t inside = tier_worker(tiers, event.tier, worker)
    cdef uint32_t holder
    cdef WorkerInfo known
    cdef uint8_t other
    cdef bint lossy = False
    cdef bint missing = False
    if inside == UINT32_MAX:
        known = tree_worker_info(tiers.trees[DEVICE], worker)
        inside = tree_intern_worker(tree, known.key.worker_id, known.key.dp_rank)
        if inside == UINT32_MAX:
            return TREE_NO_MEMORY
        tree_bind(tree, inside, known.number)
    tiers.lower = tiers.lower or event.tier != DEVICE
    if event.tier == DEVICE or not event.has_parent or tree_holds(tree, inside, event.parent_hash):
        return tree_store(
            tree,
            inside,
            event.has_parent,
            event.parent_hash,
            external_hashes,
            local_hashes,
            event.count,
        )
    for other in range(TIERS):
        holder = tier_worker(tiers, other, worker)
        if holder == UINT32_MAX:
            continue
        if tree_holds(tiers.trees[other], holder, event.parent_hash):
            return tree_store_cross_tier(
                tree,
                inside,
                tiers.trees[other],
                holder,
                event.parent_hash,
                external_hashes,
                local_hashes,
                event.count,
            )
        known = tree_worker_info(tiers.trees[other], holder)
        lossy = lossy or known.lossy
        missing = missing or known.missing != 0
    return tree_refuse_orphans(tree, inside, external_hashes, event.count, lossy, missing)


cdef inline int tiers_apply(
    Tiers* tiers,
    const Event* event,
    uint32_t worker,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
) noexcept nogil:
    """Apply one event to its tier; returns the tree's status."""
    cdef TierCounters* counters = &tiers.counters[event.tier]
    cdef uint32_t unknown = event.count
    cdef uint32_t inside
    cdef int status = TREE_OK
    if event.kind == EVENT_STORED:
        status = tier_store(tiers, event, worker, external_hashes, local_hashes)
        counters.stored_events += status == TREE_OK
        counters.stored += event.count if status == TREE_OK else 0
        counters.orphans += status == TREE_PARENT_NOT_FOUND
        return status
    inside = tier_worker(tiers, event.tier, worker)
    if event.kind == EVENT_REMOVED:
        if inside != UINT32_MAX:
            status = tree_remove(
                tiers.trees[event.tier], inside, external_hashes, event.count, &unknown
            )
        counters.removed_events += 1
        counters.removed += event.count - unknown
        counters.unknown += unknown
    else:
        counters.cleared_events += 1
        if inside != UINT32_MAX:
            tree_clear(tiers.trees[event.tier], inside)
    return status


cdef inline void tiers_clear(Tiers* tiers, uint32_t worker) noexcept nogil:
    """The worker holds nothing in any tier."""
    cdef uint32_t inside
    cdef uint8_t tier
    for tier in range(TIERS if tiers.lower else DEVICE + 1):
        inside = tier_worker(tiers, tier, worker)
        if inside != UINT32_MAX:
            tree_clear(tiers.trees[tier], inside)


cdef inline void tiers_drop_worker(Tiers* tiers, uint32_t worker) noexcept nogil:
    """Forget the worker in every tier; its number is free again."""
    cdef uint32_t inside
    cdef int tier
    for tier in range(TIERS - 1 if tiers.lower else DEVICE, -1, -1):  # the device's names it
        inside = tier_worker(tiers, tier, worker)
        if inside != UINT32_MAX:
            tree_drop_worker(tiers.trees[tier], inside)


cdef inline void tiers_bind(Tiers* tiers, uint32_t worker, uint32_t number) noexcept nogil:
    """Let every tier write the worker's overlaps under this number."""
    cdef uint32_t inside
    cdef uint8_t tier
    for tier in range(TIERS if tiers.lower else DEVICE + 1):
        inside = tier_worker(tiers, tier, worker)
        if inside != UINT32_MAX:
            tree_bind(tiers.trees[tier], inside, number)


cdef inline void tiers_match(
    const Tiers* tiers,
    const uint64_t* local_hashes,
    uint32_t n,
    const uint32_t* device,
    uint32_t* rows,
    uint32_t n_out,
) noexcept nogil:
    """What the lower tiers add to the device's overlaps: ROWS rows of n_out numbers."""
    cdef uint8_t tier
    memset(rows, 0, ROW_REACHED * n_out * sizeof(uint32_t))
    memcpy(rows + ROW_REACHED * n_out, device, n_out * sizeof(uint32_t))
    for tier in range(HOST, TIERS):
        tree_match_continued(
            tiers.trees[tier],
            local_hashes,
            n,
            NULL,
            rows + ROW_REACHED * n_out,
            rows + (ROW_HOST if tier == HOST else ROW_DISK) * n_out,
            n_out,
        )


cdef inline bint tiers_match_all(
    const Tiers* tiers,
    const uint64_t* local_hashes,
    uint32_t n,
    const WorkerKey* predicted,
    const uint32_t* predicted_blocks,
    uint32_t n_predicted,
    TierHits* hits,
) noexcept nogil:
    """What every worker holds of a chain in each tier, bound or not; false without memory.

    `predicted` are believed to have that many blocks on the device at least. Free the workers and
    the table either way.
    """
    cdef const Tree* device = tiers.trees[DEVICE]
    cdef const Tree* tree
    cdef Hits found
    cdef WorkerInfo known
    cdef uint32_t* reached
    cdef uint32_t* indices
    cdef uint32_t w, i
    cdef uint8_t tier
    cdef bint good
    hits.count = tree_workers_end(device)
    hits.workers = <WorkerKey*>calloc(hits.count + 1, sizeof(WorkerKey))
    hits.table = <uint32_t*>calloc(<size_t>TIERS * hits.count + 1, sizeof(uint32_t))
    # A lower tree has no worker that the device's has not.
    reached = <uint32_t*>calloc(2 * <size_t>hits.count + 1, sizeof(uint32_t))
    indices = reached + hits.count
    good = tree_match(device, local_hashes, n, False, &found)
    good = good and hits.workers != NULL and hits.table != NULL and reached != NULL
    if good:
        for w in range(hits.count):
            hits.workers[w] = tree_worker_info(device, w).key
        for i in range(found.count):
            hits.table[found.worker[i]] = found.blocks[i]
        for i in range(n_predicted):
            w = tree_find_worker(device, predicted[i].worker_id, predicted[i].dp_rank)
            if w != UINT32_MAX:
                hits.table[w] = max(hits.table[w], predicted_blocks[i])
        memcpy(reached, hits.table, hits.count * sizeof(uint32_t))
        for tier in range(HOST, TIERS if tiers.lower else HOST):
            tree = tiers.trees[tier]
            for w in range(tree_workers_end(tree)):
                known = tree_worker_info(tree, w)
                indices[w] = UINT32_MAX
                if known.live:
                    indices[w] = tree_find_worker(device, known.key.worker_id, known.key.dp_rank)
            tree_match_continued(
                tree, local_hashes, n, indices, reached, hits.table + tier * hits.count, hits.count
            )
    hits_free(&found)
    free(reached)
    return good
