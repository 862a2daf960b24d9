# _census.pxd: what is known of every worker and its source, copied out of the index for a look.
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memset

from ._cursor cimport SOURCE_EXACT, Cursor
from ._sources cimport Source, Sources, source_is_well
from ._tiers cimport DEVICE, TIERS, Tiers, tier_worker
from ..tree._tree cimport Tree, Worker

cdef struct Known:
    uint64_t worker_id
    uint32_t dp_rank
    uint64_t blocks[4]   # that it holds, by Event.tier
    uint64_t missing     # more on its device, for which there was no room
    Cursor cursor        # of its source; zero if nothing was heard of that
    uint32_t held        # events that wait behind a gap
    uint64_t first_held  # the id of the first of them


cdef inline bint is_recovering(const Source* source) noexcept nogil:
    return source != NULL and source.cursor.state == SOURCE_EXACT and not source_is_well(source)


cdef inline Known* take_census(
    const Tiers* tiers, const Sources* sources, bint recovering, uint32_t* count
) noexcept nogil:
    """One for every worker the tree knows, or for those alone that are exact but for a gap or a
    doubt; NULL without memory. The caller frees them.
    """
    cdef const Tree* tree = tiers.trees[DEVICE]
    cdef Known* all = <Known*>malloc((tree.n_workers + 1) * sizeof(Known))
    cdef const Worker* worker
    cdef const Source* source
    cdef Known* known
    cdef uint32_t w, inside
    cdef uint8_t tier
    count[0] = 0
    if all == NULL:
        return NULL
    for w in range(tree.workers_used):
        worker = &tree.workers[w]
        source = &sources.all[w] if w < sources.count else NULL
        if not worker.live or (recovering and not is_recovering(source)):
            continue
        known = &all[count[0]]
        count[0] += 1
        memset(known, 0, sizeof(Known))
        known.worker_id = worker.worker_id
        known.dp_rank = worker.dp_rank
        known.missing = worker.missing
        for tier in range(TIERS if tiers.lower else DEVICE + 1):
            inside = tier_worker(tiers, tier, w)
            if inside != UINT32_MAX:
                known.blocks[tier] = tiers.trees[tier].workers[inside].blocks
        if source != NULL:
            known.cursor = source.cursor
            known.held = source.held.count
            if source.held.count:
                known.first_held = source.held.events[0].event.event_id
    return all
