"""What a worker itself answers when it is asked for its events, into the index."""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t

from ..tree._arguments cimport read_worker
from ..tree._ops cimport WorkerKey
from ..wire._events cimport EVENT_STORED, Event
from ..wire._wire cimport TOPIC_KV_EVENTS, decode_nats_message
from ._actor cimport IndexActor
from ._cursor cimport (
    ORIGIN_SILENT,
    SOURCE_EXACT,
    SOURCE_SILENT,
    SUSPECT_NOT,
    EventCursor,
    cursor_begin,
    cursor_change,
)
from ._ingest cimport Ingest, apply_in_turn, apply_parked, find_source, reset_source
from ._rwlock cimport rwlock_write_begin, rwlock_write_end
from ._shared_state cimport SharedState, start_writing_after_posted, stop_writing
from ._sources cimport Source
from ._tiers cimport tiers_clear


cdef void cursor_catch_up(EventCursor* c, uint64_t last_event_id) noexcept nogil:
    """The worker itself reported its blocks after this event, and they are indexed; in which envelopes
    its events come is not known."""
    c.last_event_id = last_event_id
    if last_event_id >= c.newest:
        c.newest = last_event_id
        c.origin = ORIGIN_SILENT  # no sequence is known that belongs to it
    c.state = SOURCE_EXACT
    c.suspect = SUSPECT_NOT
    c.fresh = 0
    c.linked = 0


cdef inline bint is_of(const Event* event, const WorkerKey* key) noexcept nogil:
    return event.worker_id == key.worker_id and event.dp_rank == key.dp_rank


cdef void apply_one(
    Ingest* ingest, const Event* event, uint32_t worker, Source* source
) noexcept nogil:
    apply_in_turn(
        ingest,
        event,
        ingest.batch.external_hashes + event.first,
        ingest.batch.local_hashes + event.first,
        worker,
        source,
    )


cdef bint take_events(
    Ingest* ingest, const WorkerKey* key, uint32_t worker, Source* source
) noexcept nogil:
    """Apply those of the batch that follow on the last one applied; false if none does."""
    cdef EventCursor* cursor = &source.cursor
    cdef const Event* event
    cdef uint32_t i
    cdef bint any = False
    if cursor.state != SOURCE_EXACT or cursor.fresh:
        return False
    for i in range(ingest.batch.n_events):
        event = &ingest.batch.events[i]
        if is_of(event, key) and event.event_id == cursor.last_event_id + 1:
            apply_one(ingest, event, worker, source)
            cursor_catch_up(cursor, event.event_id)
            any = True
    return any


cdef void take_whole(
    Ingest* ingest, const WorkerKey* key, uint32_t worker, Source* source, uint64_t last_event_id
) noexcept nogil:
    """Let what the batch stores be all that the worker holds after an event."""
    cdef uint32_t i
    tiers_clear(&ingest.tiers, worker)
    for i in range(ingest.batch.n_events):
        if is_of(&ingest.batch.events[i], key) and ingest.batch.events[i].kind == EVENT_STORED:
            apply_one(ingest, &ingest.batch.events[i], worker, source)
    cursor_catch_up(&source.cursor, last_event_id)


cdef bint take_answer(
    SharedState* state,
    const WorkerKey* key,
    const uint8_t* data,
    size_t size,
    bint whole,
    uint64_t last_event_id,
) noexcept nogil:
    """See take_answer below. The writer's, under the write lock."""
    cdef Ingest* ingest = &state.ingest
    cdef uint32_t worker = 0
    cdef Source* source
    cdef EventCursor* cursor
    cdef uint64_t publisher_id
    cdef bint good = True
    if decode_nats_message(&ingest.batch, data, size) != 0:
        return False
    publisher_id = ingest.batch.publisher_id
    if ingest.batch.topic != TOPIC_KV_EVENTS or not ingest.batch.has_envelope:
        return False
    source = find_source(ingest, key.worker_id, key.dp_rank, &worker)
    if source == NULL or (source.announced and source.publisher_id != publisher_id):
        return False
    cursor = &source.cursor
    if cursor.state == SOURCE_SILENT:
        if not whole:
            return False
        cursor_begin(cursor, publisher_id, False)
    elif cursor.publisher_id != publisher_id or cursor.bare:
        if not whole:
            return False
        reset_source(ingest, worker, source)
        cursor_change(cursor, &source.past, publisher_id, False)
    if whole:
        take_whole(ingest, key, worker, source, last_event_id)
    elif ingest.batch.n_events:
        good = take_events(ingest, key, worker, source)
    elif cursor.state == SOURCE_EXACT and cursor.last_event_id == last_event_id:
        cursor_catch_up(cursor, last_event_id)  # nothing was missed
    else:
        good = False
    apply_parked(ingest, worker, source)
    return good


def take_recovered(
    IndexActor actor not None, worker, bytes message not None, bint whole, uint64_t last_event_id
):
    """See EventIndex.take_recovered."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef const uint8_t* data = message
    cdef size_t size = len(message)
    cdef WorkerKey key
    cdef bint good
    read_worker(&key, worker)
    with nogil:
        start_writing_after_posted(state)
        rwlock_write_begin(&state.lock)
        good = take_answer(state, &key, data, size, whole, last_event_id)
        rwlock_write_end(&state.lock)
        stop_writing(state)
    return good
