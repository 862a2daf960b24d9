"""The owner of the event-driven index.

A native thread takes messages from a bounded mailbox, decodes them and applies them to the trees,
never touching the interpreter. How it and the callers take turns: _shared_state.pxd.
"""
cimport cython
from cpython.ref cimport Py_INCREF
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ...base.native._yield_points cimport YieldPoints, no_yield_points
from ..tree._arguments cimport raise_status, read_worker
from ..tree._ops cimport (
    TREE_OK,
    Hits,
    Tree,
    WorkerKey,
    hits_free,
    tree_find_worker,
    tree_intern_worker,
    tree_match,
    tree_match_bound,
    tree_match_workers,
    tree_set_yield_points,
    tree_worker_info,
)
from ..tree._radix cimport RadixTree
from ..wire._wire cimport batch_free, batch_init
from ._mailbox cimport (
    Mailbox,
    mailbox_add,
    mailbox_close,
    mailbox_destroy,
    mailbox_open,
    mailbox_wake,
)
from ._rwlock cimport (
    rwlock_admit_readers,
    rwlock_destroy,
    rwlock_exclude_readers,
    rwlock_init,
    rwlock_read_begin,
    rwlock_read_end,
    rwlock_read_try,
    rwlock_read_wait,
    rwlock_yield_to_readers,
)
from ._shared_state cimport (
    SharedState,
    apply_message,
    apply_unnumbered,
    index_thread,
    start_changing,
    start_writing_after_posted,
    stop_changing,
    stop_writing,
)
from ._sources cimport note_departure, source_forget, source_welcome, sources_free
from ._threads cimport pthread_create, pthread_join
from ._tiers cimport (
    DEVICE,
    ROWS,
    TIERS,
    TierHits,
    tiers_bind,
    tiers_drop_worker,
    tiers_match,
    tiers_match_all,
)
from ._turns cimport turns_destroy, turns_init

from ...base.identity import WorkerWithDpRank
from ..wire import describe_decode_error

cdef enum:
    STEP_BLOCKS = 128  # of work between two chances for readers: 3 to 10 us


cdef inline uint32_t match_tiers_bound(
    SharedState* state,
    const uint64_t* local_hashes,
    uint32_t n,
    const uint32_t* at_least,
    uint32_t* out,
    uint32_t* lower,
    uint32_t n_out,
) noexcept nogil:
    """One decision's look at all tiers, under the read lock; UINT32_MAX without memory."""
    cdef Tree* device = state.ingest.tiers.trees[DEVICE]
    cdef uint32_t longest = tree_match_bound(device, local_hashes, n, out, n_out)
    cdef uint32_t i
    if longest == UINT32_MAX:
        return UINT32_MAX
    if at_least != NULL:
        for i in range(n_out):
            out[i] = max(out[i], at_least[i])
            longest = max(longest, out[i])
    if lower != NULL:
        tiers_match(&state.ingest.tiers, local_hashes, n, out, lower, n_out)
    return longest


cdef SharedState* open_state(
    tuple trees, uint32_t max_messages, size_t max_bytes
) except NULL:
    """Everything but the thread, over trees that the caller owns."""
    cdef SharedState* state = <SharedState*>calloc(1, sizeof(SharedState))
    cdef Tree* tree
    cdef int tier
    if state == NULL:
        raise MemoryError
    turns_init(&state.turns)
    rwlock_init(&state.lock)
    batch_init(&state.ingest.batch)
    for tier in range(TIERS):
        tree = state.ingest.tiers.trees[tier] = (<RadixTree>trees[tier]).tree
        tree_set_yield_points(
            tree,
            YieldPoints(
                rwlock_yield_to_readers,
                rwlock_admit_readers,
                rwlock_exclude_readers,
                &state.lock,
                STEP_BLOCKS,
                0,
            ),
        )
    if not mailbox_open(&state.mailbox, max_messages, max_bytes):
        close_state(state)
        raise MemoryError
    return state


cdef void close_state(SharedState* state) noexcept:
    mailbox_destroy(&state.mailbox)
    batch_free(&state.ingest.batch)
    sources_free(&state.ingest.sources)
    rwlock_destroy(&state.lock)
    turns_destroy(&state.turns)
    free(state)


@cython.no_gc_clear  # __dealloc__ needs the trees, which refer to nothing that refers to an actor
cdef class IndexActor:
    """See actor.py."""

    def __cinit__(
        self,
        *,
        uint32_t max_messages=16384,
        size_t max_bytes=1 << 28,
        uint32_t max_workers=65536,
        max_blocks=None,
        uint64_t max_unknown_blocks=0,
    ):
        cdef SharedState* state
        if max_messages == 0 or max_bytes == 0 or max_workers == 0:
            raise ValueError("max_messages, max_bytes and max_workers must be at least 1")
        self.trees = tuple([RadixTree(max_blocks) for _ in range(TIERS)])
        self.state = state = open_state(self.trees, max_messages, max_bytes)
        state.ingest.sources.max_unknown = max_workers
        state.ingest.sources.max_unknown_blocks = max_unknown_blocks
        if pthread_create(&self.thread, NULL, index_thread, state) != 0:
            raise RuntimeError("cannot start the index thread")
        self.running = True

    def __dealloc__(self):
        cdef SharedState* state = <SharedState*>self.state
        cdef int tier
        if state == NULL:
            return
        self.stop_thread()
        for tier in range(TIERS):  # a caller may have the trees still, but not the lock
            tree_set_yield_points(state.ingest.tiers.trees[tier], no_yield_points())
        close_state(state)

    cdef void stop_thread(self) noexcept:
        if not self.running:
            return
        self.running = False
        with nogil:
            mailbox_close(&(<SharedState*>self.state).mailbox)
            pthread_join(self.thread, NULL)

    def close(self):
        self.stop_thread()

    def leave_to_parent(self):
        """In a child made by fork: be a closed index that knows nothing.

        The thread is not here, and its locks and trees may have been in use at that moment: they
        are neither used again nor given back.
        """
        cdef tuple trees
        cdef SharedState* state
        self.running = False
        trees = tuple([RadixTree(None) for _ in range(TIERS)])
        state = open_state(trees, 1, 1)
        mailbox_close(&state.mailbox)
        Py_INCREF(self.trees)
        self.trees, self.state = trees, state

    # Writing -------------------------------------------------------------------------------------

    def post(self, bytes message not None):
        cdef Mailbox* box = &(<SharedState*>self.state).mailbox
        cdef const uint8_t* data = message
        cdef bint accepted = mailbox_add(box, data, len(message))
        if accepted:
            mailbox_wake(box)
        return accepted

    def post_all(self, list messages not None):
        cdef Mailbox* box = &(<SharedState*>self.state).mailbox
        cdef const uint8_t* data
        cdef bytes message
        cdef int accepted = 0
        for message in messages:
            data = message
            accepted += mailbox_add(box, data, len(message))
        if accepted:
            mailbox_wake(box)
        return len(messages) - accepted

    def apply(self, bytes message not None):
        cdef SharedState* state = <SharedState*>self.state
        cdef const uint8_t* data = message
        cdef size_t size = len(message)
        cdef int code
        with nogil:
            start_writing_after_posted(state)
            code = apply_message(state, data, size)
            stop_writing(state)
        return code

    def apply_cache_event(self, worker, bytes message not None):
        cdef SharedState* state = <SharedState*>self.state
        cdef const uint8_t* data = message
        cdef size_t size = len(message)
        cdef bint any_rank = not isinstance(worker, tuple)
        cdef WorkerKey key
        cdef int code, status = TREE_OK
        read_worker(&key, worker)
        with nogil:
            start_writing_after_posted(state)
            code = apply_unnumbered(state, &key, any_rank, data, size, &status)
            stop_writing(state)
        if code != 0:
            raise ValueError(describe_decode_error(code))
        raise_status(status, key.worker_id)

    def flush(self):
        cdef SharedState* state = <SharedState*>self.state
        with nogil:
            start_writing_after_posted(state)
            stop_writing(state)

    def bind(self, worker, uint32_t number):
        cdef SharedState* state = <SharedState*>self.state
        cdef uint32_t known
        cdef bint good = False
        cdef WorkerKey key
        read_worker(&key, worker)
        with nogil:
            start_changing(state, NULL)
            known = tree_intern_worker(
                state.ingest.tiers.trees[DEVICE], key.worker_id, key.dp_rank
            )
            if known != UINT32_MAX:
                good = source_welcome(&state.ingest.sources, known, key.worker_id, key.dp_rank)
            if good:
                tiers_bind(&state.ingest.tiers, known, number)
            stop_changing(state)
        if not good:
            raise MemoryError

    def drop_worker(self, worker):
        cdef SharedState* state = <SharedState*>self.state
        cdef Tree* device = state.ingest.tiers.trees[DEVICE]
        cdef uint32_t known
        cdef WorkerKey key
        read_worker(&key, worker)
        with nogil:
            start_changing(state, NULL)
            known = tree_find_worker(device, key.worker_id, key.dp_rank)
            if known != UINT32_MAX:
                if tree_worker_info(device, known).number != UINT32_MAX:
                    note_departure(&state.ingest.sources, known, key.worker_id, key.dp_rank)
                tiers_drop_worker(&state.ingest.tiers, known)
                source_forget(&state.ingest.sources, known)
            stop_changing(state)

    # Reading -------------------------------------------------------------------------------------

    @property
    def lower_tiers(self):
        return self.has_lower_tiers()

    cdef bint has_lower_tiers(self) noexcept:
        return (<SharedState*>self.state).ingest.tiers.lower

    def match_bound(
        self,
        local_hashes not None,
        uint32_t[::1] out not None,
        uint32_t[:, ::1] lower=None,
        const uint32_t[::1] at_least=None,
    ):
        cdef SharedState* state = <SharedState*>self.state
        cdef const uint64_t[::1] array
        cdef const uint64_t* local = NULL
        cdef uint32_t n
        cdef uint32_t n_out = <uint32_t>out.shape[0]
        if type(local_hashes) is bytes:  # a view of an array would take longer to make
            n = <uint32_t>(len(<bytes>local_hashes) // sizeof(uint64_t))
            local = <const uint64_t*><const char*><bytes>local_hashes
        else:
            array = local_hashes
            n = <uint32_t>array.shape[0]
            if n:
                local = &array[0]
        cdef const uint32_t* least = NULL
        cdef uint32_t* rows = NULL
        if at_least is not None and at_least.shape[0] != out.shape[0]:
            raise ValueError(f"at_least must have {n_out} overlaps")
        if lower is not None and (lower.shape[0] != ROWS or lower.shape[1] != out.shape[0]):
            raise ValueError(f"lower must have {ROWS} rows of {n_out}")
        if n_out == 0:
            return 0
        if at_least is not None:
            least = &at_least[0]
        if lower is not None:
            rows = &lower[0, 0]
        return self.bound_overlaps(local, n, least, &out[0], rows, n_out)

    cdef uint32_t bound_overlaps(
        self, const uint64_t* local_hashes, uint32_t n, const uint32_t* at_least, uint32_t* out,
        uint32_t* lower, uint32_t n_out,
    ) except? 0xFFFFFFFF:
        cdef SharedState* state = <SharedState*>self.state
        cdef uint32_t longest, ticket
        ticket = rwlock_read_try(&state.lock)
        if ticket == 0:
            # Giving the GIL away and getting it back would take longer than the match.
            longest = match_tiers_bound(state, local_hashes, n, at_least, out, lower, n_out)
            rwlock_read_end(&state.lock)
        else:
            with nogil:
                rwlock_read_wait(&state.lock, ticket)
                longest = match_tiers_bound(state, local_hashes, n, at_least, out, lower, n_out)
                rwlock_read_end(&state.lock)
        if longest == UINT32_MAX:
            raise MemoryError
        return longest

    cdef uint32_t read_overlaps(
        self, const uint64_t* local_hashes, uint32_t n, uint32_t* out, uint32_t n_out
    ) noexcept nogil:
        cdef SharedState* state = <SharedState*>self.state
        cdef uint32_t longest
        rwlock_read_begin(&state.lock)
        longest = match_tiers_bound(state, local_hashes, n, NULL, out, NULL, n_out)
        rwlock_read_end(&state.lock)
        return longest

    def match_tiers(self, const uint64_t[::1] local_hashes not None, dict predicted not None):
        """{WorkerWithDpRank: [blocks by tier]} of every worker that holds a prefix of the chain.

        `predicted` are blocks that workers are believed to have on the device at least.
        """
        cdef SharedState* state = <SharedState*>self.state
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef const uint64_t* local = &local_hashes[0] if n else NULL
        cdef uint32_t n_predicted = <uint32_t>len(predicted)
        cdef WorkerKey* keys = <WorkerKey*>calloc(n_predicted + 1, sizeof(WorkerKey))
        cdef uint32_t* blocks = <uint32_t*>calloc(n_predicted + 1, sizeof(uint32_t))
        cdef TierHits hits
        cdef uint32_t i, tier
        cdef bint good = False
        memset(&hits, 0, sizeof(TierHits))
        try:
            if keys == NULL or blocks == NULL:
                raise MemoryError
            for i, (worker, believed) in enumerate(predicted.items()):
                read_worker(&keys[i], worker)
                blocks[i] = believed
            with nogil:
                rwlock_read_begin(&state.lock)
                good = tiers_match_all(
                    &state.ingest.tiers, local, n, keys, blocks, n_predicted, &hits
                )
                rwlock_read_end(&state.lock)
            if not good:
                raise MemoryError
            found = {
                worker: [believed, 0, 0, 0] for worker, believed in predicted.items() if believed
            }
            for i in range(hits.count):
                row = [hits.table[tier * hits.count + i] for tier in range(<uint32_t>TIERS)]
                if any(row):
                    key = hits.workers[i]
                    found[WorkerWithDpRank(key.worker_id, key.dp_rank)] = row
            return found
        finally:
            free(keys)
            free(blocks)
            free(hits.workers)
            free(hits.table)

    def scores(self, const uint64_t[::1] local_hashes not None):
        cdef SharedState* state = <SharedState*>self.state
        cdef Tree* device = state.ingest.tiers.trees[DEVICE]
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef const uint64_t* local = &local_hashes[0] if n else NULL
        cdef Hits hits
        cdef WorkerKey* keys  # read under the lock: later the numbers may be other workers'
        cdef uint32_t i
        with nogil:
            rwlock_read_begin(&state.lock)
            tree_match(device, local, n, False, &hits)
            keys = tree_match_workers(device, &hits)
            rwlock_read_end(&state.lock)
        try:
            if keys == NULL:
                raise MemoryError
            return {
                WorkerWithDpRank(keys[i].worker_id, keys[i].dp_rank): hits.blocks[i]
                for i in range(hits.count)
            }
        finally:
            hits_free(&hits)
            free(keys)

    def tier_trees(self):
        """The trees by Event.tier, for tests: nothing may be posted while they are looked at."""
        return self.trees
