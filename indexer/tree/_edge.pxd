"""An edge, and which worker covers how much of it.

A worker covers the first k blocks of an edge: 0 < k < len stands in `partial`, k == len is
membership of the full set. Few full workers are listed in the edge itself, more are a bitset.
A change that would leave a worker anything but a prefix splits the edge first.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from ...base.native._memory cimport (
    Memory,
    memory_release,
    memory_resize,
    memory_shrink,
    memory_zeroed,
)
from ...base.native._table cimport NONE
from ._tree cimport Edge, Span

cdef extern from * nogil:
    """
    /* Readers may set a mark while others read it: a byte, and any of them may win. */
    #define dr_mark_load(at) __atomic_load_n((at), __ATOMIC_RELAXED)
    #define dr_mark_store(at, value) __atomic_store_n((at), (value), __ATOMIC_RELAXED)
    """
    uint8_t mark_load "dr_mark_load" (const uint8_t*)
    void mark_store "dr_mark_store" (uint8_t*, uint8_t)
    int popcount64 "__builtin_popcountll" (unsigned long long)
    int lowest64 "__builtin_ctzll" (unsigned long long)

cdef enum:
    FEW = 4       # full workers listed in place
    # Marks of use: rounds of the clock that an edge survives (_evict.pxd).
    STORED = 1
    MATCHED = 2
    FRESH = 3     # of the event that fills the tree


cdef inline void edge_mark(Edge* edge, uint8_t mark) noexcept nogil:
    """Note a use, unless a greater one is noted. Readers change nothing else."""
    if mark_load(&edge.mark) < mark:
        mark_store(&edge.mark, mark)


cdef inline uint32_t span_capacity(uint32_t n) noexcept nogil:
    """Spans allocated for n of them."""
    cdef uint32_t capacity = 4
    if n == 0:
        return 0
    while capacity < n:
        capacity *= 2
    return capacity


cdef inline bint edge_is_full(const Edge* edge, uint32_t worker) noexcept nogil:
    cdef uint32_t i
    if edge.n_words != 0:
        if worker >> 6 >= edge.n_words:
            return False
        return (edge.full.words[worker >> 6] >> (worker & 63)) & 1
    for i in range(edge.n_full):
        if edge.full.few[i] == worker:
            return True
    return False


cdef inline uint64_t edge_full_word(const Edge* edge, uint32_t i) noexcept nogil:
    """Word i of the full set as a bitset."""
    cdef uint64_t word = 0
    cdef uint32_t k
    if edge.n_words != 0:
        return edge.full.words[i] if i < edge.n_words else 0
    for k in range(edge.n_full):
        if edge.full.few[k] >> 6 == i:
            word |= <uint64_t>1 << (edge.full.few[k] & 63)
    return word


cdef inline uint32_t edge_span(const Edge* edge, uint32_t worker) noexcept nogil:
    """The worker's index in `partial`, or NONE."""
    cdef uint32_t i
    for i in range(edge.n_partial):
        if edge.partial[i].worker == worker:
            return i
    return NONE


cdef inline uint32_t edge_coverage(const Edge* edge, uint32_t worker) noexcept nogil:
    """How many leading blocks of the edge the worker covers."""
    cdef uint32_t i
    if edge_is_full(edge, worker):
        return edge.len
    i = edge_span(edge, worker)
    return 0 if i == NONE else edge.partial[i].blocks


cdef inline uint32_t edge_deepest(const Edge* edge) noexcept nogil:
    """How many leading blocks any worker covers."""
    cdef uint32_t i
    cdef uint32_t deepest = 0
    if edge.n_full:
        return edge.len
    for i in range(edge.n_partial):
        if edge.partial[i].blocks > deepest:
            deepest = edge.partial[i].blocks
    return deepest


cdef inline bint full_reserve(
    Edge* edge, Memory* memory, uint32_t more, uint32_t highest
) noexcept nogil:
    """Capacity for `more` further full workers numbered up to `highest`."""
    cdef uint64_t* words
    cdef uint32_t n_words, i
    if edge.n_words == 0:
        if edge.n_full + more <= FEW:
            return True
        for i in range(edge.n_full):
            if edge.full.few[i] > highest:
                highest = edge.full.few[i]
        n_words = highest // 64 + 1
        words = <uint64_t*>memory_zeroed(memory, n_words * sizeof(uint64_t))
        if words == NULL:
            return False
        for i in range(edge.n_full):
            words[edge.full.few[i] >> 6] |= <uint64_t>1 << (edge.full.few[i] & 63)
        edge.full.words = words
        edge.n_words = n_words
    elif highest >> 6 >= edge.n_words:
        n_words = highest // 64 + 1
        words = <uint64_t*>memory_resize(
            memory, edge.full.words, edge.n_words * sizeof(uint64_t), n_words * sizeof(uint64_t)
        )
        if words == NULL:
            return False
        memset(words + edge.n_words, 0, (n_words - edge.n_words) * sizeof(uint64_t))
        edge.full.words = words
        edge.n_words = n_words
    return True


cdef inline void full_add(Edge* edge, uint32_t worker) noexcept nogil:
    """Capacity must have been reserved; the worker is not in yet."""
    if edge.n_words != 0:
        edge.full.words[worker >> 6] |= <uint64_t>1 << (worker & 63)
    else:
        edge.full.few[edge.n_full] = worker
    edge.n_full += 1


cdef inline void full_drop(Edge* edge, Memory* memory, uint32_t worker) noexcept nogil:
    """The worker is in. A bitset of FEW / 2 becomes a list again."""
    cdef uint64_t* words = edge.full.words
    cdef uint64_t word
    cdef uint32_t i
    edge.n_full -= 1
    if edge.n_words == 0:
        for i in range(edge.n_full):
            if edge.full.few[i] == worker:
                edge.full.few[i] = edge.full.few[edge.n_full]
                return
        return
    words[worker >> 6] &= ~(<uint64_t>1 << (worker & 63))
    if edge.n_full > FEW // 2:
        return
    edge.n_full = 0
    for i in range(edge.n_words):
        word = words[i]
        while word != 0:
            edge.full.few[edge.n_full] = 64 * i + lowest64(word)
            edge.n_full += 1
            word &= word - 1
    memory_release(memory, words, edge.n_words * sizeof(uint64_t))
    edge.n_words = 0


cdef inline bint span_add(
    Edge* edge, Memory* memory, uint32_t worker, uint32_t blocks
) noexcept nogil:
    """Add a worker that is not in `partial` yet; false if there is no memory."""
    cdef uint32_t capacity = span_capacity(edge.n_partial)
    cdef Span* grown
    if edge.n_partial == capacity:
        grown = <Span*>memory_resize(
            memory,
            edge.partial,
            capacity * sizeof(Span),
            span_capacity(edge.n_partial + 1) * sizeof(Span),
        )
        if grown == NULL:
            return False
        edge.partial = grown
    edge.partial[edge.n_partial].worker = worker
    edge.partial[edge.n_partial].blocks = blocks
    edge.n_partial += 1
    return True


cdef inline void span_drop(Edge* edge, Memory* memory, uint32_t i) noexcept nogil:
    cdef uint32_t old = span_capacity(edge.n_partial)
    cdef uint32_t new
    edge.n_partial -= 1
    edge.partial[i] = edge.partial[edge.n_partial]
    new = span_capacity(edge.n_partial)
    if new == 0:
        memory_release(memory, edge.partial, old * sizeof(Span))
        edge.partial = NULL
    elif new < old:
        edge.partial = <Span*>memory_shrink(
            memory, edge.partial, old * sizeof(Span), new * sizeof(Span)
        )


cdef inline bint edge_cover(
    Edge* edge, Memory* memory, uint32_t worker, uint32_t blocks
) noexcept nogil:
    """Set what the worker covers, 0 for nothing; false, and nothing changed, without memory."""
    cdef uint32_t i
    if edge_is_full(edge, worker):
        if blocks == edge.len:
            return True
        if blocks > 0 and not span_add(edge, memory, worker, blocks):
            return False
        full_drop(edge, memory, worker)
        return True
    i = edge_span(edge, worker)
    if blocks == edge.len:
        if not full_reserve(edge, memory, 1, worker):
            return False
        full_add(edge, worker)
        if i != NONE:
            span_drop(edge, memory, i)
    elif i == NONE:
        return blocks == 0 or span_add(edge, memory, worker, blocks)
    elif blocks == 0:
        span_drop(edge, memory, i)
    else:
        edge.partial[i].blocks = blocks
    return True


cdef inline void edge_uncover_all(Edge* edge, Memory* memory) noexcept nogil:
    if edge.n_words != 0:
        memory_release(memory, edge.full.words, edge.n_words * sizeof(uint64_t))
    memory_release(memory, edge.partial, span_capacity(edge.n_partial) * sizeof(Span))
    edge.partial = NULL
    edge.n_full = edge.n_words = edge.n_partial = 0


cdef inline bint edge_copy_full(Edge* edge, Memory* memory, const Edge* source) noexcept nogil:
    """Give an edge without coverage the full set of another."""
    cdef uint64_t* words
    if source.n_words != 0:
        words = <uint64_t*>memory_zeroed(memory, source.n_words * sizeof(uint64_t))
        if words == NULL:
            return False
        memcpy(words, source.full.words, source.n_words * sizeof(uint64_t))
        edge.full.words = words
    else:
        edge.full = source.full
    edge.n_words = source.n_words
    edge.n_full = source.n_full
    return True


cdef inline bint edge_same_full(const Edge* one, const Edge* other) noexcept nogil:
    """Whether both have the same full set."""
    cdef uint32_t i
    cdef uint64_t word
    if one.n_full != other.n_full:
        return False
    if one.n_words == 0:
        for i in range(one.n_full):
            if not edge_is_full(other, one.full.few[i]):
                return False
        return True
    for i in range(one.n_words):
        word = one.full.words[i]
        if other.n_words == 0:
            while word != 0:
                if not edge_is_full(other, 64 * i + lowest64(word)):
                    return False
                word &= word - 1
        elif word != (other.full.words[i] if i < other.n_words else 0):
            return False
    return True


cdef inline bint edge_divide(
    const Edge* edge, Memory* memory, uint32_t at, Edge* upper, Edge* lower
) noexcept nogil:
    """Share the coverage of an edge out to its halves [0, at) and [at, len), both without any.

    False without memory; then the halves have none again.
    """
    cdef uint32_t i, blocks, highest = 0, reaching = 0
    cdef bint good
    for i in range(edge.n_partial):
        if edge.partial[i].blocks >= at:
            reaching += 1
            if edge.partial[i].worker > highest:
                highest = edge.partial[i].worker
    good = edge_copy_full(upper, memory, edge) and edge_copy_full(lower, memory, edge)
    if good and reaching != 0:
        good = full_reserve(upper, memory, reaching, highest)
    for i in range(edge.n_partial):
        if not good:
            break
        blocks = edge.partial[i].blocks
        if blocks < at:
            good = span_add(upper, memory, edge.partial[i].worker, blocks)
        else:
            full_add(upper, edge.partial[i].worker)
            if blocks > at:
                good = span_add(lower, memory, edge.partial[i].worker, blocks - at)
    if not good:
        edge_uncover_all(upper, memory)
        edge_uncover_all(lower, memory)
    return good


cdef inline bint edge_reserve_truncation(
    Edge* edge, Memory* memory, uint32_t blocks
) noexcept nogil:
    """Capacity for all who would cover the whole of it if the edge were that long."""
    cdef uint32_t i, highest = 0, reaching = 0
    for i in range(edge.n_partial):
        if edge.partial[i].blocks >= blocks:
            reaching += 1
            if edge.partial[i].worker > highest:
                highest = edge.partial[i].worker
    return reaching == 0 or full_reserve(edge, memory, reaching, highest)


cdef inline bint edge_truncate(Edge* edge, Memory* memory, uint32_t blocks) noexcept nogil:
    """Make an edge that long, above 0; who covered more covers all of it then. False without
    memory, which does not happen once it is reserved."""
    cdef uint32_t i = 0
    if not edge_reserve_truncation(edge, memory, blocks):
        return False
    edge.len = blocks
    while i < edge.n_partial:
        if edge.partial[i].blocks >= blocks:
            full_add(edge, edge.partial[i].worker)
            span_drop(edge, memory, i)
        else:
            i += 1
    return True
