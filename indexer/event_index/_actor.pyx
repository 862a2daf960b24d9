# cython: language_level=3
"""_actor.pyx: the owner of the event-driven index.

A native thread takes messages from a bounded mailbox, decodes them and applies them to the tree,
never touching the interpreter. How it and the callers take turns: _core.pxd.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ...runtime.identity import WorkerWithDpRank
from ._source_list cimport Known, take_census
from ._shared_state cimport (
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
from ._rwlock cimport (
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
from ...runtime.native._yield_points cimport Pace
from ..tree._ops cimport (
    TREE_OK,
    Hits,
    Name,
    hits_free,
    tree_find_worker,
    tree_match,
    tree_match_bound,
    tree_names,
    tree_worker,
)
from ..tree._radix cimport RadixTree, raise_status, read_name
from ._sources cimport Source, source_forget, source_is_well, sources_free
from ._threads cimport (
    dr_add,
    dr_load,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
)
from ._tiers cimport (
    DEVICE,
    ROWS,
    TIERS,
    TierCounters,
    TierHits,
    tiers_bind,
    tiers_drop_worker,
    tiers_match,
    tiers_match_all,
)
from ..tree._tree cimport Tree
from ..wire._wire cimport batch_free, batch_init

from ..wire import describe_decode_error

cdef enum:
    STEP_BLOCKS = 128  # of work between two chances for readers: 3 to 10 us


cdef inline uint32_t match_inside(
    Core* core,
    const uint64_t* local,
    uint32_t n,
    const uint32_t* at_least,
    uint32_t* out,
    uint32_t* lower,
    uint32_t n_out,
) noexcept nogil:
    """One decision's look at all tiers, inside the gate; UINT32_MAX without memory."""
    cdef uint32_t longest = tree_match_bound(core.ingest.tiers.trees[DEVICE], local, n, out, n_out)
    cdef uint32_t i
    if longest == UINT32_MAX:
        return UINT32_MAX
    if at_least != NULL:
        for i in range(n_out):
            out[i] = max(out[i], at_least[i])
            longest = max(longest, out[i])
    if lower != NULL:
        tiers_match(&core.ingest.tiers, local, n, out, lower, n_out)
    return longest


cdef class IndexActor:
    """See actor.py."""

    def __cinit__(
        self,
        *,
        uint32_t max_messages=16384,
        size_t max_bytes=1 << 28,
        uint32_t max_workers=65536,
        bint shared=True,
        max_blocks=None,
    ):
        if max_messages == 0 or max_workers == 0:
            raise ValueError("max_messages and max_workers must be at least 1")
        cdef int tier
        cdef Tree* tree
        self.trees = tuple([RadixTree(max_blocks) for _ in range(TIERS)])
        self.core = <Core*>calloc(1, sizeof(Core))
        if self.core == NULL:
            raise MemoryError
        pthread_mutex_init(&self.core.owner, NULL)
        gate_init(&self.core.gate, READ_SHARED if shared else READ_EXCLUSIVE)
        batch_init(&self.core.ingest.batch)
        for tier in range(TIERS):
            tree = self.core.ingest.tiers.trees[tier] = (<RadixTree>self.trees[tier]).tree
            tree.memory.pace = Pace(gate_give_way, &self.core.gate, STEP_BLOCKS, 0)
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

    @property
    def lower_tiers(self):
        return self.core.ingest.tiers.lower

    def match_bound(
        self,
        const uint64_t[::1] local_hashes,
        uint32_t[::1] out,
        uint32_t[:, ::1] lower=None,
        const uint32_t[::1] at_least=None,
    ):
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef uint32_t n_out = <uint32_t>out.shape[0]
        cdef const uint64_t* local = &local_hashes[0] if n else NULL
        cdef const uint32_t* least = NULL
        cdef uint32_t* rows = NULL
        cdef uint32_t longest, ticket
        if at_least is not None and at_least.shape[0] != n_out:
            raise ValueError(f"at_least must have {n_out} overlaps")
        if lower is not None and (lower.shape[0] != ROWS or lower.shape[1] != n_out):
            raise ValueError(f"lower must have {ROWS} rows of {n_out}")
        if n_out == 0:
            return 0
        if at_least is not None:
            least = &at_least[0]
        if lower is not None:
            rows = &lower[0, 0]
        ticket = gate_arrive(&self.core.gate)
        if ticket == 0:
            # Giving the GIL away and getting it back would take longer than the match.
            longest = match_inside(self.core, local, n, least, &out[0], rows, n_out)
            gate_leave(&self.core.gate)
        else:
            with nogil:
                gate_enter(&self.core.gate, ticket)
                longest = match_inside(self.core, local, n, least, &out[0], rows, n_out)
                gate_leave(&self.core.gate)
        if longest == UINT32_MAX:
            raise MemoryError
        return longest

    def match_tiers(self, const uint64_t[::1] local_hashes, dict predicted not None):
        """{WorkerWithDpRank: [blocks by tier]} of every worker that holds a prefix of the chain.

        `predicted` are blocks that workers are believed to have on the device at least.
        """
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef const uint64_t* local = &local_hashes[0] if n else NULL
        cdef uint32_t n_predicted = <uint32_t>len(predicted)
        cdef Name* names = <Name*>calloc(n_predicted + 1, sizeof(Name))
        cdef uint32_t* blocks = <uint32_t*>calloc(n_predicted + 1, sizeof(uint32_t))
        cdef TierHits hits
        cdef uint32_t i, tier
        cdef bint good = False
        memset(&hits, 0, sizeof(TierHits))
        try:
            if names == NULL or blocks == NULL:
                raise MemoryError
            for i, (name, believed) in enumerate(predicted.items()):
                read_name(&names[i], name)
                blocks[i] = believed
            with nogil:
                gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
                good = tiers_match_all(
                    &self.core.ingest.tiers, local, n, names, blocks, n_predicted, &hits
                )
                gate_leave(&self.core.gate)
            if not good:
                raise MemoryError
            found = {name: [believed, 0, 0, 0] for name, believed in predicted.items() if believed}
            for i in range(hits.count):
                row = [hits.table[tier * hits.count + i] for tier in range(TIERS)]
                if any(row):
                    found[WorkerWithDpRank(hits.names[i].worker_id, hits.names[i].dp_rank)] = row
            return found
        finally:
            free(names)
            free(blocks)
            free(hits.names)
            free(hits.table)

    def scores(self, const uint64_t[::1] local_hashes):
        cdef uint32_t n = <uint32_t>local_hashes.shape[0]
        cdef const uint64_t* local = &local_hashes[0] if n else NULL
        cdef Hits hits
        cdef Name* names    # inside the gate, so that nobody else is one of the workers by then
        cdef uint32_t i
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            tree_match(self.core.ingest.tiers.trees[DEVICE], local, n, False, &hits)
            names = tree_names(self.core.ingest.tiers.trees[DEVICE], &hits)
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
            index = tree_worker(
                self.core.ingest.tiers.trees[DEVICE], name.worker_id, name.dp_rank
            )
            if index != UINT32_MAX:
                tiers_bind(&self.core.ingest.tiers, index, number)
            stop_changing(self.core)
        if index == UINT32_MAX:
            raise MemoryError

    def drop_worker(self, worker):
        cdef uint32_t index
        cdef Name name
        read_name(&name, worker)
        with nogil:
            start_changing(self.core, NULL)
            index = tree_find_worker(
                self.core.ingest.tiers.trees[DEVICE], name.worker_id, name.dp_rank
            )
            if index != UINT32_MAX:
                tiers_drop_worker(&self.core.ingest.tiers, index)
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

    def relearn(self):
        cdef const Tree* tree = self.core.ingest.tiers.trees[DEVICE]
        cdef Source* source
        cdef uint64_t room
        cdef uint32_t index, asked = 0
        with nogil:
            start_changing(self.core, NULL)
            # Not before a good part is free: every announcement brings a whole cache.
            if tree.n_blocks <= tree.max_blocks - tree.max_blocks // 4:
                room = tree.max_blocks - tree.n_blocks
                for index in range(min(self.core.ingest.sources.count, tree.workers_used)):
                    source = self.core.ingest.sources.all + index
                    if (
                        0 < tree.workers[index].missing <= room
                        and source.cursor.state == SOURCE_EXACT
                        and source_is_well(source)
                    ):
                        room -= tree.workers[index].missing
                        source.cursor.state = SOURCE_REBUILDING
                        asked += 1
            stop_changing(self.core)
        return asked

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
        """Every worker the tree knows: (worker, Cursor as a dict, first held id, blocks by tier, missing)."""
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
                &self.core.ingest.tiers, &self.core.ingest.sources, recovering, &count
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
                    (known[i].blocks[0], known[i].blocks[1], known[i].blocks[2], known[i].blocks[3]),
                    known[i].missing,
                )
                for i in range(count)
            ]
        finally:
            free(known)

    def counters(self):
        cdef Counters counters
        cdef uint64_t held_now, blocks = 0, size = 0, evicted = 0, evictions = 0
        cdef const Tree* tree
        cdef int tier
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            counters = self.core.ingest.counters
            held_now = self.core.ingest.sources.budget.events
            for tier in range(TIERS):
                tree = self.core.ingest.tiers.trees[tier]
                blocks += tree.n_blocks
                size += tree.memory.bytes + sizeof(Tree)
                evicted += tree.evicted
                evictions += tree.evictions
            gate_leave(&self.core.gate)
        return dict(counters) | {
            "held_now": held_now,
            "indexed_blocks": blocks,
            "index_bytes": size,
            "evicted_blocks": evicted,
            "evicted_branches": evictions,
            "waiting": mailbox_length(&self.core.mailbox),
            "dropped": mailbox_refused(&self.core.mailbox),
        }

    def tier_counters(self):
        """Running totals by Event.tier: TierCounters as dicts."""
        cdef TierCounters counters[4]
        cdef int tier
        with nogil:
            gate_enter(&self.core.gate, gate_arrive(&self.core.gate))
            for tier in range(TIERS):
                counters[tier] = self.core.ingest.tiers.counters[tier]
            gate_leave(&self.core.gate)
        return [dict(counters[tier]) for tier in range(TIERS)]

    def tier_trees(self):
        """The trees by Event.tier, for tests: nothing may be posted while they are looked at."""
        return self.trees
