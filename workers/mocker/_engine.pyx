"""An engine in virtual time, natively: scheduler.py and engine.py without tokens.

Held against those two, step for step, by tests/mocker/test_virtual_fleet.py. Owned by _virtual.pyx.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy

from ...indexer._table cimport NONE
from ._journal cimport (
    ENTRY_CLEARED,
    ENTRY_REMOVED,
    ENTRY_STORED,
    Entry,
    Journal,
    journal_free,
    journal_open,
    journal_put,
)
from ._pool cimport (
    Block,
    Pool,
    pool_add,
    pool_evict,
    pool_find,
    pool_free,
    pool_hold,
    pool_init,
    pool_release,
)

cdef enum:
    FIRST_TOKEN = 1
    LAST_TOKEN = 2

cdef struct Step:
    double now
    uint32_t prefill       # tokens
    uint32_t decodes
    uint64_t decode_tokens
    uint32_t preempted


cdef int engine_init(
    Engine* engine, uint32_t capacity, bint journal, double speed
) noexcept nogil:
    """`engine` is zeroed."""
    pool_init(&engine.pool, capacity)
    engine.journal.on = journal
    engine.next_event = 1
    engine.speed = speed
    return 0


cdef void engine_free(Engine* engine) noexcept nogil:
    cdef Sequence* sequence
    cdef uint32_t i
    for i in range(engine.n_running):
        free(engine.running[i].names)
        free(engine.running[i])
    while engine.waiting != NULL:
        sequence = engine.waiting
        engine.waiting = sequence.next
        free(sequence.names)
        free(sequence)
    free(engine.running)
    free(engine.pending)
    pool_free(&engine.pool)
    journal_free(&engine.journal)


cdef Sequence* sequence_new(
    uint32_t request, uint32_t prompt, uint32_t output, const uint64_t* names,
    const uint64_t* contents, uint32_t n_blocks, double follow
) noexcept nogil:
    cdef size_t column = n_blocks * sizeof(uint64_t)
    cdef Sequence* sequence = <Sequence*>calloc(1, sizeof(Sequence))
    if sequence == NULL:
        return NULL
    sequence.names = <uint64_t*>malloc(2 * column + n_blocks * sizeof(uint32_t) + 1)
    if sequence.names == NULL:
        free(sequence)
        return NULL
    sequence.contents = sequence.names + n_blocks
    sequence.ids = <uint32_t*>(sequence.contents + n_blocks)
    if n_blocks:
        memcpy(sequence.names, names, column)
        memcpy(sequence.contents, contents, column)
    sequence.request = request
    sequence.known = prompt
    sequence.output = output
    sequence.cached = -1
    sequence.follow = follow
    return sequence


cdef void engine_submit(Engine* engine, Sequence* sequence, double now) noexcept nogil:
    if not engine.stepping and engine.clock < now:
        engine.clock = now
    sequence.next = NULL
    if engine.waiting == NULL:
        engine.waiting = sequence
    else:
        engine.last_waiting.next = sequence
    engine.last_waiting = sequence
    engine.n_waiting += 1


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
        if engines[i].stepping or engines[i].n_running or engines[i].n_waiting:
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


cdef void sift(const Engine* engines, uint32_t* queue, uint32_t n, uint32_t place) noexcept nogil:
    """Restore the heap, the earliest clock on top, where the one at `place` may be too high."""
    cdef uint32_t child, engine = queue[place]
    while True:
        child = 2 * place + 1
        if child >= n:
            break
        if child + 1 < n and engines[queue[child + 1]].clock < engines[queue[child]].clock:
            child += 1
        if engines[engine].clock <= engines[queue[child]].clock:
            break
        queue[place] = queue[child]
        place = child
    queue[place] = engine


cdef int move(
    Engine* engine, const Limits* limits, const Timing* timing, Record* record, double until
) noexcept nogil:
    """End the running step or begin the next one; 0 if neither is due, -1: no memory."""
    if engine.stepping:
        return 0 if engine.clock > until else end_step(engine, record)
    if engine.n_running == 0 and engine.n_waiting == 0 or engine.clock >= until:
        return 0
    return begin_step(engine, limits, timing, record)


cdef int begin_step(
    Engine* engine, const Limits* limits, const Timing* timing, Record* record
) noexcept nogil:
    """The step that begins at the engine's clock, which then tells its end."""
    cdef Step step
    cdef uint32_t budget = limits.budget
    cdef size_t entries = engine.journal.length
    cdef double seconds
    step.now = engine.clock
    step.prefill = step.decodes = step.preempted = 0
    step.decode_tokens = 0
    engine.n_pending = 0
    if not reserve_pending(engine, limits.max_num_seqs):
        return -1
    if run_running(engine, limits, &step, &budget) < 0:
        return -1
    if step.preempted == 0 and admit(engine, limits, &step, budget) < 0:
        return -1
    seconds = step_ms(timing, &step) / 1000 / engine.speed
    engine.clock = step.now + seconds
    engine.stepping = 1
    engine.steps += 1
    engine.busy += seconds
    engine.waited += seconds * engine.n_waiting
    if engine.n_waiting > engine.most_waiting:
        engine.most_waiting = engine.n_waiting
    if engine.journal.length > entries:
        engine.journal.messages += 1
    return -1 if emit(engine, record) < 0 else 1


cdef inline double step_ms(const Timing* timing, const Step* step) noexcept nogil:
    """timing.py's polynomials, in the same order of operations."""
    cdef double milliseconds = 0, share, n = step.prefill
    if step.prefill > 0:
        milliseconds = (4.209989e-7 * n + 1.518344e-2) * n + 16.50142
    if step.decodes > 0:
        share = <double>step.decode_tokens / timing.total_tokens
        if share > 1.0:
            share = 1.0
        n = (-25.74 * share + 54.01) * share + 5.74
        milliseconds += (n if n > 1.0 else 1.0) / timing.decode_speedup
    return milliseconds


cdef inline bint reserve_pending(Engine* engine, uint32_t most) noexcept nogil:
    cdef uint32_t wanted = engine.n_running + engine.n_waiting
    cdef void* grown
    if wanted > most:
        wanted = most
    if wanted <= engine.running_room:
        return True
    wanted += wanted // 2 + 4
    grown = realloc(engine.running, wanted * sizeof(Sequence*))
    if grown == NULL:
        return False
    engine.running = <Sequence**>grown
    grown = realloc(engine.pending, wanted * sizeof(Emission))
    if grown == NULL:
        return False
    engine.pending = <Emission*>grown
    engine.running_room = engine.pending_room = wanted
    return True


cdef int run_running(
    Engine* engine, const Limits* limits, Step* step, uint32_t* budget
) noexcept nogil:
    """Spend the budget on running requests, oldest first."""
    cdef uint32_t position = 0, wanted
    cdef Sequence* sequence
    cdef int grown
    while position < engine.n_running and budget[0] > 0:
        sequence = engine.running[position]
        position += 1
        wanted = sequence.known - sequence.computed
        if wanted == 1 and sequence.slack:
            sequence.slack -= 1
            sequence.computed += 1
        else:
            if wanted > budget[0]:
                wanted = budget[0]
            grown = grow_or_preempt(engine, limits, step, sequence, wanted)
            if grown < 0:
                return -1
            if grown == 0:
                break
        if wanted == 1 and sequence.generated:
            step.decodes += 1
            step.decode_tokens += sequence.known
        else:
            step.prefill += wanted
        budget[0] -= wanted
    return 0


cdef int grow_or_preempt(
    Engine* engine, const Limits* limits, Step* step, Sequence* sequence, uint32_t tokens
) noexcept nogil:
    """Blocks for `tokens` more, at the cost of the youngest; 0 if that is `sequence` itself."""
    cdef Sequence* victim
    cdef int grown
    while True:
        grown = grow(engine, limits, step.now, sequence, tokens, engine.pool.capacity)
        if grown != 0:
            return grown
        engine.n_running -= 1
        victim = engine.running[engine.n_running]
        let_go(engine, victim)
        victim.computed = 0
        victim.preemptions += 1
        victim.next = engine.waiting
        if engine.waiting == NULL:
            engine.last_waiting = victim
        engine.waiting = victim
        engine.n_waiting += 1
        step.preempted += 1
        if victim == sequence:
            return 0


cdef int admit(Engine* engine, const Limits* limits, Step* step, uint32_t budget) noexcept nogil:
    """Take in waiting requests while the budget lasts; the first that does not fit stops it."""
    cdef Sequence* sequence
    cdef Pool* pool = &engine.pool
    cdef uint32_t full, depth, shared, cached, wanted, limit, id
    cdef int grown
    while engine.waiting != NULL and budget > 0 and engine.n_running < limits.max_num_seqs:
        sequence = engine.waiting
        if sequence == engine.blocked and pool.version == engine.blocked_at:
            return 0
        full = sequence.known // limits.block_size
        depth = shared = 0
        while depth < full:
            id = pool_find(pool, sequence.names[depth])
            if id == NONE:
                break
            shared += pool.blocks[id].holders > 0
            depth += 1
        # The last known token is computed in any case: its result is the next token.
        cached = (sequence.known - 1) // limits.block_size
        cached = (depth if depth < cached else cached) * limits.block_size
        wanted = sequence.known - cached
        if wanted > budget:
            if not limits.chunked:
                return 0
            wanted = budget
        limit = limits.admission if engine.n_running else pool.capacity
        if pool.active + full - shared + (sequence.known % limits.block_size > 0) > limit:
            if engine.n_running:
                engine.blocked = sequence
                engine.blocked_at = pool.version
            return 0
        sequence.computed = cached
        # A part can need a block more than the whole: a partial one, in place of a shared one.
        grown = grow(engine, limits, step.now, sequence, wanted, limit)
        if grown <= 0:
            sequence.computed = 0
            return grown
        engine.waiting = sequence.next
        engine.n_waiting -= 1
        engine.running[engine.n_running] = sequence
        engine.n_running += 1
        if sequence.cached < 0:
            sequence.cached = <int32_t>cached
        step.prefill += wanted
        budget -= wanted
    return 0


cdef int grow(
    Engine* engine, const Limits* limits, double now, Sequence* sequence, uint32_t tokens,
    uint32_t limit
) noexcept nogil:
    """Get the blocks for `tokens` more: 1; 0, nothing done, if above `limit` active ones."""
    cdef Pool* pool = &engine.pool
    cdef uint32_t computed = sequence.computed + tokens
    cdef uint32_t full = computed // limits.block_size, rest = computed % limits.block_size
    cdef uint32_t first = sequence.held, depth, id, shared = 0
    cdef bint promoted = sequence.partial and full > first
    cdef bint opened
    if promoted:
        first += 1
    opened = rest > 0 and (not sequence.partial or promoted)
    depth = first
    while depth < full:
        id = pool_find(pool, sequence.names[depth])
        if id == NONE:
            break
        sequence.ids[depth] = id
        shared += pool.blocks[id].holders > 0
        depth += 1
    if pool.active + (full - first - shared) + opened > limit:
        return 0
    if promoted and promote(engine, now, sequence, first - 1) < 0:
        return -1
    for id in range(first, depth):
        pool_hold(pool, sequence.ids[id])
    if full > depth:
        if make_room(engine, now, full - depth) < 0:
            return -1
        if store(engine, now, sequence, depth, full) < 0:
            return -1
    if opened:
        if make_room(engine, now, 1) < 0:
            return -1
        pool.active += 1
        pool.version += 1
        sequence.partial = 1
    sequence.held = full
    sequence.computed = computed
    sequence.slack = limits.block_size - rest - 1 if rest else 0
    return 1


cdef int promote(Engine* engine, double now, Sequence* sequence, uint32_t place) noexcept nogil:
    """The partial block has become full: block `place`, new or one that is cached already."""
    cdef uint32_t id = pool_find(&engine.pool, sequence.names[place])
    engine.pool.active -= 1
    engine.pool.version += 1
    sequence.partial = 0
    if id == NONE:
        return store(engine, now, sequence, place, place + 1)
    pool_hold(&engine.pool, id)
    sequence.ids[place] = id
    return 0


cdef int store(
    Engine* engine, double now, Sequence* sequence, uint32_t first, uint32_t last
) noexcept nogil:
    """Cache blocks first..last-1, for which there is room, and tell of them as one chain."""
    cdef Entry* entry = NULL
    cdef uint32_t place, parent = sequence.ids[first - 1] if first else NONE
    if engine.journal.on:
        entry = journal_open(&engine.journal, ENTRY_STORED, last - first)
        if entry == NULL:
            return -1
        entry.time = now
        if first:
            entry.has_parent = 1
            entry.parent = sequence.names[first - 1]
    for place in range(first, last):
        parent = pool_add(&engine.pool, sequence.names[place], sequence.contents[place], parent)
        if parent == NONE:
            return -1
        sequence.ids[place] = parent
        if entry != NULL:
            journal_put(&engine.journal, entry, sequence.names[place], sequence.contents[place])
    return 0


cdef int make_room(Engine* engine, double now, uint32_t blocks) noexcept nogil:
    """Evict until `blocks` more fit; the caller knows that they can."""
    cdef Pool* pool = &engine.pool
    cdef uint32_t wanted = pool.active + pool.inactive + blocks, i
    cdef uint64_t name
    cdef Entry* entry = NULL
    if wanted <= pool.capacity:
        return 0
    wanted -= pool.capacity
    if engine.journal.on:
        entry = journal_open(&engine.journal, ENTRY_REMOVED, wanted)
        if entry == NULL:
            return -1
        entry.time = now
    for i in range(wanted):
        name = pool_evict(pool)
        if entry != NULL:
            journal_put(&engine.journal, entry, name, 0)
    return 0


cdef void let_go(Engine* engine, Sequence* sequence) noexcept nogil:
    """Give up all blocks, the last one first."""
    cdef uint32_t place = sequence.held
    if sequence.partial:
        engine.pool.active -= 1
        engine.pool.version += 1
        sequence.partial = 0
    while place > 0:
        place -= 1
        pool_release(&engine.pool, sequence.ids[place])
    sequence.held = sequence.slack = 0


cdef int emit(Engine* engine, Record* record) noexcept nogil:
    """Each request whose tokens are all computed gets one at the end of the step."""
    cdef uint32_t i, kept = 0, same = 0
    cdef double gap, last_gap = -1
    cdef Sequence* sequence
    cdef Emission* emission
    for i in range(engine.n_running):
        sequence = engine.running[i]
        engine.running[kept] = sequence
        kept += 1
        if sequence.computed != sequence.known:
            continue
        sequence.generated += 1
        sequence.known += 1
        if sequence.generated > 1:
            gap = engine.clock - sequence.last_token
            if gap != last_gap:
                if same and put_gap(record, last_gap, same) < 0:
                    return -1
                last_gap = gap
                same = 0
            same += 1
        sequence.last_token = engine.clock
        if sequence.generated > 1 and sequence.generated < sequence.output:
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
            let_go(engine, sequence)
            if engine.blocked == sequence:
                engine.blocked = NULL
            free(sequence.names)
            free(sequence)
    engine.n_running = kept
    if same:
        return put_gap(record, last_gap, same)
    return 0


cdef int put_gap(Record* record, double seconds, uint32_t count) noexcept nogil:
    cdef size_t room
    cdef Gap* grown
    if record.n_gaps == record.gaps_room:
        room = record.gaps_room * 2 + 1024
        grown = <Gap*>realloc(record.gaps, room * sizeof(Gap))
        if grown == NULL:
            return -1
        record.gaps = grown
        record.gaps_room = room
    record.gaps[record.n_gaps].seconds = seconds
    record.gaps[record.n_gaps].count = count
    record.n_gaps += 1
    return 0


cdef int end_step(Engine* engine, Record* record) noexcept nogil:
    cdef size_t room
    cdef Emission* grown
    cdef uint32_t i
    engine.stepping = 0
    if record.n_emissions + engine.n_pending > record.emissions_room:
        room = (record.n_emissions + engine.n_pending) * 2
        grown = <Emission*>realloc(record.emissions, room * sizeof(Emission))
        if grown == NULL:
            return -1
        record.emissions = grown
        record.emissions_room = room
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


cdef int by_serial(const void* one, const void* other) noexcept nogil:
    cdef uint64_t a = (<const Block*>one).serial, b = (<const Block*>other).serial
    return (a > b) - (a < b)


cdef int engine_announce(
    Engine* engine, double now, uint32_t max_events, uint32_t max_blocks
) noexcept nogil:
    cdef Pool* pool = &engine.pool
    cdef Journal* journal = &engine.journal
    cdef Block* cached = NULL
    cdef Entry* entry
    cdef uint32_t id, i, n = 0, events = 1, blocks = 0
    cdef uint64_t previous = 0
    if not journal.on:
        return 0
    entry = journal_open(journal, ENTRY_CLEARED, 0)
    if entry == NULL:
        return -1
    entry.time = now
    cached = <Block*>malloc((pool.used + 1) * sizeof(Block))
    if cached == NULL:
        return -1
    # Ids that are free are those the table does not know.
    for id in range(pool.used):
        if pool_find(pool, pool.blocks[id].name) == id:
            cached[n] = pool.blocks[id]
            n += 1
    qsort(cached, n, sizeof(Block), by_serial)
    entry = NULL
    for i in range(n):
        if entry == NULL or cached[i].parent == NONE or (
            pool.blocks[cached[i].parent].name != previous
        ) or blocks == max_blocks:
            if events == max_events or blocks == max_blocks:
                journal.messages += 1
                events = blocks = 0
            entry = journal_open(journal, ENTRY_STORED, n - i)
            if entry == NULL:
                free(cached)
                return -1
            entry.time = now
            if cached[i].parent != NONE:
                entry.has_parent = 1
                entry.parent = pool.blocks[cached[i].parent].name
            events += 1
        journal_put(journal, entry, cached[i].name, cached[i].content)
        blocks += 1
        previous = cached[i].name
    journal.messages += 1
    free(cached)
    return 0
