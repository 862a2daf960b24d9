# _ingest.pxd: messages of the event plane into the trees, through their sources' cursors. Pure: what
# the actor does with a decoded message while nobody reads.
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t

from ._cursor cimport (
    SOURCE_EXACT,
    VERDICT_APPLY,
    VERDICT_GIVE_UP,
    VERDICT_HOLD,
    VERDICT_RESET,
    Cursor,
    cursor_admit,
    cursor_give_up,
    cursor_has_gap,
    cursor_heartbeat,
    cursor_orphan,
)
from ..wire._events cimport EVENT_CLEARED, Event, EventBatch
from ._reorder_buffer cimport HELD_FULL, HELD_KNOWN, HeldEvent, held_drop, held_last_run, held_put
from ..tree._ops cimport (
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_PARENT_NOT_FOUND,
    tree_drop_worker,
    tree_worker,
)
from ._sources cimport Source, Sources, source_is_well, source_of
from ._threads cimport dr_add
from ._tiers cimport DEVICE, Tiers, tiers_apply, tiers_clear
from ..wire._wire cimport TOPIC_HEARTBEAT, TOPIC_KV_EVENTS


cdef struct Counters:
    uint64_t messages      # taken out of the mailbox
    uint64_t undecodable   # of those, not understood
    uint64_t ignored       # of those, other topics
    uint64_t invalid       # stored events that contradict themselves
    uint64_t refused       # events refused: too many workers
    uint64_t out_of_memory
    uint64_t held          # events that had to wait behind a gap
    uint64_t overflows     # gaps given up because too much waited


cdef struct Ingest:
    Tiers tiers
    EventBatch batch
    Sources sources
    uint32_t max_workers
    Counters counters
    uint32_t alarms        # times a source was no longer well; read without owning the tree


cdef inline void apply_in_turn(
    Ingest* core, const Event* event, const uint64_t* blocks, const uint64_t* locals_,
    uint32_t worker, Cursor* cursor
) noexcept nogil:
    """Apply the event that the cursor moved to."""
    cdef int status = tiers_apply(&core.tiers, event, worker, blocks, locals_)
    cursor.applied += 1
    if status == TREE_PARENT_NOT_FOUND and event.tier == DEVICE:
        cursor_orphan(cursor)  # in a lower tier it need not mean that anything was missed
    elif status == TREE_INVALID_SEQUENCE:
        core.counters.invalid += 1
    elif status == TREE_NO_MEMORY:
        core.counters.out_of_memory += 1


cdef inline void release_held(Ingest* core, uint32_t worker, Source* source) noexcept nogil:
    """Apply the held events whose turn has come."""
    cdef HeldEvent* held
    cdef uint32_t i = 0
    while i < source.held.count:
        held = source.held.events + i
        if held.event.event_id > source.cursor.last_event_id + 1:
            break
        if held.event.event_id == source.cursor.last_event_id + 1:
            source.cursor.last_event_id += 1
            apply_in_turn(
                core, &held.event, held.hashes, held.hashes + held.event.count, worker,
                &source.cursor,
            )
        i += 1
    held_drop(&source.held, &core.sources.budget, i)


cdef inline void give_up_gap(Ingest* core, uint32_t worker, Source* source) noexcept nogil:
    """Forget what the source said before its last gap, and go on behind that."""
    cdef uint32_t run
    cdef uint64_t last = source.cursor.newest
    tiers_clear(&core.tiers, worker)
    if source.held.count:
        run = source.held.count
        # Behind the last event nothing may be missing either, or it counts for nothing.
        if source.held.events[run - 1].event.event_id == last:
            run = held_last_run(&source.held)
            last = source.held.events[run].event.event_id - 1
        held_drop(&source.held, &core.sources.budget, run)
    cursor_give_up(&source.cursor, last)
    release_held(core, worker, source)


cdef inline Source* find_source(
    Ingest* core, uint64_t worker_id, uint32_t dp_rank, uint32_t* worker
) noexcept nogil:
    """The source of a worker, and its number in the tree; NULL, and counted, if it cannot be had."""
    cdef Source* source = NULL
    worker[0] = tree_worker(core.tiers.trees[DEVICE], worker_id, dp_rank)
    if worker[0] != UINT32_MAX and worker[0] >= core.max_workers:
        tree_drop_worker(core.tiers.trees[DEVICE], worker[0])
        core.counters.refused += 1
        return NULL
    if worker[0] != UINT32_MAX:
        source = source_of(&core.sources, worker[0])
    if source == NULL:
        core.counters.out_of_memory += 1
    return source


cdef inline void reset_source(Ingest* core, uint32_t worker, Source* source) noexcept nogil:
    tiers_clear(&core.tiers, worker)
    held_drop(&source.held, &core.sources.budget, source.held.count)


cdef inline void end_turn(
    Ingest* core, uint32_t worker, Source* source, bint was_well
) noexcept nogil:
    """What is left to do after a source said something."""
    if source.held.count and source.cursor.state != SOURCE_EXACT:
        give_up_gap(core, worker, source)  # it must announce itself anyway
    if was_well and not source_is_well(source):
        dr_add(&core.alarms, 1)


cdef inline void take_event(Ingest* core, const Event* event) noexcept nogil:
    """Admit one event of the batch through its source's cursor, and apply it or keep it."""
    cdef const uint64_t* blocks = core.batch.block_hashes + event.first
    cdef const uint64_t* locals_ = core.batch.local_hashes + event.first
    cdef uint32_t worker = 0
    cdef int verdict, status
    cdef bint was_well, in_line
    cdef bint is_clear = event.kind == EVENT_CLEARED and event.tier == DEVICE
    cdef Source* source = find_source(core, event.worker_id, event.dp_rank, &worker)
    if source == NULL:
        return
    was_well = source_is_well(source)
    in_line = event.event_id == source.cursor.last_event_id + 1
    verdict = cursor_admit(
        &source.cursor,
        core.batch.publisher_id,
        core.batch.sequence,
        event.event_id,
        is_clear,
        core.sources.budget.max_events != 0,
    )
    if verdict & VERDICT_RESET:
        reset_source(core, worker, source)
    if verdict & VERDICT_APPLY:
        if is_clear and not in_line:
            tiers_clear(&core.tiers, worker)  # it says nothing of what was missed in other tiers
        apply_in_turn(core, event, blocks, locals_, worker, &source.cursor)
        release_held(core, worker, source)
    elif verdict & VERDICT_HOLD:
        status = held_put(&source.held, &core.sources.budget, event, blocks, locals_)
        if status == HELD_KNOWN:
            source.cursor.duplicates += 1
        elif status == HELD_FULL:
            core.counters.overflows += 1
            give_up_gap(core, worker, source)
        else:
            core.counters.held += 1
    end_turn(core, worker, source, was_well)


cdef inline void take_heartbeat(Ingest* core, const Event* event) noexcept nogil:
    """A source says what its last event was."""
    cdef uint32_t worker = 0
    cdef int verdict
    cdef bint was_well
    cdef Source* source = find_source(core, event.worker_id, event.dp_rank, &worker)
    if source == NULL:
        return
    was_well = source_is_well(source)
    verdict = cursor_heartbeat(
        &source.cursor,
        core.batch.publisher_id,
        core.batch.sequence,
        event.event_id,
        core.sources.budget.max_events != 0,
    )
    if verdict & VERDICT_RESET:
        reset_source(core, worker, source)
    if verdict & VERDICT_GIVE_UP:
        give_up_gap(core, worker, source)
    end_turn(core, worker, source, was_well)


cdef inline void take_batch(Ingest* core, int code) noexcept nogil:
    """Apply the message that was decoded into the batch with this code."""
    cdef uint32_t i
    core.counters.messages += 1
    if code != 0:
        core.counters.undecodable += 1
    elif core.batch.topic == TOPIC_KV_EVENTS:
        for i in range(core.batch.n_events):
            take_event(core, &core.batch.events[i])
    elif core.batch.topic == TOPIC_HEARTBEAT:
        take_heartbeat(core, &core.batch.events[0])
    else:
        core.counters.ignored += 1
