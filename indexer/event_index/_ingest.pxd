"""Messages of the event plane into the trees, through their sources' cursors. Pure: what the owner
does with a decoded message while nobody reads.
"""
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t

from ..tree._ops cimport (
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_PARENT_NOT_FOUND,
    tree_drop_worker,
    tree_intern_worker,
)
from ..wire._events cimport EVENT_CLEARED, Event, EventBatch
from ..wire._wire cimport TOPIC_HEARTBEAT, TOPIC_KV_EVENTS
from ._cursor cimport (
    SOURCE_EXACT,
    SOURCE_REBUILDING,
    SOURCE_SILENT,
    VERDICT_APPLY,
    VERDICT_GIVE_UP,
    VERDICT_PARK,
    VERDICT_RESET,
    EventCursor,
    cursor_admit,
    cursor_give_up,
    cursor_heartbeat,
    cursor_orphan,
    cursor_restart,
)
from ._sources cimport (
    REORDER_FULL,
    REORDER_KNOWN,
    ParkedEvent,
    Source,
    Sources,
    reorder_drop,
    reorder_last_run,
    reorder_put,
    source_is_well,
    source_of,
)
from ._threads cimport atomic_add
from ._tiers cimport DEVICE, Tiers, tiers_apply, tiers_clear

cdef struct Counters:
    uint64_t messages      # taken out of the mailbox
    uint64_t undecodable   # of those, not understood
    uint64_t ignored       # of those, other topics
    uint64_t invalid       # stored events that contradict themselves
    uint64_t refused       # events refused: too many workers
    uint64_t out_of_memory # events applied in part, or sources not entered, without memory
    uint64_t held          # events that had to wait behind a gap
    uint64_t overflows     # gaps given up because too much waited
    uint64_t unannounced   # events and heartbeats of a publisher that the worker did not announce


cdef struct Ingest:
    Tiers tiers            # the trees
    EventBatch batch       # the message in hand, decoded
    Sources sources        # by the device tree's worker numbers
    uint32_t max_workers   # how many (worker, rank) are indexed
    Counters counters
    uint32_t alarms        # times a source was no longer well; atomic


cdef inline void apply_in_turn(
    Ingest* ingest,
    const Event* event,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t worker,
    EventCursor* cursor,
) noexcept nogil:
    """Apply the event that the cursor moved to."""
    cdef int status = tiers_apply(&ingest.tiers, event, worker, external_hashes, local_hashes)
    cursor.applied += 1
    if status == TREE_PARENT_NOT_FOUND and event.tier == DEVICE:
        cursor_orphan(cursor)  # in a lower tier it need not mean that anything was missed
    elif status == TREE_INVALID_SEQUENCE:
        ingest.counters.invalid += 1
    elif status == TREE_NO_MEMORY:
        ingest.counters.out_of_memory += 1


cdef inline void apply_parked(Ingest* ingest, uint32_t worker, Source* source) noexcept nogil:
    """Apply the waiting events whose turn has come."""
    cdef ParkedEvent* parked
    cdef uint32_t i = 0
    while i < source.parked.count:
        parked = source.parked.events + i
        if parked.event.event_id > source.cursor.last_event_id + 1:
            break
        if parked.event.event_id == source.cursor.last_event_id + 1:
            source.cursor.last_event_id += 1
            apply_in_turn(
                ingest,
                &parked.event,
                parked.hashes,
                parked.hashes + parked.event.count,
                worker,
                &source.cursor,
            )
        i += 1
    reorder_drop(&source.parked, &ingest.sources.budget, i)


cdef inline void give_up_gap(Ingest* ingest, uint32_t worker, Source* source) noexcept nogil:
    """Forget what the source said before its last gap, and go on behind that."""
    cdef uint32_t run
    cdef uint64_t last = source.cursor.newest
    tiers_clear(&ingest.tiers, worker)
    if source.parked.count:
        run = source.parked.count
        # Behind the last event nothing may be missing either, or it counts for nothing.
        if source.parked.events[run - 1].event.event_id == last:
            run = reorder_last_run(&source.parked)
            last = source.parked.events[run].event.event_id - 1
        reorder_drop(&source.parked, &ingest.sources.budget, run)
    cursor_give_up(&source.cursor, last)
    apply_parked(ingest, worker, source)


cdef inline Source* find_source(
    Ingest* ingest, uint64_t worker_id, uint32_t dp_rank, uint32_t* worker
) noexcept nogil:
    """The source of a worker, and its number in the tree; NULL, and counted, without memory or if
    there are too many workers."""
    cdef Source* source = NULL
    worker[0] = tree_intern_worker(ingest.tiers.trees[DEVICE], worker_id, dp_rank)
    if worker[0] != UINT32_MAX and worker[0] >= ingest.max_workers:
        tree_drop_worker(ingest.tiers.trees[DEVICE], worker[0])
        ingest.counters.refused += 1
        return NULL
    if worker[0] != UINT32_MAX:
        source = source_of(&ingest.sources, worker[0])
    if source == NULL:
        ingest.counters.out_of_memory += 1
    return source


cdef inline bint is_believed(Ingest* ingest, Source* source) noexcept nogil:
    """Whether the message at hand is of the publisher that the source's worker announced, if any."""
    if not source.announced or source.publisher_id == ingest.batch.publisher_id:
        return True
    source.unannounced += 1
    ingest.counters.unannounced += 1
    return False


cdef inline void reset_source(Ingest* ingest, uint32_t worker, Source* source) noexcept nogil:
    """Forget all that a source said; its cursor stays."""
    tiers_clear(&ingest.tiers, worker)
    reorder_drop(&source.parked, &ingest.sources.budget, source.parked.count)


cdef inline void believe_publisher(
    Ingest* ingest, uint32_t worker, Source* source, uint64_t publisher_id
) noexcept nogil:
    """Believe this publisher alone from now on; what another one said is forgotten."""
    cdef bint heard_another = (
        source.cursor.state != SOURCE_SILENT and source.cursor.publisher_id != publisher_id
    )
    cdef bint another_before = source.announced and source.publisher_id != publisher_id
    source.announced = True
    source.publisher_id = publisher_id
    if heard_another or another_before:
        reset_source(ingest, worker, source)
        cursor_restart(&source.cursor, publisher_id, 0)
        # What it said until now was not believed, an event 0 perhaps: it has to say it all again.
        source.cursor.state = SOURCE_REBUILDING
        atomic_add(&ingest.alarms, 1)


cdef inline void end_turn(
    Ingest* ingest, uint32_t worker, Source* source, bint was_well
) noexcept nogil:
    """What is left to do after a source said something."""
    if source.parked.count and source.cursor.state != SOURCE_EXACT:
        give_up_gap(ingest, worker, source)  # it must announce itself anyway
    if was_well and not source_is_well(source):
        atomic_add(&ingest.alarms, 1)


cdef inline void take_event(Ingest* ingest, const Event* event) noexcept nogil:
    """Admit one event of the batch through its source's cursor, and apply it or let it wait."""
    cdef const uint64_t* external_hashes = ingest.batch.external_hashes + event.first
    cdef const uint64_t* local_hashes = ingest.batch.local_hashes + event.first
    cdef uint32_t worker = 0
    cdef int verdict, status
    cdef bint was_well, in_line
    cdef bint is_clear = event.kind == EVENT_CLEARED and event.tier == DEVICE
    cdef Source* source = find_source(ingest, event.worker_id, event.dp_rank, &worker)
    if source == NULL or not is_believed(ingest, source):
        return
    was_well = source_is_well(source)
    in_line = event.event_id == source.cursor.last_event_id + 1
    verdict = cursor_admit(
        &source.cursor,
        ingest.batch.publisher_id,
        ingest.batch.sequence,
        event.event_id,
        is_clear,
        ingest.sources.budget.max_events != 0,
    )
    if verdict & VERDICT_RESET:
        reset_source(ingest, worker, source)
    if verdict & VERDICT_APPLY:
        if is_clear and not in_line:
            tiers_clear(&ingest.tiers, worker)  # it says nothing of what was missed in other tiers
        apply_in_turn(ingest, event, external_hashes, local_hashes, worker, &source.cursor)
        apply_parked(ingest, worker, source)
    elif verdict & VERDICT_PARK:
        status = reorder_put(
            &source.parked, &ingest.sources.budget, event, external_hashes, local_hashes
        )
        if status == REORDER_KNOWN:
            source.cursor.duplicates += 1
        elif status == REORDER_FULL:
            ingest.counters.overflows += 1
            give_up_gap(ingest, worker, source)
        else:
            ingest.counters.held += 1
    end_turn(ingest, worker, source, was_well)


cdef inline void take_heartbeat(Ingest* ingest, const Event* event) noexcept nogil:
    """A source says what its last event was."""
    cdef uint32_t worker = 0
    cdef int verdict
    cdef bint was_well
    cdef Source* source = find_source(ingest, event.worker_id, event.dp_rank, &worker)
    if source == NULL or not is_believed(ingest, source):
        return
    was_well = source_is_well(source)
    verdict = cursor_heartbeat(
        &source.cursor,
        ingest.batch.publisher_id,
        ingest.batch.sequence,
        event.event_id,
        ingest.sources.budget.max_events != 0,
    )
    if verdict & VERDICT_RESET:
        reset_source(ingest, worker, source)
    if verdict & VERDICT_GIVE_UP:
        give_up_gap(ingest, worker, source)
    end_turn(ingest, worker, source, was_well)


cdef inline void take_batch(Ingest* ingest, int code) noexcept nogil:
    """Apply the message that was decoded into the batch with this code."""
    cdef uint32_t i
    ingest.counters.messages += 1
    if code != 0:
        ingest.counters.undecodable += 1
    elif ingest.batch.topic == TOPIC_KV_EVENTS:
        for i in range(ingest.batch.n_events):
            take_event(ingest, &ingest.batch.events[i])
    elif ingest.batch.topic == TOPIC_HEARTBEAT:
        take_heartbeat(ingest, &ingest.batch.events[0])
    else:
        ingest.counters.ignored += 1
