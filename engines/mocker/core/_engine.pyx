"""An engine's steps in time, alone or in a fleet: see _engine.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from ._kv_manager cimport (
    ARRIVED,
    HANDS_OVER,
    NO_HANDOFF,
    kv_arrive,
    kv_expect_deadlines,
    kv_free,
    kv_init,
    kv_pass_time,
    kv_prefetch,
    kv_release,
)
from ._retention cimport read_retention
from ._scheduler cimport plan_step, queues_add, queues_add_first, queues_free, queues_park
from ._scheduler cimport queues_unpark, sequence_free, sequence_new
from ._timing cimport timing_attention_ms, timing_decode_ms, timing_prefill_ms


cdef int engine_init(
    Engine* engine, const Limits* limits, bint journal, double speed, double start
) noexcept nogil:
    engine.next_event = 1
    engine.speed = speed
    engine.clock = start
    return kv_init(&engine.kv, &limits.cache, journal)


cdef void engine_free(Engine* engine) noexcept nogil:
    queues_free(&engine.queues)
    free(engine.pending)
    kv_free(&engine.kv)


cdef bint engine_is_busy(const Engine* engine) noexcept nogil:
    return engine.stepping or engine.queues.n_running or engine.queues.n_waiting


cdef uint32_t check_hashes(
    const uint64_t[::1] sequence_hashes, const uint64_t[::1] local_hashes
) except? 0:
    """How many there are of each."""
    if local_hashes.shape[0] != sequence_hashes.shape[0]:
        raise ValueError("sequence_hashes and local_hashes differ in length")
    return <uint32_t>sequence_hashes.shape[0]


cdef int engine_submit(
    Engine* engine, const Limits* limits, uint32_t request, uint32_t prompt, uint32_t output,
    const uint64_t[::1] sequence_hashes, const uint64_t[::1] local_hashes,
    double follow, double now, object retention, int handoff=NO_HANDOFF
) except -1:
    cdef uint32_t n = check_hashes(sequence_hashes, local_hashes)
    cdef Sequence* sequence
    if n < (<uint64_t>prompt + output) // limits.block_size:
        raise ValueError("there are more full blocks than hashes")
    sequence = sequence_new(
        request, prompt, output, &sequence_hashes[0] if n else NULL,
        &local_hashes[0] if n else NULL, n, follow
    )
    if sequence == NULL:
        raise MemoryError
    try:
        read_retention(&sequence.retention, retention)
        if sequence.retention.ends and kv_expect_deadlines(&engine.kv) < 0:
            raise MemoryError
    except BaseException:
        sequence_free(sequence)
        raise
    sequence.handoff = <uint8_t>handoff
    wake(engine, now)
    queues_add(&engine.queues, sequence)
    return 0


cdef inline void wake(Engine* engine, double now) noexcept nogil:
    engine.stuck = engine.workless = 0
    if not engine.stepping and engine.clock < now:
        engine.clock = now


cdef bint engine_settle_handoff(
    Engine* engine, uint32_t request, int state, double now
) except -1:
    cdef size_t entries = engine.kv.journal.length
    cdef Sequence* sequence = queues_unpark(&engine.queues, request, state)
    cdef int arrived
    if sequence == NULL:
        return False
    kv_pass_time(&engine.kv, now)
    if state == HANDS_OVER:
        kv_release(&engine.kv, sequence)
        sequence_free(sequence)
    else:
        arrived = kv_arrive(&engine.kv, sequence)
        if arrived <= 0:
            kv_release(&engine.kv, sequence)
            sequence_free(sequence)
            if arrived == 0:
                raise RuntimeError(f"request {request} has lost the blocks kept for its prompt")
            raise MemoryError
        sequence.handoff = ARRIVED
        queues_add_first(&engine.queues, sequence)
    if engine.kv.journal.length > entries:
        engine.kv.journal.messages += 1
    wake(engine, now)
    return True


cdef int64_t engine_prefetch(
    Engine* engine, uint32_t request, const uint64_t[::1] sequence_hashes,
    const uint64_t[::1] local_hashes, double now
) except -1:
    cdef uint32_t blocks = check_hashes(sequence_hashes, local_hashes)
    cdef size_t entries = engine.kv.journal.length
    cdef int64_t loaded
    cdef Sequence* sequence = sequence_new(
        request, 0, 0, &sequence_hashes[0] if blocks else NULL,
        &local_hashes[0] if blocks else NULL, blocks, -1.0
    )
    if sequence == NULL:
        raise MemoryError
    loaded = kv_prefetch(&engine.kv, sequence, blocks, now)
    sequence_free(sequence)
    if loaded < 0:
        raise MemoryError
    if engine.kv.journal.length > entries:
        engine.kv.journal.messages += 1
    engine.prefetched += loaded
    return loaded


cdef int engine_advance(
    Engine* engine, const Limits* limits, const Timing* timing, Record* record, double until
) noexcept nogil:
    cdef int moved = 1
    while moved > 0:
        moved = move(engine, limits, timing, record, until)
    return moved


cdef int engines_advance(
    Engine* engines, uint32_t size, uint32_t* queue, const Limits* limits, const Timing* timing,
    Record* record, double until
) noexcept nogil:
    cdef uint32_t n = 0, i
    cdef int moved
    for i in range(size):
        if engine_is_busy(&engines[i]):
            queue[n] = i
            n += 1
    for i in range(n // 2, 0, -1):
        sift(engines, queue, n, i - 1)
    while n > 0:
        if record.stop < until:
            until = record.stop
        moved = move(&engines[queue[0]], limits, timing, record, until)
        if moved < 0:
            return -1
        if moved == 0:
            n -= 1
            queue[0] = queue[n]
        sift(engines, queue, n, 0)
    return 0


cdef void sift(const Engine* engines, uint32_t* queue, uint32_t n, uint32_t index) noexcept nogil:
    """Restore the heap, the earliest clock on top, where the one at `index` may be too high."""
    cdef uint32_t child, engine = queue[index]
    while True:
        child = 2 * index + 1
        if child >= n:
            break
        if child + 1 < n and engines[queue[child + 1]].clock < engines[queue[child]].clock:
            child += 1
        if engines[engine].clock <= engines[queue[child]].clock:
            break
        queue[index] = queue[child]
        index = child
    queue[index] = engine


cdef int move(
    Engine* engine, const Limits* limits, const Timing* timing, Record* record, double until
) noexcept nogil:
    """End the running step or begin the next one; 0 if neither is due, -1: no memory."""
    cdef Step step
    if engine.stepping:
        return 0 if engine.clock > until else end_step(engine, record)
    if engine.stuck or not engine_is_busy(engine) or engine.clock >= until:
        return 0
    return -1 if engine_begin_step(engine, limits, timing, record, &step) < 0 else 1


cdef int engine_begin_step(
    Engine* engine, const Limits* limits, const Timing* timing, Record* record, Step* step
) noexcept nogil:
    cdef size_t entries = engine.kv.journal.length
    cdef double seconds, loading
    cdef uint32_t waiting
    engine.n_pending = 0
    kv_pass_time(&engine.kv, engine.clock)
    if plan_step(&engine.queues, &engine.kv, limits, step) < 0 or not reserve(engine):
        return -1
    if step.arriving and record != NULL and note_arriving(engine, record, step.arriving) < 0:
        return -1
    if engine.kv.journal.length > entries:
        engine.kv.journal.messages += 1
    # A step without work takes no time, and would be followed by another one. One that preempts may
    # be, but there are no more of these in a row than requests that run.
    if step.prefill or step.decodes:
        engine.workless = 0
    elif step.preempted and engine.workless < limits.max_num_seqs:
        engine.workless += 1
    else:
        engine.stuck = 1
        engine.took = 0
        return 0
    seconds = (
        timing_prefill_ms(timing, step.prefill)
        + timing_attention_ms(timing, step.attended)
        + timing_decode_ms(timing, step.decode_tokens, step.decodes)
    ) / 1000 / engine.speed
    loading = engine.kv.ready - engine.clock
    seconds += loading  # it computes once all blocks that it needs are on the device
    engine.loaded_s += loading
    engine.took = seconds
    engine.clock += seconds
    engine.stepping = 1
    engine.steps += 1
    engine.busy += seconds
    waiting = engine.queues.n_waiting
    engine.waited += seconds * waiting
    if waiting > engine.most_waiting:
        engine.most_waiting = waiting
    return emit(engine, record)


cdef inline bint reserve(Engine* engine) noexcept nogil:
    """Room for a token of every running request."""
    cdef uint32_t wanted = engine.queues.n_running
    cdef void* grown
    if wanted <= engine.pending_capacity:
        return True
    wanted += wanted // 2 + 4
    grown = realloc(engine.pending, wanted * sizeof(Emission))
    if grown == NULL:
        return False
    engine.pending = <Emission*>grown
    engine.pending_capacity = wanted
    return True


cdef int emit(Engine* engine, Record* record) noexcept nogil:
    """Each request whose tokens are all computed gets one at the end of the step."""
    cdef Queues* queues = &engine.queues
    cdef uint32_t i, kept = 0, same = 0
    cdef double gap, last_gap = -1
    cdef Sequence* sequence
    cdef Emission* emission
    for i in range(queues.n_running):
        sequence = queues.running[i]
        queues.running[kept] = sequence
        kept += 1
        if sequence.computed != sequence.known:
            continue
        sequence.generated += 1
        sequence.known += 1
        if sequence.generated > 1 and record != NULL:
            gap = engine.clock - sequence.last_token
            if gap != last_gap:
                if same and put_gap(record, last_gap, same) < 0:
                    return -1
                last_gap = gap
                same = 0
            same += 1
        sequence.last_token = engine.clock
        if sequence.generated > 1 and sequence.generated < sequence.output:
            if not engine.every_token:
                continue
        emission = &engine.pending[engine.n_pending]
        engine.n_pending += 1
        emission.time = engine.clock
        emission.request = sequence.request
        emission.kind = FIRST_TOKEN if sequence.generated == 1 else 0
        emission.cached = sequence.cached
        emission.preemptions = sequence.preemptions
        emission.follow = -1
        if sequence.generated == sequence.output:
            emission.kind |= LAST_TOKEN
            emission.follow = sequence.follow
            kept -= 1
            if sequence.handoff == HANDS_OVER:
                queues_park(queues, sequence)
                continue
            kv_release(&engine.kv, sequence)
            sequence_free(sequence)
    queues.n_running = kept
    if same:
        return put_gap(record, last_gap, same)
    return 0


cdef int note_arriving(Engine* engine, Record* record, uint32_t requests) noexcept nogil:
    """The requests that were parked last have blocks for their prompts, as of now."""
    cdef Sequence* sequence = engine.queues.parked
    cdef Emission* emission
    while requests > 0:
        if not reserve_emissions(record, 1):
            return -1
        emission = &record.emissions[record.n_emissions]
        record.n_emissions += 1
        emission.time = engine.clock
        emission.follow = -1
        emission.request = sequence.request
        emission.kind = WAITS_FOR_PROMPT
        emission.cached = sequence.cached
        emission.preemptions = 0
        sequence = sequence.next
        requests -= 1
    if record.to_answer and engine.clock < record.stop:
        record.stop = engine.clock
    return 0


cdef inline bint reserve_emissions(Record* record, size_t wanted) noexcept nogil:
    cdef size_t capacity
    cdef Emission* grown
    if record.n_emissions + wanted > record.emissions_capacity:
        capacity = (record.n_emissions + wanted) * 2
        grown = <Emission*>realloc(record.emissions, capacity * sizeof(Emission))
        if grown == NULL:
            return False
        record.emissions = grown
        record.emissions_capacity = capacity
    return True


cdef int put_gap(Record* record, double seconds, uint32_t count) noexcept nogil:
    cdef size_t capacity
    cdef Gap* grown
    if record.n_gaps == record.gaps_capacity:
        capacity = record.gaps_capacity * 2 + 1024
        grown = <Gap*>realloc(record.gaps, capacity * sizeof(Gap))
        if grown == NULL:
            return -1
        record.gaps = grown
        record.gaps_capacity = capacity
    record.gaps[record.n_gaps].seconds = seconds
    record.gaps[record.n_gaps].count = count
    record.n_gaps += 1
    return 0


cdef int end_step(Engine* engine, Record* record) noexcept nogil:
    cdef uint32_t i
    engine.stepping = 0
    if not reserve_emissions(record, engine.n_pending):
        return -1
    for i in range(engine.n_pending):
        record.emissions[record.n_emissions] = engine.pending[i]
        record.n_emissions += 1
        if record.to_answer and engine.clock < record.stop:
            record.stop = engine.clock
        if engine.pending[i].follow >= 0:
            record.followed -= 1
            if engine.clock + engine.pending[i].follow < record.stop:
                record.stop = engine.clock + engine.pending[i].follow
    engine.n_pending = 0
    return 1
