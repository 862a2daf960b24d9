# _core.pxd: what the actor's threads share, and how they take turns at changing it.
#
# Who holds `owner` is the one writer: the thread for one message, a flushing caller until the
# mailbox is empty. Messages are applied in the order they were posted. The writer changes what
# readers see only behind the closed gate, which it opens between two steps of long work; readers go
# through the gate and never wait for `owner`. Both wait outside the GIL, and nobody who is inside
# asks for it. Lock order: owner, the gate, the mailbox's lock.
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t
from libc.stdlib cimport free

from ..wire._events cimport Event
from ._rwlock cimport Gate, gate_close, gate_open
from ._ingest cimport Ingest, take_batch
from ._mailbox cimport Mailbox, Message, mailbox_take, mailbox_wait
from ..tree._ops cimport TREE_NO_MEMORY, Name, tree_find_worker, tree_worker
from ._sources cimport Source
from ._threads cimport (
    dr_add,
    dr_load,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    sched_yield,
)
from ._tiers cimport DEVICE, tiers_apply
from ..wire._wire cimport decode_json_event, decode_nats_message

cdef enum:
    TURNS = 1000  # of the processor that the thread offers to others who want to write


cdef struct Core:
    pthread_mutex_t owner      # held by the writer
    Gate gate
    Mailbox mailbox            # guards itself
    uint32_t writers           # waiting for owner; atomic
    Ingest ingest              # read it inside the gate, change it behind the closed gate


cdef inline int apply_message(Core* core, const uint8_t* data, size_t size) noexcept nogil:
    """Decode and apply one message; returns the decoder's code. The writer's."""
    cdef int code = decode_nats_message(&core.ingest.batch, data, size)
    gate_close(&core.gate)
    take_batch(&core.ingest, code)
    gate_open(&core.gate)
    return code


cdef inline int apply_unnumbered(
    Core* core, const Name* name, bint any_rank, const uint8_t* data, size_t size, int* status
) noexcept nogil:
    """Decode one JSON cache event and apply it; returns the decoder's code. The writer's."""
    cdef uint32_t worker, dp_rank = name.dp_rank
    cdef const Event* event
    cdef int code = decode_json_event(&core.ingest.batch, name.worker_id, data, size)
    if code != 0:
        return code
    event = core.ingest.batch.events
    if any_rank:
        dp_rank = event.dp_rank
    gate_close(&core.gate)
    worker = tree_worker(core.ingest.tiers.trees[DEVICE], name.worker_id, dp_rank)
    if worker == UINT32_MAX:
        status[0] = TREE_NO_MEMORY
    else:
        status[0] = tiers_apply(
            &core.ingest.tiers,
            event,
            worker,
            core.ingest.batch.block_hashes + event.first,
            core.ingest.batch.local_hashes + event.first,
        )
    gate_open(&core.gate)
    return 0


cdef inline void start_writing(Core* core) noexcept nogil:
    """Become the writer. Not for who holds the GIL."""
    dr_add(&core.writers, 1)
    pthread_mutex_lock(&core.owner)
    dr_add(&core.writers, -1)


cdef inline void stop_writing(Core* core) noexcept nogil:
    pthread_mutex_unlock(&core.owner)


cdef inline Source* start_changing(Core* core, const Name* name) noexcept nogil:
    """Become the writer, behind the closed gate; the source of a worker that was heard of, or NULL."""
    cdef uint32_t index
    start_writing(core)
    gate_close(&core.gate)
    if name == NULL:
        return NULL
    index = tree_find_worker(core.ingest.tiers.trees[DEVICE], name.worker_id, name.dp_rank)
    return core.ingest.sources.all + index if index < core.ingest.sources.count else NULL


cdef inline void stop_changing(Core* core) noexcept nogil:
    gate_open(&core.gate)
    stop_writing(core)


cdef inline void drain(Core* core, bint yielding) noexcept nogil:
    """Apply what waits, oldest first. The writer's.

    A yielding drain lets others write in between two messages.
    """
    cdef Message message
    cdef int turn
    while mailbox_take(&core.mailbox, &message):
        apply_message(core, message.data, message.size)
        free(message.data)
        if yielding and dr_load(&core.writers) != 0:
            pthread_mutex_unlock(&core.owner)
            for turn in range(TURNS):
                if dr_load(&core.writers) == 0:
                    break
                sched_yield()
            pthread_mutex_lock(&core.owner)


cdef inline void* run(void* argument) noexcept nogil:
    """The thread: sleep until something is posted, then apply it."""
    cdef Core* core = <Core*>argument
    while mailbox_wait(&core.mailbox):
        pthread_mutex_lock(&core.owner)
        drain(core, True)
        pthread_mutex_unlock(&core.owner)
    return NULL
