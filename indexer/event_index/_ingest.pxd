"""Messages of the event plane into the trees, through their sources' cursors. Pure: what the owner
does with a decoded message while there is no reader.
"""
from libc.stdint cimport UINT32_MAX, UINT64_MAX, uint32_t, uint64_t

from ..tree._ops cimport (
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_PARENT_NOT_FOUND,
    tree_find_worker,
    tree_intern_worker,
    tree_worker_info,
)
from ..wire._events cimport EVENT_CLEARED, EVENT_STORED, Event, EventBatch
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
    cursor_apply,
    cursor_breaks,
    cursor_change,
    cursor_give_up,
    cursor_has_gap,
    cursor_heartbeat,
    cursor_orphan,
    cursor_renumber,
    is_before,
)
from ._reorder cimport (
    REORDER_FULL,
    REORDER_KNOWN,
    ParkedEvent,
    ReorderBudget,
    reorder_clear,
    reorder_drop_below,
    reorder_drop_first,
    reorder_put,
    reorder_run,
)
from ._sources cimport (
    Departed,
    Source,
    Sources,
    find_departed,
    source_is_well,
    source_of,
    spoke_for,
)
from ._threads cimport atomic_add
from ._tiers cimport DEVICE, Tiers, tier_worker, tiers_apply, tiers_clear

cdef struct Counters:
    uint64_t messages      # taken out of the mailbox
    uint64_t undecodable   # of those, not understood
    uint64_t ignored       # of those, other topics
    uint64_t invalid       # stored events that contradict themselves, impossible ids
    uint64_t refused       # events and heartbeats refused: too many unknown workers
    uint64_t departed      # events and heartbeats of those who spoke for a worker that left
    uint64_t out_of_memory # events applied in part, or sources not entered, without memory
    uint64_t held          # events that had to wait behind a gap
    uint64_t overflows     # gaps given up because too much waited
    uint64_t unannounced   # events and heartbeats of a publisher that the worker did not announce


cdef struct Ingest:
    Tiers tiers            # the trees
    EventBatch batch       # the message in hand, decoded
    Sources sources        # by the device tree's worker numbers
    Counters counters
    uint32_t alarms        # times a source was no longer well; atomic


cdef inline bint has_capacity(
    const Ingest* ingest, const Event* event, uint32_t worker, const Source* source
) noexcept nogil:
    """Whether a stored event is within what an unknown worker may hold in a tier."""
    cdef uint64_t most = ingest.sources.max_unknown_blocks
    cdef uint32_t inside
    if not source.unknown or most == 0 or event.kind != EVENT_STORED:
        return True
    inside = tier_worker(&ingest.tiers, event.tier, worker)
    if inside == UINT32_MAX:
        return event.count <= most
    return tree_worker_info(ingest.tiers.trees[event.tier], inside).blocks + event.count <= most


cdef inline bint may_park(
    const Ingest* ingest, const Event* event, const Source* source
) noexcept nogil:
    """Whether an event may wait behind a gap: unknown workers have a quarter of what
    may wait in all, so that the others' gaps can be filled."""
    cdef const ReorderBudget* budget = &ingest.sources.budget
    if not source.unknown or ingest.sources.max_unknown_blocks == 0:
        return True
    return (
        budget.events < budget.max_events // 4
        and budget.blocks + event.count <= budget.max_blocks // 4
    )


cdef inline void apply_in_turn(
    Ingest* ingest,
    const Event* event,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t worker,
    Source* source,
) noexcept nogil:
    """Apply the event that the cursor moved to."""
    cdef EventCursor* cursor = &source.cursor
    cdef int status
    cursor.applied += 1
    if not has_capacity(ingest, event, worker, source):
        ingest.counters.refused += 1
        cursor_orphan(cursor)  # it is to announce itself once it is known
        return
    status = tiers_apply(&ingest.tiers, event, worker, external_hashes, local_hashes)
    if status == TREE_PARENT_NOT_FOUND and event.tier == DEVICE:
        cursor_orphan(cursor)  # in a lower tier it need not mean that anything was missed
    elif status == TREE_INVALID_SEQUENCE:
        ingest.counters.invalid += 1
    elif status == TREE_NO_MEMORY:
        ingest.counters.out_of_memory += 1


cdef inline void reset_source(Ingest* ingest, uint32_t worker, Source* source) noexcept nogil:
    """Forget all events of a source; its cursor stays."""
    tiers_clear(&ingest.tiers, worker)
    reorder_clear(&source.parked, &ingest.sources.budget)


cdef inline void apply_parked(Ingest* ingest, uint32_t worker, Source* source) noexcept nogil:
    """Apply the waiting events whose turn has come."""
    cdef EventCursor* cursor = &source.cursor
    cdef ParkedEvent* parked
    reorder_drop_below(&source.parked, &ingest.sources.budget, cursor.last_event_id + 1)
    while source.parked.count:
        parked = source.parked.heap
        if cursor_breaks(cursor, parked.sequence, parked.event.event_id):
            reset_source(ingest, worker, source)
            cursor_renumber(cursor, cursor.applied_sequence + 1)
            break
        if cursor.linked and is_before(parked.sequence, cursor.applied_sequence):
            # Of an older numbering; the one that belongs here is still missing.
            reorder_drop_first(&source.parked, &ingest.sources.budget)
            continue
        if parked.event.event_id != cursor.last_event_id + 1:
            break
        cursor_apply(cursor, parked.sequence, parked.event.event_id)
        apply_in_turn(
            ingest,
            &parked.event,
            parked.hashes,
            parked.hashes + parked.event.count,
            worker,
            source,
        )
        reorder_drop_first(&source.parked, &ingest.sources.budget)


cdef inline void give_up_gap(Ingest* ingest, uint32_t worker, Source* source) noexcept nogil:
    """Forget the source's events before its last gap, and go on behind that."""
    cdef uint64_t first
    tiers_clear(&ingest.tiers, worker)
    # Behind the last event nothing may be missing either, or it counts for nothing.
    first = reorder_run(&source.parked, &ingest.sources.budget, source.cursor.newest)
    reorder_drop_below(&source.parked, &ingest.sources.budget, first)
    cursor_give_up(&source.cursor, first - 1)
    apply_parked(ingest, worker, source)


cdef inline Source* find_source(
    Ingest* ingest, uint64_t worker_id, uint32_t dp_rank, uint32_t* worker
) noexcept nogil:
    """The source of a worker, made if need be, and its number in the tree; NULL, and counted,
    without memory."""
    cdef Source* source = NULL
    worker[0] = tree_intern_worker(ingest.tiers.trees[DEVICE], worker_id, dp_rank)
    if worker[0] != UINT32_MAX:
        source = source_of(&ingest.sources, worker[0])
    if source == NULL:
        ingest.counters.out_of_memory += 1
    return source


cdef inline bint is_believed(Ingest* ingest, Source* source) noexcept nogil:
    """Whether the message at hand is of the publisher that the source's worker announced, if any."""
    if not source.announced:
        return True
    if ingest.batch.has_envelope and source.publisher_id == ingest.batch.publisher_id:
        return True
    source.unannounced += 1
    ingest.counters.unannounced += 1
    return False


cdef inline Source* find_speaker(
    Ingest* ingest, const Event* event, uint32_t* worker
) noexcept nogil:
    """The source that an event or heartbeat of the batch is of, and its number in the tree; NULL,
    and counted, if it is not to be believed."""
    cdef Sources* sources = &ingest.sources
    cdef Source* source
    cdef Departed* gone
    if event.event_id == UINT64_MAX:
        ingest.counters.invalid += 1  # no numbering gets there, and none could go on
        return NULL
    worker[0] = tree_find_worker(ingest.tiers.trees[DEVICE], event.worker_id, event.dp_rank)
    if worker[0] != UINT32_MAX:
        source = find_source(ingest, event.worker_id, event.dp_rank, worker)
        return source if source != NULL and is_believed(ingest, source) else NULL
    gone = find_departed(sources, event.worker_id, event.dp_rank)
    if gone != NULL and spoke_for(gone, ingest.batch.publisher_id, ingest.batch.has_envelope):
        ingest.counters.departed += 1
        return NULL
    if sources.unknown >= sources.max_unknown:
        ingest.counters.refused += 1
        return NULL
    source = find_source(ingest, event.worker_id, event.dp_rank, worker)
    if source != NULL:
        source.unknown = True
        sources.unknown += 1
        if gone != NULL:
            source.past = gone.past
    return source


cdef inline void believe_publisher(
    Ingest* ingest, uint32_t worker, Source* source, uint64_t publisher_id
) noexcept nogil:
    """Believe this publisher alone from now on; another one's events are forgotten."""
    cdef bint had_another = (
        source.cursor.state != SOURCE_SILENT and source.cursor.publisher_id != publisher_id
    )
    cdef bint another_before = source.announced and source.publisher_id != publisher_id
    source.announced = True
    source.publisher_id = publisher_id
    if had_another or another_before:
        reset_source(ingest, worker, source)
        cursor_change(&source.cursor, &source.past, publisher_id, False)
        # Its events until now were not believed, an event 0 perhaps: it has to send all again.
        source.cursor.state = SOURCE_REBUILDING
        atomic_add(&ingest.alarms, 1)


cdef inline void end_turn(
    Ingest* ingest, uint32_t worker, Source* source, bint was_well
) noexcept nogil:
    """What is left to do after a message of a source."""
    cdef const EventCursor* cursor = &source.cursor
    if cursor_has_gap(cursor) and (
        cursor.state != SOURCE_EXACT or ingest.sources.budget.max_events == 0
    ):
        give_up_gap(ingest, worker, source)  # it must announce itself anyway, or no source is asked
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
    cdef Source* source = find_speaker(ingest, event, &worker)
    if source == NULL:
        return
    was_well = source_is_well(source)
    in_line = event.event_id == source.cursor.last_event_id + 1
    verdict = cursor_admit(
        &source.cursor,
        &source.past,
        ingest.batch.publisher_id,
        ingest.batch.sequence,
        event.event_id,
        is_clear,
        ingest.sources.budget.max_events != 0,
        not ingest.batch.has_envelope,
    )
    if verdict & VERDICT_RESET:
        reset_source(ingest, worker, source)
    if verdict & VERDICT_APPLY:
        if is_clear and not in_line:
            tiers_clear(&ingest.tiers, worker)  # it says nothing of what was missed in other tiers
        apply_in_turn(ingest, event, external_hashes, local_hashes, worker, source)
        apply_parked(ingest, worker, source)
    elif verdict & VERDICT_PARK:
        status = REORDER_FULL
        if may_park(ingest, event, source):
            status = reorder_put(
                &source.parked,
                &ingest.sources.budget,
                event,
                ingest.batch.sequence,
                external_hashes,
                local_hashes,
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
    cdef Source* source = find_speaker(ingest, event, &worker)
    if source == NULL:
        return
    was_well = source_is_well(source)
    verdict = cursor_heartbeat(
        &source.cursor,
        &source.past,
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
