"""Requests and loads, by worker number. Used by the `_sequences` kernel; see _book.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from ..base.native._mix cimport GOLDEN, splitmix64
from ._blocks cimport (
    WHOLE,
    Block,
    Blocks,
    Holder,
    block_holders,
    blocks_find,
    blocks_free,
    blocks_acquire,
    blocks_clear,
    blocks_holder,
    blocks_init,
    blocks_prefetch,
    blocks_release,
    blocks_reserve,
)

cdef enum:
    PREFETCH = 8            # hashes looked ahead
    CLEARED_FOR_EACH = 8    # slots of the table, where it is emptied in place of each block's release


cdef int book_init(Book* book) except -1 nogil:
    memset(book, 0, sizeof(Book))
    blocks_init(&book.blocks)
    book.free = book.oldest = book.youngest = NONE
    book.latest = -1e300
    book.block_size = 1
    return 0


cdef void book_free(Book* book) noexcept nogil:
    cdef uint32_t record
    for record in range(book.used):
        free(book.requests[record].hashes)  # NULL in free records
    free(book.requests)
    free(book.loads)
    blocks_free(&book.blocks)


cdef int book_loads(Book* book, uint32_t n) noexcept nogil:
    cdef uint32_t capacity = max(book.loads_capacity, 8)
    cdef Load* loads
    while capacity < n:
        capacity *= 2
    if capacity > book.loads_capacity:
        loads = <Load*>realloc(book.loads, capacity * sizeof(Load))
        if loads == NULL:
            return -1
        book.loads = loads
        book.loads_capacity = capacity
    while book.n_loads < n:
        memset(&book.loads[book.n_loads], 0, sizeof(Load))
        book.loads[book.n_loads].first = book.loads[book.n_loads].last = NONE
        book.n_loads += 1
    return 0


cdef uint32_t book_add(
    Book* book,
    uint32_t worker,
    const uint64_t* hashes,
    uint32_t count,
    uint32_t isl,
    uint32_t prefill_tokens,
    uint32_t expected,
) noexcept nogil:
    cdef Load* load = &book.loads[worker]
    cdef Request* request
    cdef uint32_t record, i
    cdef uint64_t* own = NULL
    if blocks_reserve(&book.blocks, count) < 0:
        return NONE
    if count:
        own = <uint64_t*>malloc(count * sizeof(uint64_t))
        if own == NULL:
            return NONE
        memcpy(own, hashes, count * sizeof(uint64_t))
    record = take_record(book)
    if record == NONE:
        free(own)
        return NONE
    for i in range(count):
        if i + PREFETCH < count:
            blocks_prefetch(&book.blocks, own[i + PREFETCH])
        if acquire_block(book, worker, own[i]) < 0:
            release_blocks(book, worker, own, i)
            free(own)
            give_record(book, record)
            return NONE
    request = &book.requests[record]
    request.hashes = own
    request.n_hashes = request.capacity = count
    request.worker = worker
    request.prefill_tokens = prefill_tokens
    request.isl = isl
    request.expected = expected
    request.seen_blocks = blocks_of(book, isl)
    load.prefill_tokens += prefill_tokens
    load.requests += 1
    book.entries += 1 + count
    book.live += 1
    link_to_worker(book, record)
    link_youngest(book, record)
    return record


cdef void book_release(Book* book, uint32_t record) noexcept nogil:
    cdef Request* request = &book.requests[record]
    cdef Load* load = &book.loads[request.worker]
    if book.live == 1 and request.n_hashes * <uint64_t>CLEARED_FOR_EACH >= book.blocks.capacity:
        blocks_clear(&book.blocks)  # all of them are its own
        load.blocks = load.loss = 0
    else:
        release_blocks(book, request.worker, request.hashes, request.n_hashes)
    book_complete_prefill(book, record)
    load.requests -= 1
    book.entries -= 1 + request.n_hashes
    book.live -= 1
    unlink_by_age(book, record)
    if request.before == NONE:
        load.first = request.after
    else:
        book.requests[request.before].after = request.after
    if request.after == NONE:
        load.last = request.before
    else:
        book.requests[request.after].before = request.before
    free(request.hashes)
    give_record(book, record)


cdef void book_complete_prefill(Book* book, uint32_t record) noexcept nogil:
    cdef Request* request = &book.requests[record]
    book.loads[request.worker].prefill_tokens -= request.prefill_tokens
    request.prefill_tokens = 0


cdef int book_output(Book* book, uint32_t record, uint32_t generated) noexcept nogil:
    cdef Request* request = &book.requests[record]
    cdef Load* load = &book.loads[request.worker]
    cdef uint64_t total = blocks_of(book, <uint64_t>request.isl + generated)
    cdef uint64_t* hashes
    cdef uint64_t hash
    cdef uint32_t capacity, loss, i
    cdef Holder* holder
    if total <= request.seen_blocks:
        return OUTPUT_SAME
    if book.entries >= book.max_entries:
        request.seen_blocks = total
        return OUTPUT_REFUSED
    if request.n_hashes == request.capacity:
        capacity = request.capacity + request.capacity // 2 + 4
        hashes = <uint64_t*>realloc(request.hashes, capacity * sizeof(uint64_t))
        if hashes == NULL:
            return OUTPUT_NO_MEMORY
        request.hashes = hashes
        request.capacity = capacity
    hash = book_fresh_hash(book)
    if blocks_reserve(&book.blocks, 1) < 0 or acquire_block(book, request.worker, hash) < 0:
        return OUTPUT_NO_MEMORY
    request.seen_blocks = total
    request.hashes[request.n_hashes] = hash
    request.n_hashes += 1
    book.entries += 1
    if request.expected == 0:
        return OUTPUT_GROWN
    loss = WHOLE
    if generated < request.expected:
        loss = <uint32_t>(<uint64_t>generated * WHOLE // request.expected)
    for i in range(request.n_hashes):
        if i + PREFETCH < request.n_hashes:
            blocks_prefetch(&book.blocks, request.hashes[i + PREFETCH])
        holder = blocks_holder(&book.blocks, request.hashes[i], request.worker)
        if holder.refs == 1:
            load.loss += <int64_t>loss - holder.loss
            holder.loss = loss
    return OUTPUT_GROWN


cdef void book_touch(Book* book, uint32_t record) noexcept nogil:
    unlink_by_age(book, record)
    link_youngest(book, record)


cdef int acquire_block(Book* book, uint32_t worker, uint64_t hash) noexcept nogil:
    """One more reference of a worker to a block; -1 without memory for it."""
    cdef Holder* holder = blocks_acquire(&book.blocks, hash, worker)
    if holder == NULL:
        return -1
    if holder.refs == 1:
        book.loads[worker].blocks += 1
    else:
        # A shared block weighs one: the other request will hold it for its own whole life.
        book.loads[worker].loss -= holder.loss
        holder.loss = 0
    return 0


cdef void release_blocks(
    Book* book, uint32_t worker, const uint64_t* hashes, uint32_t count
) noexcept nogil:
    cdef uint32_t i
    cdef uint32_t loss = 0
    for i in range(count):
        if i + PREFETCH < count:
            blocks_prefetch(&book.blocks, hashes[i + PREFETCH])
        if blocks_release(&book.blocks, hashes[i], worker, &loss):
            book.loads[worker].blocks -= 1
            book.loads[worker].loss -= loss


cdef void book_potential(
    const Book* book, const uint64_t* hashes, int64_t count, double* potential, uint32_t n
) noexcept nogil:
    cdef const Blocks* blocks = &book.blocks
    cdef Block* block
    cdef Holder* holders
    cdef int64_t i
    cdef uint32_t at
    memset(potential, 0, n * sizeof(double))  # counts those that it holds first
    for i in range(count if blocks.count else 0):
        if i + PREFETCH < count:
            blocks_prefetch(blocks, hashes[i + PREFETCH])
        block = blocks_find(blocks, hashes[i])
        if block != NULL:
            holders = block_holders(block)
            for at in range(block.count):
                if holders[at].worker >= n:  # they are sorted
                    break
                potential[holders[at].worker] += 1
    for at in range(n):
        potential[at] = load_blocks(&book.loads[at]) + (count - potential[at])


cdef int64_t book_potential_of(
    const Book* book, const uint64_t* hashes, int64_t count, uint32_t worker
) noexcept nogil:
    cdef const Blocks* blocks = &book.blocks
    cdef int64_t held = 0
    cdef int64_t i
    for i in range(count if blocks.count else 0):
        if i + PREFETCH < count:
            blocks_prefetch(blocks, hashes[i + PREFETCH])
        held += blocks_holder(&book.blocks, hashes[i], worker) != NULL
    return load_blocks(&book.loads[worker]) + (count - held)


cdef uint64_t blocks_of(const Book* book, uint64_t tokens) noexcept nogil:
    return (tokens + book.block_size - 1) // book.block_size


cdef uint64_t book_fresh_hash(Book* book) noexcept nogil:
    # A counter through a bijection: no two of them are one hash.
    book.fresh += 1
    return splitmix64((book.fresh - 1) * GOLDEN)


cdef uint32_t take_record(Book* book) noexcept nogil:
    """A record out of the arena, not linked anywhere; NONE if there is no memory."""
    cdef uint32_t record = book.free
    cdef uint32_t capacity
    cdef Request* requests
    if record != NONE:
        book.free = book.requests[record].younger
        return record
    if book.used == book.requests_capacity:
        capacity = max(MIN_REQUESTS, 2 * book.requests_capacity)
        requests = <Request*>realloc(book.requests, capacity * sizeof(Request))
        if requests == NULL:
            return NONE
        book.requests = requests
        book.requests_capacity = capacity
    book.used += 1
    book.requests[book.used - 1].hashes = NULL
    return book.used - 1


cdef void give_record(Book* book, uint32_t record) noexcept nogil:
    book.requests[record].hashes = NULL
    book.requests[record].younger = book.free
    book.free = record


cdef int book_compact(Book* book) noexcept nogil:
    cdef Request* old = book.requests
    cdef uint32_t capacity = max(MIN_REQUESTS, 2 * book.live)
    cdef Request* requests = <Request*>malloc(capacity * sizeof(Request))
    cdef uint32_t record = book.oldest
    cdef uint32_t number
    if requests == NULL:
        return -1
    for number in range(book.n_loads):
        book.loads[number].first = book.loads[number].last = NONE
    book.requests = requests
    book.requests_capacity = capacity
    book.oldest = book.youngest = book.free = NONE
    book.used = 0
    while record != NONE:
        requests[book.used] = old[record]
        link_to_worker(book, book.used)
        link_by_age(book, book.used)
        book.used += 1
        record = old[record].younger
    free(old)
    return 0


cdef void link_to_worker(Book* book, uint32_t record) noexcept nogil:
    cdef Load* load = &book.loads[book.requests[record].worker]
    book.requests[record].before = load.last
    book.requests[record].after = NONE
    if load.last == NONE:
        load.first = record
    else:
        book.requests[load.last].after = record
    load.last = record


cdef void link_youngest(Book* book, uint32_t record) noexcept nogil:
    book.requests[record].booked_at = book.latest
    link_by_age(book, record)


cdef void link_by_age(Book* book, uint32_t record) noexcept nogil:
    book.requests[record].older = book.youngest
    book.requests[record].younger = NONE
    if book.youngest == NONE:
        book.oldest = record
    else:
        book.requests[book.youngest].younger = record
    book.youngest = record


cdef void unlink_by_age(Book* book, uint32_t record) noexcept nogil:
    cdef Request* request = &book.requests[record]
    if request.older == NONE:
        book.oldest = request.younger
    else:
        book.requests[request.older].younger = request.younger
    if request.younger == NONE:
        book.youngest = request.older
    else:
        book.requests[request.younger].older = request.older
