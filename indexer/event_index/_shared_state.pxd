"""What the threads of an event index share, and how they take turns at changing it.

One of them writes at a time: the index's thread, or a caller, in turns. The one that empties the
mailbox gives others their turns between two messages, and a flushing caller takes out no more than
what was there when it came. Messages are applied in the order they were posted. The writer changes
what readers see only under the write lock, which it gives up between two steps of long work; readers take the read
lock and never wait for a turn. Both wait outside the GIL, and no holder of the lock asks for it.
Lock order: a turn, the reader-writer lock, the mailbox's lock.
"""
from libc.stdint cimport UINT32_MAX, UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from ..tree._ops cimport TREE_NO_MEMORY, WorkerKey, tree_find_worker, tree_intern_worker
from ..wire._events cimport Event
from ..wire._wire cimport decode_json_event, decode_nats_message
from ._ingest cimport Ingest, take_batch
from ._mailbox cimport Mailbox, Message, mailbox_end, mailbox_take, mailbox_wait
from ._rwlock cimport RwLock, rwlock_write_begin, rwlock_write_end
from ._sources cimport Source
from ._tiers cimport DEVICE, tiers_apply
from ._turns cimport Turns, turns_begin, turns_end, turns_pass


cdef struct SharedState:
    Turns turns                # at writing
    RwLock lock                # guards ingest
    Mailbox mailbox            # guards itself
    Ingest ingest              # what is known


cdef inline int apply_message(SharedState* state, const uint8_t* data, size_t size) noexcept nogil:
    """Decode and apply one message; returns the decoder's code. The writer's."""
    cdef int code = decode_nats_message(&state.ingest.batch, data, size)
    rwlock_write_begin(&state.lock)
    take_batch(&state.ingest, code)
    rwlock_write_end(&state.lock)
    return code


cdef inline int apply_unnumbered(
    SharedState* state,
    const WorkerKey* key,
    bint any_rank,
    const uint8_t* data,
    size_t size,
    int* status,
) noexcept nogil:
    """Decode one JSON cache event and apply it; returns the decoder's code. The writer's.

    `any_rank`: the rank is the event's, not the key's. *status: a TreeStatus.
    """
    cdef uint32_t worker, dp_rank = key.dp_rank
    cdef const Event* event
    cdef int code = decode_json_event(&state.ingest.batch, key.worker_id, data, size)
    if code != 0:
        return code
    event = state.ingest.batch.events
    if any_rank:
        dp_rank = event.dp_rank
    rwlock_write_begin(&state.lock)
    worker = tree_intern_worker(state.ingest.tiers.trees[DEVICE], key.worker_id, dp_rank)
    if worker == UINT32_MAX:
        status[0] = TREE_NO_MEMORY
    else:
        status[0] = tiers_apply(
            &state.ingest.tiers,
            event,
            worker,
            state.ingest.batch.external_hashes + event.first,
            state.ingest.batch.local_hashes + event.first,
        )
    rwlock_write_end(&state.lock)
    return 0


cdef inline void start_writing(SharedState* state) noexcept nogil:
    """Become the writer: any caller. Not for who holds the GIL."""
    turns_begin(&state.turns, True)


cdef inline void stop_writing(SharedState* state) noexcept nogil:
    turns_end(&state.turns)


cdef inline Source* start_changing(SharedState* state, const WorkerKey* key) noexcept nogil:
    """Become the writer and lock readers out; the source of a worker that has one, or NULL."""
    cdef uint32_t index
    start_writing(state)
    rwlock_write_begin(&state.lock)
    if key == NULL:
        return NULL
    index = tree_find_worker(state.ingest.tiers.trees[DEVICE], key.worker_id, key.dp_rank)
    return state.ingest.sources.all + index if index < state.ingest.sources.count else NULL


cdef inline void stop_changing(SharedState* state) noexcept nogil:
    rwlock_write_end(&state.lock)
    stop_writing(state)


cdef inline void drain_mailbox(SharedState* state, uint64_t end, bint caller) noexcept nogil:
    """Apply what waits before `end` (mailbox_end), oldest first. The writer's.

    Others write in between two messages.
    """
    cdef Message message
    while mailbox_take(&state.mailbox, end, &message):
        apply_message(state, message.data, message.size)
        free(message.data)
        turns_pass(&state.turns, caller)


cdef inline void start_writing_after_posted(SharedState* state) noexcept nogil:
    """Become the writer, with everything applied that was posted before."""
    cdef uint64_t end = mailbox_end(&state.mailbox)
    start_writing(state)
    drain_mailbox(state, end, True)


cdef inline void* index_thread(void* argument) noexcept nogil:
    """Sleep until something is posted, then apply it; until the mailbox is closed."""
    cdef SharedState* state = <SharedState*>argument
    while mailbox_wait(&state.mailbox):
        turns_begin(&state.turns, False)
        drain_mailbox(state, UINT64_MAX, False)
        turns_end(&state.turns)
    return NULL
