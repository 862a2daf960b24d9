"""The state of the sources: read out, and changed by what others learned of them."""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ..tree._arguments cimport read_worker
from ..tree._ops cimport (
    Tree,
    TreeTotals,
    WorkerInfo,
    WorkerKey,
    tree_intern_worker,
    tree_totals,
    tree_worker_count,
    tree_worker_info,
    tree_workers_end,
)
from ._actor cimport IndexActor
from ._cursor cimport (
    SOURCE_DEGRADED,
    SOURCE_EXACT,
    SOURCE_REBUILDING,
    SUSPECT_DEAF,
    EventCursor,
    cursor_has_gap,
)
from ._ingest cimport Counters, Ingest, believe_publisher, give_up_gap
from ._mailbox cimport mailbox_length, mailbox_refused
from ._rwlock cimport rwlock_read_begin, rwlock_read_end
from ._shared_state cimport SharedState, start_changing, stop_changing
from ._sources cimport Source, Sources, source_is_well, source_of, source_register
from ._threads cimport atomic_add, atomic_load
from ._tiers cimport DEVICE, TIERS, TierCounters, Tiers, tier_worker

from ...base.identity import WorkerWithDpRank

cdef struct SourceRow:
    WorkerKey key
    uint64_t blocks[4]     # that it holds, by Event.tier
    uint64_t missing       # more on its device, which the index had to drop
    EventCursor cursor     # of its source; zero if no message came from that
    uint32_t parked        # events that wait behind a gap
    uint64_t first_parked  # the id of the first of them
    uint64_t unannounced   # events and heartbeats of publishers that the worker did not announce


cdef bint is_recovering(const Source* source) noexcept nogil:
    return source != NULL and source.cursor.state == SOURCE_EXACT and not source_is_well(source)


cdef SourceRow* read_rows(
    const Tiers* tiers,
    const Sources* sources,
    bint recovering,
    uint32_t begin,
    uint32_t end,
    uint32_t* count,
) noexcept nogil:
    """A row for every worker that is known, or for those alone that are exact but for a gap or a
    doubt, of the tree's numbers from `begin` to before `end`; NULL without memory. The caller frees
    them.
    """
    cdef const Tree* device = tiers.trees[DEVICE]
    cdef uint32_t most = min(<uint32_t>tree_worker_count(device), end - begin)
    cdef SourceRow* rows = <SourceRow*>malloc((<size_t>most + 1) * sizeof(SourceRow))
    cdef SourceRow* row
    cdef const Source* source
    cdef WorkerInfo known
    cdef uint32_t w, inside
    cdef uint8_t tier
    count[0] = 0
    if rows == NULL:
        return NULL
    for w in range(begin, min(end, <uint32_t>tree_workers_end(device))):
        known = tree_worker_info(device, w)
        source = &sources.all[w] if w < sources.count else NULL
        if not known.live or (recovering and not is_recovering(source)):
            continue
        row = &rows[count[0]]
        count[0] += 1
        memset(row, 0, sizeof(SourceRow))
        row.key = known.key
        row.missing = known.missing
        for tier in range(TIERS if tiers.lower else DEVICE + 1):
            inside = tier_worker(tiers, tier, w)
            if inside != UINT32_MAX:
                row.blocks[tier] = tree_worker_info(tiers.trees[tier], inside).blocks
        if source != NULL:
            row.cursor = source.cursor
            row.parked = source.parked.count
            row.unannounced = source.unannounced
            if source.parked.count:
                row.first_parked = source.parked.heap[0].event.event_id
    return rows


def end_of_sources(IndexActor actor not None):
    """One more than the highest number that the tree knows a worker by."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef uint32_t end
    with nogil:
        rwlock_read_begin(&state.lock)
        end = tree_workers_end(state.ingest.tiers.trees[DEVICE])
        rwlock_read_end(&state.lock)
    return end


def list_sources(
    IndexActor actor not None, bint recovering, uint32_t begin=0, uint32_t end=UINT32_MAX
):
    """Every worker that is known, or those alone that are exact but for a gap or a doubt; of those
    whom the tree knows by a number from `begin` to before `end`.

    (worker, EventCursor as a dict, id of the first event that waits or None, blocks by tier, blocks
    that the index had to drop, messages of publishers that the worker did not announce).
    """
    cdef SharedState* state = <SharedState*>actor.state
    cdef SourceRow* rows
    cdef uint32_t count, i
    with nogil:
        rwlock_read_begin(&state.lock)
        rows = read_rows(
            &state.ingest.tiers, &state.ingest.sources, recovering, begin, end, &count
        )
        rwlock_read_end(&state.lock)
    if rows == NULL:
        raise MemoryError
    try:
        return [
            (
                WorkerWithDpRank(rows[i].key.worker_id, rows[i].key.dp_rank),
                dict(rows[i].cursor),
                rows[i].first_parked if rows[i].parked else None,
                tuple([rows[i].blocks[tier] for tier in range(TIERS)]),
                rows[i].missing,
                rows[i].unannounced,
            )
            for i in range(count)
        ]
    finally:
        free(rows)


def count_alarms(IndexActor actor not None):
    """Times that a source came into need of being asked. Waits for nothing."""
    return atomic_load(&(<SharedState*>actor.state).ingest.alarms)


def read_counters(IndexActor actor not None):
    """Running totals, and present sizes of the index, of the mailbox and of what waits."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef Counters counters
    cdef TreeTotals totals, total
    cdef uint64_t parked
    cdef int tier
    memset(&total, 0, sizeof(TreeTotals))
    with nogil:
        rwlock_read_begin(&state.lock)
        counters = state.ingest.counters
        parked = state.ingest.sources.budget.events
        for tier in range(TIERS):
            totals = tree_totals(state.ingest.tiers.trees[tier])
            total.blocks += totals.blocks
            total.bytes += totals.bytes
            total.evicted += totals.evicted
            total.evictions += totals.evictions
        rwlock_read_end(&state.lock)
    return dict(counters) | {
        "held_now": parked,
        "indexed_blocks": total.blocks,
        "index_bytes": total.bytes,
        "evicted_blocks": total.evicted,
        "evicted_branches": total.evictions,
        "waiting": mailbox_length(&state.mailbox),
        "dropped": mailbox_refused(&state.mailbox),
    }


def read_tier_counters(IndexActor actor not None):
    """Running totals by Event.tier: TierCounters as dicts."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef TierCounters counters[4]
    cdef int tier
    with nogil:
        rwlock_read_begin(&state.lock)
        for tier in range(TIERS):
            counters[tier] = state.ingest.tiers.counters[tier]
        rwlock_read_end(&state.lock)
    return [dict(counters[tier]) for tier in range(TIERS)]


def await_replays(IndexActor actor not None, uint64_t max_events, uint64_t max_blocks):
    """Let at most this many events, and blocks in them, wait behind gaps from now on."""
    cdef SharedState* state = <SharedState*>actor.state
    with nogil:
        start_changing(state, NULL)
        state.ingest.sources.budget.max_events = max_events
        state.ingest.sources.budget.max_blocks = max_blocks
        stop_changing(state)


def give_up(IndexActor actor not None, worker):
    """What a recovering source is asked for will not come."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef Ingest* ingest = &state.ingest
    cdef Source* source
    cdef WorkerKey key
    read_worker(&key, worker)
    with nogil:
        source = start_changing(state, &key)
        if source != NULL and source.cursor.state == SOURCE_EXACT and (
            source.cursor.suspect or cursor_has_gap(&source.cursor)
        ):
            give_up_gap(ingest, <uint32_t>(source - ingest.sources.all), source)
        stop_changing(state)


def announce_publisher(IndexActor actor not None, worker, publisher_id):
    """Believe this publisher of a worker's events alone; None: any publisher."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef Ingest* ingest = &state.ingest
    cdef Source* source = NULL
    cdef WorkerKey key
    cdef uint32_t known
    cdef bint announced = publisher_id is not None
    cdef uint64_t believed = publisher_id if announced else 0
    read_worker(&key, worker)
    with nogil:
        start_changing(state, NULL)
        known = tree_intern_worker(ingest.tiers.trees[DEVICE], key.worker_id, key.dp_rank)
        if known != UINT32_MAX:
            source = source_of(&ingest.sources, known)
        if source != NULL:
            source_register(&ingest.sources, known)
        if source != NULL and announced:
            believe_publisher(ingest, known, source, believed)
        elif source != NULL:
            source.announced = False
        stop_changing(state)
    if source == NULL:
        raise MemoryError


def mark_degraded(IndexActor actor not None, worker, bint exact):
    """A rebuilding source does not answer; with `exact`, an exact one cannot report all it holds."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef Source* source
    cdef WorkerKey key
    read_worker(&key, worker)
    with nogil:
        source = start_changing(state, &key)
        if source != NULL and (
            source.cursor.state == SOURCE_REBUILDING
            or exact and source.cursor.state == SOURCE_EXACT
        ):
            source.cursor.state = SOURCE_DEGRADED
        stop_changing(state)


def mark_suspect(IndexActor actor not None):
    """Exact sources may have sent more than came here."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef Source* source
    cdef size_t i
    with nogil:
        start_changing(state, NULL)
        for i in range(state.ingest.sources.count):
            source = state.ingest.sources.all + i
            if source.cursor.state == SOURCE_EXACT and not source.cursor.suspect:
                source.cursor.suspect = SUSPECT_DEAF
        atomic_add(&state.ingest.alarms, 1)
        stop_changing(state)


def relearn(IndexActor actor not None):
    """Exact sources whose dropped blocks would fit again are rebuilding from now on: how many."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef const Tree* device = state.ingest.tiers.trees[DEVICE]
    cdef TreeTotals totals
    cdef Source* source
    cdef uint64_t missing, free_blocks
    cdef uint32_t w, asked = 0
    with nogil:
        start_changing(state, NULL)
        totals = tree_totals(device)
        # Not before a good part is free: every announcement brings a whole cache.
        if totals.blocks <= totals.max_blocks - totals.max_blocks // 4:
            free_blocks = totals.max_blocks - totals.blocks
            for w in range(tree_workers_end(device)):
                if w >= state.ingest.sources.count:
                    break
                source = state.ingest.sources.all + w
                missing = tree_worker_info(device, w).missing
                if (
                    0 < missing <= free_blocks
                    and source.cursor.state == SOURCE_EXACT
                    and source_is_well(source)
                ):
                    free_blocks -= missing
                    source.cursor.state = SOURCE_REBUILDING
                    asked += 1
        stop_changing(state)
    return asked
