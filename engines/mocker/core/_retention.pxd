# _retention.pxd: which of a request's blocks an engine is asked to keep, for how long.
from libc.math cimport INFINITY
from libc.stdint cimport uint16_t, uint32_t
from libc.stdlib cimport free, malloc

from ._pool cimport HEATS

cdef struct Span:          # of a request's blocks
    uint32_t first
    uint32_t end           # the first that is not in it
    uint16_t level         # at which they are let go of, at heat 0: see _pool.pxd
    double seconds         # that a level above the usual one lasts

cdef struct Retention:
    Span* spans            # of those that have a block the first counts
    uint32_t length
    bint ends              # whether any level does


cdef inline int read_retention(Retention* retention, object spans) except -1:
    """From rows of (first block, end, priority 0 to 100, seconds); None: nobody said."""
    cdef Span* span
    retention.spans = NULL
    retention.length = 0
    retention.ends = False
    if not spans:
        return 0
    retention.spans = <Span*>malloc(len(spans) * sizeof(Span))
    if retention.spans == NULL:
        raise MemoryError
    for first, end, level, seconds in spans:
        span = &retention.spans[retention.length]
        span.first, span.end, span.seconds = first, end, seconds
        span.level = level * HEATS
        retention.ends = retention.ends or seconds < INFINITY
        retention.length += 1
    return 0


cdef inline void retention_free(Retention* retention) noexcept nogil:
    free(retention.spans)
    retention.spans = NULL
    retention.length = 0


cdef inline const Span* span_of(const Retention* retention, uint32_t block) noexcept nogil:
    """What is asked for a block; NULL: nothing."""
    cdef uint32_t i
    for i in range(retention.length):
        if retention.spans[i].first <= block < retention.spans[i].end:
            return &retention.spans[i]
    return NULL
