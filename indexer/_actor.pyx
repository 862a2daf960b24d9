# cython: language_level=3
"""_actor.pyx: the owner of the event-driven index.

A native thread takes messages from a bounded mailbox, decodes them and applies them to the tree,
never touching the interpreter. Who holds `owner` owns the tree: the thread while it applies one
message, a reader for one match, a flushing caller until the mailbox is empty. Lock order: owner
before the mailbox's. Messages are applied in the order they were posted.
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
from ._mailbox cimport (
    Mailbox,
    Message,
    mailbox_close,
    mailbox_destroy,
    mailbox_length,
    mailbox_open,
    mailbox_put,
    mailbox_take,
    mailbox_wait,
)
from ._radix cimport (
    TREE_BLOCK_NOT_FOUND,
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_NOT_FOUND,
    RadixTree,
    Tree,
    tree_bind,
    tree_clear,
    tree_drop_worker,
    tree_find_worker,
    tree_match_bound,
    tree_remove,
    tree_store,
    tree_worker,
)
from ._threads cimport (
    dr_add,
    dr_load,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_trylock,
    pthread_mutex_unlock,
    pthread_t,
    sched_yield,
)
from ._wire cimport batch_free, batch_init, decode_nats_message

# How often the thread offers the tree to waiting readers before it goes on.
cdef int YIELDS = 1000


cdef struct Counters:
    uint64_t messages      # taken out of the mailbox
    uint64_t undecodable   # of those, not understood
    uint64_t ignored       # of those, other topics
    uint64_t dropped       # not taken in: the mailbox was full
    uint64_t stored        # blocks stored
    uint64_t removed       # blocks removed
    uint64_t unknown       # removals of blocks that were not held
    uint64_t invalid       # stored events that contradict themselves
    uint64_t lower_tier    # events of tiers that are not indexed
    uint64_t refused       # events refused: too many workers
    uint64_t out_of_memory


cdef struct Core:
    pthread_mutex_t owner      # guards all below but the mailbox, which guards itself
    Mailbox mailbox
    int readers                # waiting for owner; atomic
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
    """Apply one admitted event; returns the tree's status."""
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
    """Decode and apply one message; returns the decoder's code. Called with owner held."""
    cdef uint32_t i
    cdef int code = decode_nats_message(&core.batch, data, size)
    core.counters.messages += 1
    if code != 0:
        core.counters.undecodable += 1
    elif core.batch.topic != 0:
        core.counters.ignored += 1
    else:
        for i in range(core.batch.n_events):
            apply_numbered(core, &core.batch.events[i])
    return code


cdef void drain(Core* core, bint yielding) noexcept nogil:
    """Apply what waits, oldest first. Called with owner held; returns with it held.

    A yielding drain lets waiting readers in between two messages.
    """
    cdef Message message
    cdef int turn
    while mailbox_take(&core.mailbox, &message):
        apply_message(core, message.data, message.size)
        free(message.data)
        if yielding and dr_load(&core.readers) > 0:
            pthread_mutex_unlock(&core.owner)
            for turn in range(YIELDS):
                if dr_load(&core.readers) == 0:
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
        max_blocks=None,
    ):
        if max_messages == 0 or max_workers == 0:
            raise ValueError("max_messages and max_workers must be at least 1")
        self.tree = RadixTree(max_blocks)
        self.core = <Core*>calloc(1, sizeof(Core))
        if self.core == NULL:
            raise MemoryError
        pthread_mutex_init(&self.core.owner, NULL)
        batch_init(&self.core.batch)
        self.core.tree = self.tree.tree
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
        pthread_mutex_destroy(&self.core.owner)
        free(self.core)

    cdef void stop_thread(self) noexcept:
        if not self.running:
            return
        self.running = False
        with nogil:
            mailbox_close(&self.core.mailbox)
            pthread_join(self.thread, NULL)

    cdef void own(self) noexcept:
        """Become the tree's owner: at once if it is free, else outside the GIL."""
        if pthread_mutex_trylock(&self.core.owner) == 0:
            return
        with nogil:
            dr_add(&self.core.readers, 1)
            pthread_mutex_lock(&self.core.owner)
            dr_add(&self.core.readers, -1)

    cdef void disown(self) noexcept:
        pthread_mutex_unlock(&self.core.owner)

    def close(self):
        self.stop_thread()

    def post(self, bytes message not None):
        cdef const uint8_t* data = message
        if mailbox_put(&self.core.mailbox, data, len(message)):
            return True
        self.own()
        self.core.counters.dropped += 1
        self.disown()
        return False

    def apply(self, bytes message not None):
        cdef const uint8_t* data = message
        cdef size_t size = len(message)
        cdef int code
        self.own()
        with nogil:
            drain(self.core, False)
            code = apply_message(self.core, data, size)
            pthread_mutex_unlock(&self.core.owner)
        return code

    def apply_cache_event(self, worker, message):
        self.own()
        try:
            drain(self.core, False)
            self.tree.apply_event(worker, message)
        finally:
            self.disown()

    def flush(self):
        self.own()
        with nogil:
            drain(self.core, False)
            pthread_mutex_unlock(&self.core.owner)

    def match_bound(self, const uint64_t[::1] local_hashes, uint32_t[::1] out):
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef uint32_t n_out = <uint32_t>out.shape[0]
        cdef uint32_t longest
        if n_out == 0:
            return 0
        self.own()
        longest = tree_match_bound(
            self.core.tree, &local_hashes[0] if n else NULL, n, &out[0], n_out
        )
        self.disown()
        return longest

    def scores(self, local_hashes):
        self.own()
        try:
            return self.tree.match(local_hashes).scores
        finally:
            self.disown()

    def bind(self, worker, uint32_t number):
        cdef uint32_t index
        worker_id, dp_rank = worker
        self.own()
        index = tree_worker(self.core.tree, worker_id, dp_rank)
        if index != UINT32_MAX:
            tree_bind(self.core.tree, index, number)
        self.disown()
        if index == UINT32_MAX:
            raise MemoryError

    def drop_worker(self, worker):
        cdef uint32_t index
        worker_id, dp_rank = worker
        self.own()
        index = tree_find_worker(self.core.tree, worker_id, dp_rank)
        if index != UINT32_MAX:
            tree_drop_worker(self.core.tree, index)
            if index < self.core.n_cursors:
                memset(self.core.cursors + index, 0, sizeof(Cursor))
        self.disown()

    def mark_degraded(self, worker):
        cdef uint32_t index
        worker_id, dp_rank = worker
        self.own()
        index = tree_find_worker(self.core.tree, worker_id, dp_rank)
        if index < self.core.n_cursors and self.core.cursors[index].state == SOURCE_REBUILDING:
            self.core.cursors[index].state = SOURCE_DEGRADED
        self.disown()

    def relearn(self):
        cdef Tree* tree = self.core.tree
        cdef uint64_t room
        cdef uint32_t index, asked = 0
        self.own()
        # Not before a good part is free: every announcement brings a whole cache.
        if tree.n_blocks <= tree.max_blocks - tree.max_blocks // 4:
            room = tree.max_blocks - tree.n_blocks
            for index in range(min(self.core.n_cursors, tree.workers_used)):
                if (
                    0 < tree.workers[index].missing <= room
                    and self.core.cursors[index].state == SOURCE_EXACT
                ):
                    room -= tree.workers[index].missing
                    self.core.cursors[index].state = SOURCE_REBUILDING
                    asked += 1
        self.disown()
        return asked

    def mark_suspect(self):
        cdef uint32_t index
        self.own()
        for index in range(self.core.n_cursors):
            self.core.cursors[index].suspect = self.core.cursors[index].state == SOURCE_EXACT
        self.disown()

    def sources(self):
        """(worker, Cursor as a dict, blocks held, blocks missing) of every worker the tree knows."""
        cdef uint32_t index
        found = []
        self.own()
        try:
            for worker in self.tree.workers():
                index = tree_worker(self.core.tree, worker[0], worker[1])
                cursor = dict(self.core.cursors[index]) if index < self.core.n_cursors else {}
                found.append(
                    (
                        WorkerWithDpRank(*worker),
                        cursor,
                        self.tree.num_blocks(worker),
                        self.tree.num_missing(worker),
                    )
                )
        finally:
            self.disown()
        return found

    def counters(self):
        self.own()
        values = dict(self.core.counters)
        values["indexed_blocks"] = len(self.tree)
        values["index_bytes"] = self.tree.memory_bytes()
        values["evicted_blocks"], values["evicted_branches"] = self.tree.evicted()
        self.disown()
        values["waiting"] = mailbox_length(&self.core.mailbox)
        return values
