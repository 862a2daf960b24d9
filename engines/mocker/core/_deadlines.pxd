# _deadlines.pxd: which cached block's level ends next: a binary heap by time.
#
# What is in it may be outdated, for nothing is taken out before its time; the pool knows. It has
# room for twice the blocks of its pool, so that the pool, where it is full, finds half to drop.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cdef struct Deadline:
    double at
    uint64_t order         # of those of one time, the least comes first
    uint32_t id            # of the block

cdef struct Deadlines:
    Deadline* heap
    uint32_t length
    uint32_t capacity


cdef inline int deadlines_reserve(Deadlines* deadlines, uint32_t capacity) noexcept nogil:
    """Room for so many, once and for all: 0; -1: no memory."""
    if deadlines.heap != NULL:
        return 0
    deadlines.heap = <Deadline*>malloc(capacity * sizeof(Deadline))
    deadlines.capacity = capacity
    return -1 if deadlines.heap == NULL else 0


cdef inline void deadlines_free(Deadlines* deadlines) noexcept nogil:
    free(deadlines.heap)
    deadlines.heap = NULL
    deadlines.length = 0


cdef inline bint is_before(const Deadline* one, const Deadline* other) noexcept nogil:
    return one.at < other.at or (one.at == other.at and one.order < other.order)


cdef inline void deadlines_push(Deadlines* deadlines, Deadline due) noexcept nogil:
    """There is room for it."""
    cdef Deadline* heap = deadlines.heap
    cdef uint32_t place = deadlines.length, above
    deadlines.length += 1
    while place:
        above = (place - 1) // 2
        if not is_before(&due, &heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = due


cdef inline void deadlines_sift(Deadlines* deadlines, uint32_t place) noexcept nogil:
    """Restore the heap where the one at `place` may be too near its top."""
    cdef Deadline* heap = deadlines.heap
    cdef Deadline due = heap[place]
    cdef uint32_t below
    while True:
        below = 2 * place + 1
        if below >= deadlines.length:
            break
        if below + 1 < deadlines.length and is_before(&heap[below + 1], &heap[below]):
            below += 1
        if not is_before(&heap[below], &due):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = due


cdef inline Deadline deadlines_pop(Deadlines* deadlines) noexcept nogil:
    """The next one, of at least one."""
    cdef Deadline due = deadlines.heap[0]
    deadlines.length -= 1
    if deadlines.length:
        deadlines.heap[0] = deadlines.heap[deadlines.length]
        deadlines_sift(deadlines, 0)
    return due
