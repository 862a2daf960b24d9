"""What the threads of an event index share, and how they take turns at changing it.

Who holds `owner` is the one writer: the thread for one message, a flushing caller until the
mailbox is empty. Messages are applied in the order they were posted. The writer changes what
readers see only under the write lock, which it gives up between two steps of long work; readers
take the read lock and never wait for `owner`. Both wait outside the GIL, and nobody who has the
lock asks for it. Lock order: owner, the reader-writer lock, the mailbox's lock.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t
from libc.stdlib cimport free

from ..tree._ops cimport TREE_NO_MEMORY, WorkerKey, tree_find_worker, tree_intern_worker
from ..wire._events cimport Event
from ..wire._wire cimport decode_json_event, decode_nats_message
from ._ingest cimport Ingest, take_batch
from ._mailbox cimport Mailbox, Message, mailbox_take, mailbox_wait
from ._rwlock cimport RwLock, rwlock_write_begin, rwlock_write_end
from ._sources cimport Source
from ._threads cimport (
    atomic_add,
    atomic_load,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    sched_yield,
)
from ._tiers cimport DEVICE, tiers_apply

cdef enum:
    TURNS = 1000  # of the processor that the thread offers to others who want to write


cdef struct SharedState:
    pthread_mutex_t owner      # held by the writer
    RwLock lock                # guards ingest
    Mailbox mailbox            # guards itself
    uint32_t writers           # callers that wait for owner; atomic
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
    """Become the writer. Not for who holds the GIL."""
    atomic_add(&state.writers, 1)
    pthread_mutex_lock(&state.owner)
    atomic_add(&state.writers, -1)


cdef inline void stop_writing(SharedState* state) noexcept nogil:
    pthread_mutex_unlock(&state.owner)


cdef inline Source* start_changing(SharedState* state, const WorkerKey* key) noexcept nogil:
    """Become the writer and lock readers out; the source of a worker that was heard of, or NULL."""
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


cdef inline void drain_mailbox(SharedState* state, bint yielding) noexcept nogil:
    """Apply what waits, oldest first. The writer's.

    A yielding drain lets others write in between two messages.
    """
    cdef Message message
    cdef int turn
    while mailbox_take(&state.mailbox, &message):
        apply_message(state, message.data, message.size)
        free(message.data)
        if yielding and atomic_load(&state.writers) != 0:
            pthread_mutex_unlock(&state.owner)
            for turn in range(TURNS):
                if atomic_load(&state.writers) == 0:
                    break
                sched_yield()
            pthread_mutex_lock(&state.owner)


cdef inline void* index_thread(void* argument) noexcept nogil:
    """Sleep until something is posted, then apply it; until the mailbox is closed."""
    cdef SharedState* state = <SharedState*>argument
    while mailbox_wait(&state.mailbox):
        pthread_mutex_lock(&state.owner)
        drain_mailbox(state, True)
        pthread_mutex_unlock(&state.owner)
    return NULL
