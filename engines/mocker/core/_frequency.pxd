# _frequency.pxd: how often blocks were used, about: a count-min sketch that ages (TinyLFU).
#
# Four rows of counters up to 15; a block's frequency is the least of its four, so it is never too
# low for those since the last ageing, and rarely too high. Used by eviction "multi-lru", as Dynamo's
# block manager does: blocks are cold, warm, hot or very hot by it. Blocks that have left count on.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ....base.native._mix cimport splitmix64

cdef enum:
    ROWS = 4
    MOST = 15              # of a counter
    WARM = 3               # from here on, and so on
    HOT = 8
    VERY_HOT = 15
    USES_A_BLOCK = 10      # of the cache, after which all counters are halved
    LEAST_WIDTH = 16

cdef struct Frequencies:
    uint8_t* counters      # NULL: nothing is counted
    uint64_t mask          # of a row: its width less one
    uint64_t limit         # uses until the next halving
    uint64_t uses


cdef inline int frequencies_init(Frequencies* counts, uint32_t blocks) noexcept nogil:
    """Zeroed counters for a cache of `blocks`; -1: no memory, else 0."""
    cdef uint64_t width = LEAST_WIDTH
    while width < blocks:
        width *= 2
    counts.counters = <uint8_t*>calloc(ROWS * width, 1)
    counts.mask = width - 1
    counts.limit = <uint64_t>blocks * USES_A_BLOCK
    return -1 if counts.counters == NULL else 0


cdef inline void frequencies_free(Frequencies* counts) noexcept nogil:
    free(counts.counters)
    counts.counters = NULL


cdef inline uint8_t* counter_of(
    const Frequencies* counts, uint32_t row, uint64_t sequence_hash
) noexcept nogil:
    return &counts.counters[
        row * (counts.mask + 1) + (splitmix64(sequence_hash ^ row) & counts.mask)
    ]


cdef inline void frequencies_add(Frequencies* counts, uint64_t sequence_hash) noexcept nogil:
    """A block was used once more."""
    cdef uint32_t row
    cdef uint64_t i
    cdef uint8_t* counter
    cdef bint added = False
    if counts.counters == NULL:
        return
    for row in range(ROWS):
        counter = counter_of(counts, row, sequence_hash)
        if counter[0] < MOST:
            counter[0] += 1
            added = True
    counts.uses += added
    if counts.uses >= counts.limit:
        counts.uses //= 2
        for i in range(ROWS * (counts.mask + 1)):
            counts.counters[i] >>= 1


cdef inline uint8_t heat_of(const Frequencies* counts, uint64_t sequence_hash) noexcept nogil:
    """0 cold, 1 warm, 2 hot, 3 very hot; 0 where nothing is counted."""
    cdef uint32_t row, least = MOST
    if counts.counters == NULL:
        return 0
    for row in range(ROWS):
        least = min(least, <uint32_t>counter_of(counts, row, sequence_hash)[0])
    return (least >= WARM) + (least >= HOT) + (least >= VERY_HOT)
