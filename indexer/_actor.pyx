# cython: language_level=3
"""_actor.pyx: the owner of the event-driven index.

A native thread takes messages from a bounded mailbox, decodes them and applies them to the tree,
never touching the interpreter. Who holds `owner` owns the tree: the thread while it applies one
message, a reader for one match, a flushing caller until the mailbox is empty. Lock order: owner
before the mailbox's. Messages are applied in the order they were posted.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ..runtime.errors import EventError
from ..runtime.identity import WorkerWithDpRank
from ._cursor cimport (
    SOURCE_DEGRADED,
    SOURCE_EXACT,
    SOURCE_REBUILDING,
    SUSPECT_DEAF,
    cursor_has_gap,
)
from ._ingest cimport Ingest, give_up_gap, take_message
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
    RadixTree,
    tree_bind,
    tree_drop_worker,
    tree_find_worker,
    tree_match_bound,
    tree_worker,
)
from ._sources cimport Source, source_forget, source_is_well, sources_free
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
from ._wire cimport batch_free, batch_init

# How often the thread offers the tree to waiting readers before it goes on.
cdef int YIELDS = 1000


cdef struct Core:
    pthread_mutex_t owner      # guards all below but the mailbox, which guards itself
    Mailbox mailbox
    int readers                # waiting for owner; atomic
    Ingest ingest


cdef void drain(Core* core, bint yielding) noexcept nogil:
    """Apply what waits, oldest first. Called with owner held; returns with it held.

    A yielding drain lets waiting readers in between two messages.
    """
    cdef Message message
    cdef int turn
    while mailbox_take(&core.mailbox, &message):
        take_message(&core.ingest, message.data, message.size)
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
        self, *, uint32_t max_messages=16384, size_t max_bytes=1 << 28, uint32_t max_workers=65536
    ):
        if max_messages == 0 or max_workers == 0:
            raise ValueError("max_messages and max_workers must be at least 1")
        self.tree = RadixTree()
        self.core = <Core*>calloc(1, sizeof(Core))
        if self.core == NULL:
            raise MemoryError
        pthread_mutex_init(&self.core.owner, NULL)
        batch_init(&self.core.ingest.batch)
        self.core.ingest.tree = self.tree.tree
        self.core.ingest.max_workers = max_workers
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
        batch_free(&self.core.ingest.batch)
        sources_free(&self.core.ingest.sources)
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
        self.core.ingest.counters.dropped += 1
        self.disown()
        return False

    def apply(self, bytes message not None):
        cdef const uint8_t* data = message
        cdef size_t size = len(message)
        cdef int code
        self.own()
        with nogil:
            drain(self.core, False)
            code = take_message(&self.core.ingest, data, size)
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
            self.core.ingest.tree, &local_hashes[0] if n else NULL, n, &out[0], n_out
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
        index = tree_worker(self.core.ingest.tree, worker_id, dp_rank)
        if index != UINT32_MAX:
            tree_bind(self.core.ingest.tree, index, number)
        self.disown()
        if index == UINT32_MAX:
            raise MemoryError

    def drop_worker(self, worker):
        cdef uint32_t index
        worker_id, dp_rank = worker
        self.own()
        index = tree_find_worker(self.core.ingest.tree, worker_id, dp_rank)
        if index != UINT32_MAX:
            tree_drop_worker(self.core.ingest.tree, index)
            source_forget(&self.core.ingest.sources, index)
        self.disown()

    def await_replays(self, uint64_t max_events, uint64_t max_blocks):
        self.own()
        self.core.ingest.sources.budget.max_events = max_events
        self.core.ingest.sources.budget.max_blocks = max_blocks
        self.disown()

    cdef Source* find(self, worker):
        """The source of a worker that was heard of, or NULL. Called with owner held."""
        cdef uint32_t index = tree_find_worker(self.core.ingest.tree, worker[0], worker[1])
        if index >= self.core.ingest.sources.count:
            return NULL
        return self.core.ingest.sources.all + index

    def give_up(self, worker):
        cdef Source* source
        self.own()
        source = self.find(worker)
        if source != NULL and source.cursor.state == SOURCE_EXACT and (
            source.cursor.suspect or cursor_has_gap(&source.cursor)
        ):
            give_up_gap(
                &self.core.ingest, <uint32_t>(source - self.core.ingest.sources.all), source
            )
        self.disown()

    def mark_degraded(self, worker):
        cdef Source* source
        self.own()
        source = self.find(worker)
        if source != NULL and source.cursor.state == SOURCE_REBUILDING:
            source.cursor.state = SOURCE_DEGRADED
        self.disown()

    def mark_suspect(self):
        cdef uint32_t index
        cdef Source* source
        self.own()
        for index in range(self.core.ingest.sources.count):
            source = self.core.ingest.sources.all + index
            if source.cursor.state == SOURCE_EXACT and not source.cursor.suspect:
                source.cursor.suspect = SUSPECT_DEAF
        dr_add(&self.core.ingest.alarms, 1)
        self.disown()

    @property
    def alarms(self):
        return dr_load(&self.core.ingest.alarms)

    cdef tuple describe(self, worker):
        """(worker, Cursor as a dict, first held id or None, blocks held). With owner held."""
        cdef Source* source = self.find(worker)
        held = None
        if source != NULL and source.held.count:
            held = source.held.events[0].event.event_id
        cursor = {} if source == NULL else dict(source.cursor)
        return WorkerWithDpRank(*worker), cursor, held, self.tree.num_blocks(worker)

    def sources(self):
        """Every worker that the tree knows, described."""
        self.own()
        try:
            return [self.describe(worker) for worker in self.tree.workers()]
        finally:
            self.disown()

    def recovering(self):
        """Those among them that are exact but for a gap or a doubt."""
        cdef uint32_t index
        cdef Source* source
        found = []
        self.own()
        try:
            for index in range(self.core.ingest.sources.count):
                source = self.core.ingest.sources.all + index
                if source.cursor.state == SOURCE_EXACT and not source_is_well(source):
                    worker = self.core.ingest.tree.workers[index]
                    found.append(self.describe((worker.worker_id, worker.dp_rank)))
        finally:
            self.disown()
        return found

    def counters(self):
        self.own()
        values = dict(self.core.ingest.counters)
        self.disown()
        values["waiting"] = mailbox_length(&self.core.mailbox)
        values["held_now"] = self.core.ingest.sources.budget.events
        return values
