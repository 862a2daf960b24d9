"""Owns the engines of a simulation and what they say. The face is virtual.py."""

cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import numpy as np

from ....indexer.wire._writer cimport EventWriter
from ....indexer.wire import TIERS as _TIERS
from ....base.native._mix cimport splitmix64
from ._engine cimport (
    Engine,
    Record,
    engine_advance,
    engine_free,
    engine_init,
    engine_is_busy,
    engine_prefetch,
    engine_settle_handoff,
    engine_submit,
    engines_advance,
)
from ._journal cimport (
    ENTRY_CLEARED,
    ENTRY_STORED,
    NO_REQUEST,
    Entry,
    Journal,
    journal_compact,
)
from ._kv_manager cimport NO_HANDOFF, check_tier, kv_announce, kv_listing
from ._limits cimport Limits, read_limits
from ._timing cimport StepTiming

cdef enum:
    MAX_EVENTS_PER_MESSAGE = 128
    MAX_BLOCKS_PER_MESSAGE = 8192
    KEPT_BLOCKS = 1 << 16      # per engine, to be sent again; a publisher keeps about as many


@cython.final
cdef class Fleet:
    """See virtual.py."""

    cdef Engine* engines
    cdef readonly uint32_t size
    cdef Limits limits
    cdef StepTiming timing
    cdef uint32_t ranks        # engines of one worker
    cdef Record record
    cdef uint32_t* queue       # of engines, room for all
    cdef EventWriter writer
    cdef uint64_t replays
    cdef uint64_t seed         # of what gets lost
    cdef uint64_t threshold    # a message whose number mixes to less is lost
    cdef readonly uint64_t lost

    def __cinit__(
        self, config, StepTiming timing not None, uint32_t workers, *, const double[::1] speeds,
        bint record_events, double loss, uint64_t seed,
    ):
        cdef uint32_t i, ranks = config.dp_size
        cdef double start = config.startup_time_s
        if workers == 0:
            raise ValueError("a fleet needs an engine")
        if speeds.shape[0] != workers:
            raise ValueError("every worker needs a speed")
        self.size = workers * ranks
        self.ranks = ranks
        self.engines = <Engine*>calloc(self.size, sizeof(Engine))
        self.queue = <uint32_t*>calloc(self.size, sizeof(uint32_t))
        if self.engines == NULL or self.queue == NULL:
            raise MemoryError
        read_limits(&self.limits, config)
        for i in range(self.size):
            if engine_init(
                &self.engines[i], &self.limits, record_events, speeds[i // ranks], start
            ) < 0:
                raise MemoryError
        self.timing = timing
        self.writer = EventWriter()
        self.seed = splitmix64(seed)
        self.threshold = UINT64_MAX if loss >= 1 else int(loss * 2.0**64)

    def __dealloc__(self):
        cdef uint32_t i
        if self.engines != NULL:
            for i in range(self.size):
                engine_free(&self.engines[i])
        free(self.engines)
        free(self.queue)
        free(self.record.emissions)
        free(self.record.gaps)

    cdef Engine* engine(self, uint32_t number) except NULL:
        if number >= self.size:
            raise IndexError(f"there is no engine {number}")
        return &self.engines[number]

    def submit(
        self, uint32_t engine, uint32_t request, uint32_t prompt, uint32_t output,
        const uint64_t[::1] sequence_hashes, const uint64_t[::1] local_hashes,
        double now, double follow, retention, int handoff=NO_HANDOFF,
    ):
        engine_submit(
            self.engine(engine), &self.limits, request, prompt, output, sequence_hashes,
            local_hashes, follow, now, retention, handoff,
        )
        self.record.followed += follow >= 0

    def restart(self, uint32_t number, double now):
        """Make an engine new: no cache, no requests, events numbered from 1. Its totals go on."""
        cdef Engine* engine = self.engine(number)
        cdef Engine fresh
        memset(&fresh, 0, sizeof(Engine))
        fresh.steps, fresh.busy, fresh.waited = engine.steps, engine.busy, engine.waited
        fresh.most_waiting, fresh.loaded_s = engine.most_waiting, engine.loaded_s
        cdef double speed = engine.speed
        cdef bint journal = engine.kv.journal.on
        engine_free(engine)
        memcpy(engine, &fresh, sizeof(Engine))
        if engine_init(engine, &self.limits, journal, speed, now) < 0:
            raise MemoryError

    def settle_handoff(self, uint32_t engine, uint32_t request, int state, double now):
        return engine_settle_handoff(self.engine(engine), request, state, now)

    def prefetch(
        self, uint32_t engine, const uint64_t[::1] sequence_hashes,
        const uint64_t[::1] local_hashes, double now,
    ):
        return engine_prefetch(
            self.engine(engine), NO_REQUEST, sequence_hashes, local_hashes, now
        )

    def waiting(self, uint32_t engine):
        return self.engine(engine).queues.n_waiting

    def running(self, uint32_t engine):
        return self.engine(engine).queues.n_running

    def advance(self, double until, bint to_answer):
        cdef uint32_t i
        cdef int status = 0
        self.record.stop = INFINITY
        self.record.to_answer = to_answer
        with nogil:
            if self.record.followed or to_answer:
                status = engines_advance(
                    self.engines, self.size, self.queue, &self.limits, &self.timing.timing,
                    &self.record, until,
                )
            else:  # nothing that happens here can concern another engine
                for i in range(self.size):
                    status = engine_advance(
                        &self.engines[i], &self.limits, &self.timing.timing, &self.record, until
                    )
                    if status < 0:
                        break
        if status < 0:
            raise MemoryError
        for i in range(self.size):
            if self.engines[i].stuck and self.engines[i].queues.parked == NULL:
                raise RuntimeError(
                    f"engine {i} stands still at {self.engines[i].clock} s: "
                    f"{self.engines[i].queues.n_waiting} requests wait and none fits, though "
                    f"{self.engines[i].kv.pool.active} blocks are held of "
                    f"{self.engines[i].kv.pool.capacity}"
                )
        return min(until, self.record.stop)

    def announce(self, uint32_t engine, double now):
        if kv_announce(
            &self.engine(engine).kv, now, MAX_EVENTS_PER_MESSAGE, MAX_BLOCKS_PER_MESSAGE
        ) < 0:
            raise MemoryError

    def collect(self, double until, uint32_t first=0, uint32_t end=UINT32_MAX):
        """The surviving events published until then as one message; None if there are none. Of the
        engines `first` to `end`, without that."""
        cdef uint32_t i
        cdef Journal* journal
        for i in range(first, min(end, self.size)):
            journal = &self.engines[i].kv.journal
            if journal.head < journal.length and journal.entries[journal.head].time <= until:
                self.write(i, until)
                journal_compact(journal, KEPT_BLOCKS if self.threshold else 0)
        if self.writer.events == 0:
            return None
        # No engine restarts here, so that each may be thought to say all in one envelope.
        return self.writer.message(1, 0, 0)

    cdef int write(self, uint32_t number, double until) except -1:
        cdef Engine* engine = &self.engines[number]
        cdef Journal* journal = &engine.kv.journal
        cdef Entry* entry
        cdef uint64_t event_id, last = UINT64_MAX
        cdef bint lost = False
        while journal.head < journal.length:
            entry = &journal.entries[journal.head]
            if entry.time > until:
                break
            journal.head += 1
            event_id = engine.next_event
            engine.next_event += 1
            if self.threshold and entry.message != last:
                last = entry.message
                lost = splitmix64(splitmix64(self.seed + number) + last) < self.threshold
                self.lost += lost
            if not lost:
                self.put(number, entry, event_id)
        return 0

    cdef int put(self, uint32_t number, const Entry* entry, uint64_t event_id) except -1:
        """Write one event of an engine."""
        cdef Journal* journal = &self.engines[number].kv.journal
        cdef uint32_t worker = number // self.ranks, rank = number % self.ranks
        cdef str tier = _TIERS[entry.tier]
        if entry.kind == ENTRY_STORED:
            self.writer.put_stored(
                worker, rank, event_id, entry.has_parent, entry.parent,
                journal.sequence_hashes + entry.first, journal.local_hashes + entry.first,
                entry.count, tier,
            )
        elif entry.kind == ENTRY_CLEARED:
            self.writer.cleared(worker, rank, event_id, tier)
        else:
            self.writer.put_removed(
                worker, rank, event_id, journal.sequence_hashes + entry.first, entry.count, tier
            )
        return 0

    def replay(self, uint32_t number, uint64_t first, uint64_t last):
        """Collected events of an engine again, as far as they survive; None: not kept."""
        cdef Engine* engine = self.engine(number)
        cdef Journal* journal = &engine.kv.journal
        cdef uint64_t oldest = engine.next_event - (journal.head - journal.tail)
        cdef uint64_t event_id, message = UINT64_MAX
        cdef Entry* entry
        cdef bint lost = False
        first = max(first, 1)
        if not oldest <= first <= engine.next_event:
            return None
        self.replays += 1
        for event_id in range(first, min(last, engine.next_event - 1) + 1):
            entry = &journal.entries[journal.tail + (event_id - oldest)]
            if entry.message != message:
                message = entry.message
                lost = splitmix64(
                    splitmix64(splitmix64(self.seed + number) + message) + self.replays
                ) < self.threshold
                self.lost += lost
            if not lost:
                self.put(number, entry, event_id)
        return self.writer.message(1, 0, 0)

    def take_emissions(self):
        """(times, requests, kinds, cached, preemptions) since the last call, by time."""
        cdef size_t n = self.record.n_emissions, i
        times = np.empty(n, np.float64)
        numbers = np.empty((4, n), np.int64)
        cdef double[::1] at = times
        cdef long long[:, ::1] what = numbers
        for i in range(n):
            at[i] = self.record.emissions[i].time
            what[0, i] = self.record.emissions[i].request
            what[1, i] = self.record.emissions[i].kind
            what[2, i] = self.record.emissions[i].cached
            what[3, i] = self.record.emissions[i].preemptions
        self.record.n_emissions = 0
        order = np.argsort(times, kind="stable")
        return (times[order], *numbers[:, order])

    def gaps(self):
        cdef size_t n = self.record.n_gaps, i
        seconds = np.empty(n, np.float64)
        counts = np.empty(n, np.uint32)
        cdef double[::1] gap = seconds
        cdef uint32_t[::1] count = counts
        for i in range(n):
            gap[i] = self.record.gaps[i].seconds
            count[i] = self.record.gaps[i].count
        return seconds, counts

    def stats(self):
        """(steps, busy seconds, waited request-seconds, most waiting, seconds for lower tiers) of
        every engine."""
        return [
            (
                self.engines[i].steps,
                self.engines[i].busy,
                self.engines[i].waited,
                self.engines[i].most_waiting,
                self.engines[i].loaded_s,
            )
            for i in range(self.size)
        ]

    def cache(self, uint32_t engine, int tier):
        """((sequence hash, parent's, local hash, holders), ...) of a tier as they came; for tests.
        """
        return kv_listing(&self.engine(engine).kv, check_tier(tier))

    def pools(self, uint32_t engine):
        """(active, inactive) blocks."""
        return self.engine(engine).kv.pool.active, self.engine(engine).kv.pool.inactive

    def collected(self, uint32_t engine):
        return self.engine(engine).next_event - 1

    def is_busy(self):
        cdef uint32_t i
        for i in range(self.size):
            if engine_is_busy(&self.engines[i]):
                return True
        return False
