"""One engine, moved a step at a time by somebody who has a clock. The face is engine.py."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._engine cimport (
    LAST_TOKEN,
    Engine,
    engine_begin_step,
    engine_free,
    engine_init,
    engine_prefetch,
    engine_settle_handoff,
    engine_submit,
)
from ._journal cimport ENTRY_STORED, NO_REQUEST, Entry, Journal, journal_compact
from ._kv_manager cimport (
    ARRIVING,
    HANDS_OVER,
    NO_HANDOFF,
    Sequence,
    check_tier,
    kv_listing,
    kv_release,
)
from ._limits cimport Limits, read_limits
from ._scheduler cimport Step, queues_remove, queues_unpark, sequence_free
from ._timing cimport StepTiming

from ....indexer.wire import TIERS as _TIERS


@cython.final
cdef class SingleEngine:
    """See _single_engine.pyi."""

    cdef Engine engine
    cdef Limits limits
    cdef StepTiming timing

    def __cinit__(self, config, StepTiming timing not None):
        read_limits(&self.limits, config)
        if engine_init(&self.engine, &self.limits, True, 1.0, 0.0) < 0:
            raise MemoryError
        self.engine.every_token = True
        self.timing = timing

    def __dealloc__(self):
        engine_free(&self.engine)

    @property
    def running(self):
        return self.engine.queues.n_running

    @property
    def waiting(self):
        return self.engine.queues.n_waiting

    @property
    def active_blocks(self):
        return self.engine.kv.pool.active

    @property
    def inactive_blocks(self):
        return self.engine.kv.pool.inactive

    def submit(
        self, uint32_t request, uint32_t prompt, uint32_t output,
        const uint64_t[::1] sequence_hashes, const uint64_t[::1] local_hashes, retention,
        int handoff=NO_HANDOFF,
    ):
        engine_submit(
            &self.engine, &self.limits, request, prompt, output, sequence_hashes, local_hashes,
            -1.0, 0.0, retention, handoff,
        )

    def arrive(self, uint32_t request):
        engine_settle_handoff(&self.engine, request, ARRIVING, self.engine.clock)
        return self.take_changes()

    def release(self, uint32_t request):
        return bool(engine_settle_handoff(&self.engine, request, HANDS_OVER, self.engine.clock))

    def prefetch(
        self, const uint64_t[::1] sequence_hashes, const uint64_t[::1] local_hashes,
        uint32_t request, double since_s,
    ):
        cdef int64_t loaded = engine_prefetch(
            &self.engine, request, sequence_hashes, local_hashes, self.engine.clock + since_s
        )
        return loaded, self.take_changes()

    def abort(self, uint32_t request):
        cdef Sequence* sequence = queues_unpark(&self.engine.queues, request, ARRIVING)
        if sequence == NULL:
            return bool(queues_remove(&self.engine.queues, &self.engine.kv, request))
        kv_release(&self.engine.kv, sequence)
        sequence_free(sequence)
        return True

    def step(self, double idle_s):
        cdef Step step
        cdef Sequence* parked
        cdef uint32_t i
        self.engine.clock += idle_s
        if engine_begin_step(&self.engine, &self.limits, &self.timing.timing, NULL, &step) < 0:
            raise MemoryError
        self.engine.stepping = False  # it is the caller who lets the time pass
        tokens = [
            (
                self.engine.pending[i].request,
                self.engine.pending[i].kind & LAST_TOKEN != 0,
                self.engine.pending[i].cached,
                self.engine.pending[i].preemptions,
            )
            for i in range(self.engine.n_pending)
        ]
        arriving = []
        parked = self.engine.queues.parked  # the newest first
        for i in range(step.arriving):
            arriving.append((parked.request, parked.cached))
            parked = parked.next
        changes = self.take_changes()
        return self.engine.took, tokens, changes, step.prefill, step.preempted, arriving

    cdef list take_changes(self):
        cdef Journal* journal = &self.engine.kv.journal
        cdef Entry* entry
        cdef size_t i
        changes = []
        while journal.head < journal.length:
            entry = &journal.entries[journal.head]
            journal.head += 1
            if entry.kind == ENTRY_STORED and entry.request != NO_REQUEST:
                changes.append((entry.request, entry.first_block, entry.count))
            else:
                hashes = [journal.sequence_hashes[entry.first + i] for i in range(entry.count)]
                changes.append((entry.kind == ENTRY_STORED, _TIERS[entry.tier], hashes))
        journal_compact(journal, 0)
        return changes

    def cache(self, int tier):
        return kv_listing(&self.engine.kv, check_tier(tier))
