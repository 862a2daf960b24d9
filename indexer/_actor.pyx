# cython: language_level=3
"""_actor.pyx: the owner of the event-driven index.

A native thread takes messages from a bounded mailbox, decodes them and applies them to the tree,
never touching the interpreter. Who holds `owner` is the one writer: the thread for one message, a
flushing caller until the mailbox is empty. Messages are applied in the order they were posted.

The writer changes what readers see only behind the closed gate, and opens it between two steps of
long work. Readers go through the gate and never wait for `owner`. Both wait outside the GIL, and
nobody asks for the GIL who is inside. Lock order: owner, the gate, the mailbox's lock.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from ..runtime.errors import EventError
from ..runtime.identity import WorkerWithDpRank
from ._cursor cimport (
    SOURCE_DEGRADED,
    SOURCE_EXACT,
    SOURCE_REBUILDING,
    VERDICT_DUPLICATE,
    VERDICT_RESET,
    Cursor,
    Verdict,
    cursor_admit,
    cursor_orphan,
)
from ._events cimport EVENT_CLEARED, EVENT_REMOVED, EVENT_STORED, Event, EventBatch
from ._gate cimport (
    READ_EXCLUSIVE,
    READ_SHARED,
    Gate,
    gate_arrive,
    gate_close,
    gate_destroy,
    gate_enter,
    gate_give_way,
    gate_init,
    gate_leave,
    gate_open,
)
from ._mailbox cimport (
    Mailbox,
    Message,
    mailbox_close,
    mailbox_destroy,
    mailbox_length,
    mailbox_open,
    mailbox_put,
    mailbox_refused,
    mailbox_take,
    mailbox_wait,
)
from ._pace cimport Pace
from ._radix cimport (
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_NOT_FOUND,
    Hits,
    Name,
    RadixTree,
    Tree,
    hits_free,
    raise_status,
    read_name,
    tree_bind,
    tree_clear,
    tree_drop_worker,
    tree_find_worker,
    tree_match,
    tree_match_bound,
    tree_names,
    tree_remove,
    tree_store,
    tree_worker,
)
from ._sources cimport Source, copy_sources
from ._threads cimport (
    dr_add,
    dr_load,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    pthread_t,
    sched_yield,
)
from ._wire cimport batch_free, batch_init, decode_json_event, decode_nats_message

from .wire import describe_decode_error

cdef enum:
    STEP_BLOCKS = 128  # of work between two chances for readers: 3 to 10 us
    YIELDS = 1000      # turns of the processor that the thread offers to others who want to write


cdef struct Counters:
    uint64_t messages      # taken out of the mailbox
    uint64_t undecodable   # of those, not understood
    uint64_t ignored       # of those, other topics
    uint64_t stored        # blocks stored
    uint64_t removed       # blocks removed
    uint64_t unknown       # removals of blocks that were not held
    uint64_t invalid       # stored events that contradict themselves
    uint64_t lower_tier    # events of tiers that are not indexed
    uint64_t refused       # events refused: too many workers
    uint64_t out_of_memory


cdef struct Core:
    pthread_mutex_t owner      # held by the writer
    Gate gate                  # read what is below inside it, change it while it is closed
    Mailbox mailbox            # guards itself
    uint32_t writers           # waiting for owner; atomic
    Tree* tree
    EventBatch batch
    Cursor* cursors            # by the tree's worker index
    uint32_t n_cursors
    uint32_t max_workers
    Counters counters


cdef Cursor* cursor_of(Core* core, uint32_t worker) noexcept nogil:
    """The cursor of a tree worker; NULL if there is no memory for it."""
    cdef uint32_t wanted
    cdef Cursor* grown
    if worker >= core.n_cursors:
        wanted = worker + 1 + worker // 2
        grown = <Cursor*>realloc(core.cursors, wanted * sizeof(Cursor))
        if grown == NULL:
            return NULL
        memset(grown + core.n_cursors, 0, (wanted - core.n_cursors) * sizeof(Cursor))
        core.cursors = grown
        core.n_cursors = wanted
    return core.cursors + worker


cdef int apply_event(Core* core, const Event* event, uint32_t worker) noexcept nogil:
    """Apply one admitted event, a step at a time; returns the tree's status."""
    cdef const uint64_t* blocks = core.batch.block_hashes + event.first
    cdef const uint64_t* locals_ = core.batch.local_hashes + event.first
    cdef uint32_t unknown = 0
    cdef int status = TREE_OK
    if event.kind == EVENT_STORED:
        status = tree_store(
            core.tree, worker, event.has_parent, event.parent_hash, blocks, locals_, event.count
        )
        if status == TREE_OK:
            core.counters.stored += event.count
    elif event.kind == EVENT_REMOVED:
        status = tree_remove(core.tree, worker, blocks, event.count, &unknown)
        core.counters.removed += event.count - unknown
        core.counters.unknown += unknown
    else:
        tree_clear(core.tree, worker)
    return status


cdef void apply_numbered(Core* core, const Event* event) noexcept nogil:
    """Admit one event of a message through its source's cursor, and apply it."""
    cdef uint32_t worker
    cdef Cursor* cursor
    cdef Verdict verdict
    cdef int status
    worker = tree_worker(core.tree, event.worker_id, event.dp_rank)
    if worker == UINT32_MAX:
        core.counters.out_of_memory += 1
        return
    if worker >= core.max_workers:
        tree_drop_worker(core.tree, worker)
        core.counters.refused += 1
        return
    cursor = cursor_of(core, worker)
    if cursor == NULL:
        core.counters.out_of_memory += 1
        return
    verdict = cursor_admit(
        cursor,
        core.batch.publisher_id,
        core.batch.sequence,
        event.event_id,
        event.kind == EVENT_CLEARED and event.tier == 0,
    )
    if verdict == VERDICT_DUPLICATE:
        return
    if verdict == VERDICT_RESET:
        tree_clear(core.tree, worker)
    if event.tier != 0:
        core.counters.lower_tier += 1
        return
    status = apply_event(core, event, worker)
    cursor.applied += 1
    if status == TREE_PARENT_NOT_FOUND:
        cursor_orphan(cursor)
    elif status == TREE_INVALID_SEQUENCE:
        core.counters.invalid += 1
    elif status == TREE_NO_MEMORY:
        core.counters.out_of_memory += 1


cdef int apply_message(Core* core, const uint8_t* data, size_t size) noexcept nogil:
    """Decode and apply one message; returns the decoder's code. The writer's."""
    cdef uint32_t i
    cdef int code = decode_nats_message(&core.batch, data, size)
    gate_close(&core.gate)
    core.counters.messages += 1
    if code != 0:
        core.counters.undecodable += 1
    elif core.batch.topic != 0:
        core.counters.ignored += 1
    else:
        for i in range(core.batch.n_events):
            apply_numbered(core, &core.batch.events[i])
    gate_open(&core.gate)
    return code


cdef int apply_unnumbered(
    Core* core, const Name* name, bint any_rank, const uint8_t* data, size_t size, int* status
) noexcept nogil:
    """Decode one JSON cache event and apply it; returns the decoder's code. The writer's."""
    cdef uint32_t worker, dp_rank = name.dp_rank
    cdef int code = decode_json_event(&core.batch, name.worker_id, data, size)
    if code != 0:
        return code
    if any_rank:
        dp_rank = core.batch.events.dp_rank
    gate_close(&core.gate)
    worker = tree_worker(core.tree, name.worker_id, dp_rank)
    if worker == UINT32_MAX:
        status[0] = TREE_NO_MEMORY
    else:
        status[0] = apply_event(core, core.batch.events, worker)
    gate_open(&core.gate)
    return 0


cdef void start_writing(Core* core) noexcept nogil:
    """Become the writer. Not for who holds the GIL."""
    dr_add(&core.writers, 1)
    pthread_mutex_lock(&core.owner)
    dr_add(&core.writers, -1)


cdef void stop_writing(Core* core) noexcept nogil:
    pthread_mutex_unlock(&core.owner)


cdef void drain(Core* core, bint yielding) noexcept nogil:
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
            for turn in range(YIELDS):
                if dr_load(&core.writers) == 0:
                    break
                sched_yield()
            pthread_mutex_lock(&core.owner)


cdef void* run(void* argument) noexcept nogil:
    """The thread: sleep until something is posted, then apply it."""
    cdef Core* core = <Core*>argument
    while mailbox_wait(&core.mailbox):
        pthread_mutex_lock(&core.owner)
        drain(core, True)
        pthread_mutex_unlock(&core.owner)
    return NULL


cdef class IndexActor:
    """See actor.py."""

    cdef Core* core
    cdef RadixTree tree
    cdef pthread_t thread
    cdef bint running

    def __cinit__(
        self,
        *,
        uint32_t max_messages=16384,
        size_t max_bytes=1 << 28,
        uint32_t max_workers=65536,
        bint shared=True,
    ):
        if max_messages == 0 or max_workers == 0:
            raise ValueError("max_messages and max_workers must be at least 1")
        self.tree = RadixTree()
        self.core = <Core*>calloc(1, sizeof(Core))
        if self.core == NULL:
            raise MemoryError
        pthread_mutex_init(&self.core.owner, NULL)
        gate_init(&self.core.gate, READ_SHARED if shared else READ_EXCLUSIVE)
        batch_init(&self.core.batch)
        self.core.tree = self.tree.tree
        self.core.tree.memory.pace = Pace(gate_give_way, &self.core.gate, STEP_BLOCKS, 0)
        self.core.max_workers = max_workers
        if not mailbox_open(&self.core.mailbox, max_messages, max_bytes):
            raise MemoryError
        if pthread_create(&self.thread, NULL, run, self.core) != 0:
            raise RuntimeError("cannot start the index thread")
        self.running = True

    def __dealloc__(self):
        if self.core == NULL:
            return
        self.stop_thread()
        mailbox_destroy(&self.core.mailbox)
        batch_free(&self.core.batch)
        free(self.core.cursors)
        gate_destroy(&self.core.gate)
        pthread_mutex_destroy(&self.core.owner)
        free(self.core)

    cdef void stop_thread(self) noexcept:
        if not self.running:
            return
        self.running = False
        with nogil:
            mailbox_close(&self.core.mailbox)
            pthread_join(self.thread, NULL)

    def close(self):
        self.stop_thread()

    def post(self, bytes message not None):
        cdef const uint8_t* data = message
        return mailbox_put(&self.core.mailbox, data, len(message))

    def apply(self, bytes message not None):
        cdef const uint8_t* data = message
        cdef size_t size = len(message)
        cdef int code
        with nogil:
            start_writing(self.core)
            drain(self.core, False)
            code = apply_message(self.core, data, size)
            stop_writing(self.core)
        return code

    def apply_cache_event(self, worker, bytes message not None):
        cdef const uint8_t* data = message
        cdef size_t size = len(message)
        cdef bint any_rank = not isinstance(worker, tuple)
        cdef Name name
        cdef int code, status = TREE_OK
        read_name(&name, worker)
        with nogil:
            start_writing(self.core)
            drain(self.core, False)
            code = apply_unnumbered(self.core, &name, any_rank, data, size, &status)
            stop_writing(self.core)
        if code != 0:
            raise ValueError(describe_decode_error(code))
        raise_status(status, name.worker_id)

    def flush(self):
        with nogil:
            start_writing(self.core)
            drain(self.core, False)
            stop_writing(self.core)

    def match_bound(self, const uint64_t[::1] local_hashes, uint32_t[::1] out):
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef uint32_t n_out = <uint32_t>out.shape[0]
        cdef const uint64_t* local
        cdef uint32_t longest, ticket
        if n_out == 0:
            return 0
        local = &local_hashes[0] if n else NULL
        ticket = gate_arrive(&self.core.gate)
        if ticket == 0:
            # Giving the GIL away and getting it back would take longer than the match.
            longest = tree_match_bound(self.core.tree, local, n, &out[0], n_out)
            gate_leave(&self.core.gate)
        else:
            with nogil:
                gate_enter(&self.core.gate, ticket)
                longest = tree_match_bound(self.core.tree, local, n, &out[0], n_out)
                gate_leave(&self.core.gate)
        if longest == UINT32_MAX:
            raise MemoryError
        return longest

    def scores(self, const uint64_t[::1] local_hashes):
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef const uint64_t* local = &local_hashes[0] if n else NULL
        cdef Hits hits
        cdef Name* names    # inside the gate, so that nobody else is one of the workers by then
        cdef uint32_t i
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            tree_match(self.core.tree, local, n, False, &hits)
            names = tree_names(self.core.tree, &hits)
            gate_leave(&self.core.gate)
        try:
            if names == NULL:
                raise MemoryError
            return {
                WorkerWithDpRank(names[i].worker_id, names[i].dp_rank): hits.blocks[i]
                for i in range(hits.count)
            }
        finally:
            hits_free(&hits)
            free(names)

    def bind(self, worker, uint32_t number):
        cdef uint32_t index
        cdef Name name
        read_name(&name, worker)
        with nogil:
            start_writing(self.core)
            gate_close(&self.core.gate)
            index = tree_worker(self.core.tree, name.worker_id, name.dp_rank)
            if index != UINT32_MAX:
                tree_bind(self.core.tree, index, number)
            gate_open(&self.core.gate)
            stop_writing(self.core)
        if index == UINT32_MAX:
            raise MemoryError

    def drop_worker(self, worker):
        cdef uint32_t index
        cdef Name name
        read_name(&name, worker)
        with nogil:
            start_writing(self.core)
            gate_close(&self.core.gate)
            index = tree_find_worker(self.core.tree, name.worker_id, name.dp_rank)
            if index != UINT32_MAX:
                tree_drop_worker(self.core.tree, index)
                if index < self.core.n_cursors:
                    memset(self.core.cursors + index, 0, sizeof(Cursor))
            gate_open(&self.core.gate)
            stop_writing(self.core)

    def mark_degraded(self, worker):
        cdef uint32_t index
        cdef Name name
        cdef Cursor* cursors
        read_name(&name, worker)
        with nogil:
            start_writing(self.core)
            gate_close(&self.core.gate)
            cursors = self.core.cursors
            index = tree_find_worker(self.core.tree, name.worker_id, name.dp_rank)
            if index < self.core.n_cursors and cursors[index].state == SOURCE_REBUILDING:
                cursors[index].state = SOURCE_DEGRADED
            gate_open(&self.core.gate)
            stop_writing(self.core)

    def mark_suspect(self):
        cdef uint32_t index
        with nogil:
            start_writing(self.core)
            gate_close(&self.core.gate)
            for index in range(self.core.n_cursors):
                self.core.cursors[index].suspect = self.core.cursors[index].state == SOURCE_EXACT
            gate_open(&self.core.gate)
            stop_writing(self.core)

    def sources(self):
        """(worker, Cursor as a dict, blocks held) of every worker the tree knows."""
        cdef Source* found
        cdef uint32_t count, i
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            found = copy_sources(
                self.core.tree, self.core.cursors, self.core.n_cursors, &count
            )
            gate_leave(&self.core.gate)
        if found == NULL:
            raise MemoryError
        try:
            return [
                (
                    WorkerWithDpRank(found[i].worker_id, found[i].dp_rank),
                    dict(found[i].cursor),
                    found[i].blocks,
                )
                for i in range(count)
            ]
        finally:
            free(found)

    def counters(self):
        cdef Counters counters
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            counters = self.core.counters
            gate_leave(&self.core.gate)
        return dict(counters) | {
            "waiting": mailbox_length(&self.core.mailbox),
            "dropped": mailbox_refused(&self.core.mailbox),
        }
