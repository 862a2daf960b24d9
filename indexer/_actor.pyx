# cython: language_level=3
"""_actor.pyx: the owner of the event-driven index.

A native thread takes messages from a bounded mailbox, decodes them and applies them to the tree,
never touching the interpreter. How it and the callers take turns: _core.pxd.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ..runtime.identity import WorkerWithDpRank
from ._census cimport Known, take_census
from ._core cimport (
    Core,
    apply_message,
    apply_unnumbered,
    drain,
    run,
    start_changing,
    start_writing,
    stop_changing,
    stop_writing,
)
from ._cursor cimport (
    SOURCE_DEGRADED,
    SOURCE_EXACT,
    SOURCE_REBUILDING,
    SUSPECT_DEAF,
    cursor_has_gap,
)
from ._gate cimport (
    READ_EXCLUSIVE,
    READ_SHARED,
    gate_arrive,
    gate_destroy,
    gate_enter,
    gate_give_way,
    gate_init,
    gate_leave,
)
from ._ingest cimport Counters, Ingest, give_up_gap
from ._mailbox cimport (
    mailbox_close,
    mailbox_destroy,
    mailbox_length,
    mailbox_open,
    mailbox_put,
    mailbox_refused,
)
from ._pace cimport Pace
from ._radix cimport (
    TREE_OK,
    Hits,
    Name,
    RadixTree,
    hits_free,
    raise_status,
    read_name,
    tree_bind,
    tree_drop_worker,
    tree_find_worker,
    tree_match,
    tree_match_bound,
    tree_names,
    tree_worker,
)
from ._sources cimport Source, source_forget, sources_free
from ._threads cimport (
    dr_add,
    dr_load,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
)
from ._wire cimport batch_free, batch_init

from .wire import describe_decode_error

cdef enum:
    STEP_BLOCKS = 128  # of work between two chances for readers: 3 to 10 us


cdef class IndexActor:
    """See actor.py."""

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
        batch_init(&self.core.ingest.batch)
        self.core.ingest.tree = self.tree.tree
        self.core.ingest.tree.memory.pace = Pace(gate_give_way, &self.core.gate, STEP_BLOCKS, 0)
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
            longest = tree_match_bound(self.core.ingest.tree, local, n, &out[0], n_out)
            gate_leave(&self.core.gate)
        else:
            with nogil:
                gate_enter(&self.core.gate, ticket)
                longest = tree_match_bound(self.core.ingest.tree, local, n, &out[0], n_out)
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
            tree_match(self.core.ingest.tree, local, n, False, &hits)
            names = tree_names(self.core.ingest.tree, &hits)
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
            start_changing(self.core, NULL)
            index = tree_worker(self.core.ingest.tree, name.worker_id, name.dp_rank)
            if index != UINT32_MAX:
                tree_bind(self.core.ingest.tree, index, number)
            stop_changing(self.core)
        if index == UINT32_MAX:
            raise MemoryError

    def drop_worker(self, worker):
        cdef uint32_t index
        cdef Name name
        read_name(&name, worker)
        with nogil:
            start_changing(self.core, NULL)
            index = tree_find_worker(self.core.ingest.tree, name.worker_id, name.dp_rank)
            if index != UINT32_MAX:
                tree_drop_worker(self.core.ingest.tree, index)
                source_forget(&self.core.ingest.sources, index)
            stop_changing(self.core)

    def await_replays(self, uint64_t max_events, uint64_t max_blocks):
        with nogil:
            start_changing(self.core, NULL)
            self.core.ingest.sources.budget.max_events = max_events
            self.core.ingest.sources.budget.max_blocks = max_blocks
            stop_changing(self.core)

    def give_up(self, worker):
        cdef Ingest* ingest = &self.core.ingest
        cdef Source* source
        cdef Name name
        read_name(&name, worker)
        with nogil:
            source = start_changing(self.core, &name)
            if source != NULL and source.cursor.state == SOURCE_EXACT and (
                source.cursor.suspect or cursor_has_gap(&source.cursor)
            ):
                give_up_gap(ingest, <uint32_t>(source - ingest.sources.all), source)
            stop_changing(self.core)

    def mark_degraded(self, worker):
        cdef Source* source
        cdef Name name
        read_name(&name, worker)
        with nogil:
            source = start_changing(self.core, &name)
            if source != NULL and source.cursor.state == SOURCE_REBUILDING:
                source.cursor.state = SOURCE_DEGRADED
            stop_changing(self.core)

    def mark_suspect(self):
        cdef uint32_t index
        cdef Source* source
        with nogil:
            start_changing(self.core, NULL)
            for index in range(self.core.ingest.sources.count):
                source = self.core.ingest.sources.all + index
                if source.cursor.state == SOURCE_EXACT and not source.cursor.suspect:
                    source.cursor.suspect = SUSPECT_DEAF
            dr_add(&self.core.ingest.alarms, 1)
            stop_changing(self.core)

    @property
    def alarms(self):
        return dr_load(&self.core.ingest.alarms)

    def sources(self):
        """Every worker the tree knows: (worker, Cursor as a dict, first held id or None, blocks)."""
        return self.census(False)

    def recovering(self):
        """Those among them that are exact but for a gap or a doubt."""
        return self.census(True)

    cdef list census(self, bint recovering):
        cdef Known* known
        cdef uint32_t count, i
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            known = take_census(
                self.core.ingest.tree, &self.core.ingest.sources, recovering, &count
            )
            gate_leave(&self.core.gate)
        if known == NULL:
            raise MemoryError
        try:
            return [
                (
                    WorkerWithDpRank(known[i].worker_id, known[i].dp_rank),
                    dict(known[i].cursor),
                    known[i].first_held if known[i].held else None,
                    known[i].blocks,
                )
                for i in range(count)
            ]
        finally:
            free(known)

    def counters(self):
        cdef Counters counters
        cdef uint64_t held_now
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            counters = self.core.ingest.counters
            held_now = self.core.ingest.sources.budget.events
            gate_leave(&self.core.gate)
        return dict(counters) | {
            "held_now": held_now,
            "waiting": mailbox_length(&self.core.mailbox),
            "dropped": mailbox_refused(&self.core.mailbox),
        }
