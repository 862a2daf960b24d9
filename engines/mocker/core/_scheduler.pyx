"""Which requests take part in a step: see _scheduler.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove

from ._kv_manager cimport ARRIVED, ARRIVING, HANDED_OVER, NO_HANDOFF
from ._kv_manager cimport kv_cached_tokens, kv_expect, kv_grow, kv_match, kv_release
from ._retention cimport retention_free


cdef Sequence* sequence_new(
    uint32_t request, uint32_t prompt, uint32_t output, const uint64_t* sequence_hashes,
    const uint64_t* local_hashes, uint32_t n_blocks, double follow
) noexcept nogil:
    cdef size_t column = n_blocks * sizeof(uint64_t)
    cdef Sequence* sequence = <Sequence*>calloc(1, sizeof(Sequence))
    if sequence == NULL:
        return NULL
    sequence.sequence_hashes = <uint64_t*>malloc(2 * column + n_blocks * sizeof(uint32_t) + 1)
    if sequence.sequence_hashes == NULL:
        free(sequence)
        return NULL
    sequence.local_hashes = sequence.sequence_hashes + n_blocks
    sequence.ids = <uint32_t*>(sequence.local_hashes + n_blocks)
    if n_blocks:
        memcpy(sequence.sequence_hashes, sequence_hashes, column)
        memcpy(sequence.local_hashes, local_hashes, column)
    sequence.request = request
    sequence.known = prompt
    sequence.output = output
    sequence.cached = -1
    sequence.follow = follow
    return sequence


cdef void sequence_free(Sequence* sequence) noexcept nogil:
    retention_free(&sequence.retention)
    free(sequence.sequence_hashes)
    free(sequence)


cdef void queues_free(Queues* queues) noexcept nogil:
    cdef Sequence* sequence
    cdef uint32_t i
    for i in range(queues.n_running):
        sequence_free(queues.running[i])
    while queues.waiting != NULL:
        sequence = queues.waiting
        queues.waiting = sequence.next
        sequence_free(sequence)
    while queues.parked != NULL:
        sequence = queues.parked
        queues.parked = sequence.next
        sequence_free(sequence)
    free(queues.running)


cdef void queues_park(Queues* queues, Sequence* sequence) noexcept nogil:
    sequence.next = queues.parked
    queues.parked = sequence


cdef Sequence* queues_unpark(Queues* queues, uint32_t request, int state) noexcept nogil:
    cdef Sequence** link = &queues.parked
    cdef Sequence* found
    while link[0] != NULL:
        found = link[0]
        if found.request == request and found.handoff == state:
            link[0] = found.next
            return found
        link = &found.next
    return NULL


cdef void queues_add_first(Queues* queues, Sequence* sequence) noexcept nogil:
    cdef Sequence** link = &queues.waiting
    while link[0] != NULL and link[0].handoff == ARRIVED:
        link = &link[0].next
    sequence.next = link[0]
    if sequence.next == NULL:
        queues.last_waiting = sequence
    link[0] = sequence
    queues.n_waiting += 1


cdef void queues_add(Queues* queues, Sequence* sequence) noexcept nogil:
    sequence.next = NULL
    if queues.waiting == NULL:
        queues.waiting = sequence
    else:
        queues.last_waiting.next = sequence
    queues.last_waiting = sequence
    queues.n_waiting += 1


cdef bint queues_remove(Queues* queues, KvManager* kv, uint32_t request) noexcept nogil:
    cdef Sequence* sequence = queues.waiting
    cdef Sequence* before = NULL
    cdef uint32_t i
    for i in range(queues.n_running):
        if queues.running[i].request == request:
            sequence = queues.running[i]
            drop_running(queues, i)
            kv_release(kv, sequence)
            sequence_free(sequence)
            return True
    while sequence != NULL and sequence.request != request:
        before = sequence
        sequence = sequence.next
    if sequence == NULL:
        return False
    if before == NULL:
        queues.waiting = sequence.next
    else:
        before.next = sequence.next
    if queues.last_waiting == sequence:
        queues.last_waiting = before
    queues.n_waiting -= 1
    if queues.blocked == sequence:
        queues.blocked = NULL
    kv_release(kv, sequence)  # one whose prompt has arrived holds its blocks
    sequence_free(sequence)
    return True


cdef int plan_step(
    Queues* queues, KvManager* kv, const Limits* limits, Step* step
) noexcept nogil:
    step.prefill = step.decode_tokens = step.attended = 0
    step.decodes = step.preempted = step.arriving = 0
    step.budget = limits.budget
    if not reserve(queues, limits.max_num_seqs):
        return -1
    if limits.classic:
        admit_to_prefill(queues, kv, limits)
        if compute_prompts(queues, kv, limits, step) < 0:
            return -1
        return decode(queues, kv, limits, step)
    if run_running(queues, kv, limits, step) < 0:
        return -1
    if step.preempted:
        return 0
    return admit(queues, kv, limits, step)


cdef inline bint reserve(Queues* queues, uint32_t most) noexcept nogil:
    cdef uint32_t wanted = queues.n_running + queues.n_waiting
    cdef void* grown
    if wanted > most:
        wanted = most
    if wanted <= queues.capacity:
        return True
    wanted += wanted // 2 + 4
    grown = realloc(queues.running, wanted * sizeof(Sequence*))
    if grown == NULL:
        return False
    queues.running = <Sequence**>grown
    queues.capacity = wanted
    return True


cdef int run_running(
    Queues* queues, KvManager* kv, const Limits* limits, Step* step
) noexcept nogil:
    """vllm: spend the budget on running requests, oldest first."""
    cdef uint32_t position = 0, wanted
    cdef Sequence* sequence
    cdef int grown
    while position < queues.n_running and step.budget > 0:
        sequence = queues.running[position]
        wanted = sequence.known - sequence.computed
        if wanted == 1 and sequence.slack:
            sequence.slack -= 1
            sequence.computed += 1
        else:
            if wanted > step.budget:
                wanted = step.budget
            grown = grow_or_preempt(queues, kv, limits, step, &position, wanted)
            if grown < 0:
                return -1
            if grown == 0:
                continue
        if wanted == 1 and sequence.generated:
            sequence.planned = 0
            sequence.decoding = 1
            step.decodes += 1
            step.decode_tokens += sequence.known
        else:
            sequence.planned = wanted
            sequence.decoding = 0
            add_prefill(step, sequence, wanted)
        step.budget -= wanted
        position += 1
    return 0


cdef inline void add_prefill(Step* step, const Sequence* sequence, uint64_t tokens) noexcept nogil:
    """Count prompt tokens that a request computes in this step, after it was moved on by them."""
    step.prefill += tokens
    step.attended += attended(sequence.computed, tokens)


cdef inline uint64_t attended(uint64_t computed, uint64_t tokens) noexcept nogil:
    """Twice the sum of the contexts of the last `tokens` of `computed` ones."""
    return tokens * (2 * computed - tokens)


cdef int admit(Queues* queues, KvManager* kv, const Limits* limits, Step* step) noexcept nogil:
    """vllm: take in waiting requests; the first that does not fit stops it."""
    cdef Sequence* sequence
    cdef uint32_t full, shared, cached, wanted, limit
    cdef int grown
    while queues.waiting != NULL and step.budget > 0 and queues.n_running < limits.max_num_seqs:
        sequence = queues.waiting
        if sequence.handoff == ARRIVED:  # all of it is there: it decodes like those that run
            start_running(queues)
            sequence.handoff = NO_HANDOFF
            sequence.planned = 0
            sequence.decoding = 1
            step.decodes += 1
            step.decode_tokens += sequence.known
            step.budget -= 1
            continue
        if sequence == queues.blocked and kv.pool.version == queues.blocked_at:
            return 0
        full = sequence.known // limits.block_size
        cached = kv_match(kv, sequence, full, &shared)
        limit = limits.admission if queues.n_running or queues.parked else kv.pool.capacity
        if sequence.handoff == HANDED_OVER:
            wanted = full - shared + (sequence.known % limits.block_size > 0)
            if kv.pool.active + wanted > limit:
                return 0
            grown = kv_expect(kv, sequence)
            if grown <= 0:
                sequence.computed = 0
                return grown
            sequence.cached = <int>sequence.computed
            sequence.handoff = ARRIVING
            take_waiting(queues)
            queues_park(queues, sequence)
            step.arriving += 1
            continue
        if cached > (sequence.known - 1) // limits.block_size:
            cached -= 1
        cached *= limits.block_size
        wanted = sequence.known - cached
        if wanted > step.budget:
            if not limits.chunked:
                return 0
            wanted = step.budget
        # All of it must fit, not its first chunk alone: an engine that admits by the chunk
        # overcommits, and then preempts what it has begun.
        if kv.pool.active + full - shared + (sequence.known % limits.block_size > 0) > limit:
            if queues.n_running:
                queues.blocked = sequence
                queues.blocked_at = kv.pool.version
            return 0
        sequence.computed = cached
        # A part can need a block more than the whole: a partial one, in place of a shared one.
        grown = kv_grow(kv, sequence, wanted, limit)
        if grown <= 0:
            sequence.computed = 0
            return grown
        start_running(queues)
        if sequence.cached < 0:
            sequence.cached = <int>cached
        add_prefill(step, sequence, wanted)
        step.budget -= wanted
    return 0


cdef void admit_to_prefill(
    Queues* queues, const KvManager* kv, const Limits* limits
) noexcept nogil:
    """classic: take in waiting requests, as if nothing they need were cached."""
    cdef uint64_t blocks = kv.pool.active, tokens = 0, limit, own
    cdef uint32_t i
    cdef Sequence* sequence
    for i in range(queues.n_running):
        sequence = queues.running[i]
        tokens += sequence.known - sequence.computed
        if not holds_blocks(sequence):
            blocks += blocks_of(sequence.known, limits.block_size)
    while queues.waiting != NULL and queues.n_running < limits.max_num_seqs:
        sequence = queues.waiting
        own = blocks_of(sequence.known, limits.block_size)
        limit = limits.admission if queues.n_running else kv.pool.capacity
        if blocks + own > limit or tokens > limits.budget:
            return
        sequence.computed = kv_cached_tokens(kv, sequence)
        tokens += sequence.known - sequence.computed
        if not limits.chunked and tokens > limits.budget:
            sequence.computed = 0
            return
        blocks += own
        start_running(queues)


cdef int compute_prompts(
    Queues* queues, KvManager* kv, const Limits* limits, Step* step
) noexcept nogil:
    """classic: spend what decodes leave of the budget on the prompts, in order."""
    cdef uint32_t position = 0, wanted
    cdef Sequence* sequence
    cdef int grown
    while position < queues.n_running and decodes(queues.running[position]):
        position += 1
    step.budget -= position if position < step.budget else step.budget
    while position < queues.n_running and step.budget > 0:
        sequence = queues.running[position]
        if not holds_blocks(sequence):
            sequence.computed = kv_cached_tokens(kv, sequence)
            wanted = sequence.computed
            if not limits.chunked and sequence.known - wanted > step.budget:
                return 0
            grown = kv_grow(kv, sequence, sequence.known - wanted, kv.pool.capacity)
            if grown <= 0:
                return grown  # the decodes have the room, and will give it back
            sequence.computed = wanted
            if sequence.cached < 0:
                sequence.cached = <int>wanted
        wanted = sequence.known - sequence.computed
        if wanted > step.budget:
            wanted = step.budget
        sequence.computed += wanted
        add_prefill(step, sequence, wanted)
        step.budget -= wanted
        if sequence.computed < sequence.known:
            return 0
        position += 1
    return 0


cdef int decode(Queues* queues, KvManager* kv, const Limits* limits, Step* step) noexcept nogil:
    """classic: a token for each request whose prompt is computed."""
    cdef uint32_t position = 0
    cdef Sequence* sequence
    cdef int grown
    while position < queues.n_running:
        sequence = queues.running[position]
        if sequence.computed < sequence.known:
            if not decodes(sequence):
                return 0
            if sequence.slack:
                sequence.slack -= 1
                sequence.computed += 1
            else:
                grown = grow_or_preempt(queues, kv, limits, step, &position, 1)
                if grown < 0:
                    return -1
                if grown == 0:
                    continue
        # What it computed of its prompt in this step is spent, even if it is preempted now.
        sequence.planned = 0
        sequence.decoding = 1
        step.decodes += 1
        step.decode_tokens += sequence.known
        position += 1
    return 0


cdef int grow_or_preempt(
    Queues* queues, KvManager* kv, const Limits* limits, Step* step, uint32_t* position,
    uint32_t tokens
) noexcept nogil:
    """Blocks for `tokens` more of the request at `position`, at the cost of others; 0 if that
    request was preempted itself. `position` then is that of the next one.
    """
    cdef Sequence* sequence = queues.running[position[0]]
    cdef Sequence* victim
    cdef uint32_t at
    cdef int grown
    while True:
        grown = kv_grow(kv, sequence, tokens, kv.pool.capacity)
        if grown != 0:
            return grown
        at = victim_of(queues, limits, position[0])
        victim = queues.running[at]
        if at < position[0]:  # it has its part in this step already
            step.prefill -= victim.planned
            step.attended -= attended(victim.computed, victim.planned)
            step.budget += victim.planned + victim.decoding
            if victim.decoding:
                step.decodes -= 1
                step.decode_tokens -= victim.known
            position[0] -= 1
        drop_running(queues, at)
        kv_release(kv, victim)
        victim.computed = 0
        victim.preemptions += 1
        queues_add_first(queues, victim)
        step.preempted += 1
        if victim == sequence:
            return 0


cdef uint32_t victim_of(const Queues* queues, const Limits* limits, uint32_t needy) noexcept nogil:
    """Who is preempted for the running request at `needy`, perhaps that one itself."""
    cdef uint32_t at
    if limits.oldest_first:
        for at in range(queues.n_running):
            if decodes(queues.running[at]):
                return at
    at = queues.n_running - 1
    while at > 0 and (
        not holds_blocks(queues.running[at]) or limits.oldest_first and at == needy
    ):
        at -= 1
    return at


cdef inline void start_running(Queues* queues) noexcept nogil:
    """The first waiting request runs from now on."""
    cdef Sequence* sequence = take_waiting(queues)
    sequence.began_with = sequence.generated
    queues.running[queues.n_running] = sequence
    queues.n_running += 1


cdef inline Sequence* take_waiting(Queues* queues) noexcept nogil:
    """The first waiting request, which waits no more."""
    cdef Sequence* sequence = queues.waiting
    queues.waiting = sequence.next
    queues.n_waiting -= 1
    if queues.blocked == sequence:
        queues.blocked = NULL
    return sequence


cdef inline void drop_running(Queues* queues, uint32_t at) noexcept nogil:
    queues.n_running -= 1
    memmove(
        queues.running + at, queues.running + at + 1,
        (queues.n_running - at) * sizeof(Sequence*),
    )


cdef inline bint decodes(const Sequence* sequence) noexcept nogil:
    """Whether it has brought a token since it was admitted."""
    return sequence.generated > sequence.began_with


cdef inline bint holds_blocks(const Sequence* sequence) noexcept nogil:
    return sequence.held > 0 or sequence.partial


cdef inline uint32_t blocks_of(uint32_t tokens, uint32_t block_size) noexcept nogil:
    return tokens // block_size + (tokens % block_size > 0)
