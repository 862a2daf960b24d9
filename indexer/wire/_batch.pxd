# _batch.pxd: growing an EventBatch. Only the codecs write into one.
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t
from libc.stdlib cimport realloc

from ._events cimport Event, EventBatch
from ._reader cimport DECODE_NO_MEMORY, DECODE_OK, DECODE_TOO_LARGE


cdef inline uint32_t grown(uint32_t capacity, uint64_t needed) noexcept nogil:
    """A capacity for `needed` items, at least doubled so that growing stays linear."""
    cdef uint64_t capacity_64 = max(<uint64_t>capacity * 2, needed, <uint64_t>16)
    return <uint32_t>min(capacity_64, <uint64_t>UINT32_MAX)


cdef inline int reserve_blocks(EventBatch* batch, uint64_t more) noexcept nogil:
    """Room for this many blocks beyond n_blocks."""
    cdef uint64_t needed = batch.n_blocks + more
    cdef uint64_t* array
    cdef uint32_t capacity
    if needed <= batch.blocks_capacity:
        return DECODE_OK
    if needed > UINT32_MAX:
        return DECODE_TOO_LARGE
    capacity = grown(batch.blocks_capacity, needed)
    array = <uint64_t*>realloc(batch.block_hashes, capacity * sizeof(uint64_t))
    if array == NULL:
        return DECODE_NO_MEMORY
    batch.block_hashes = array
    array = <uint64_t*>realloc(batch.local_hashes, capacity * sizeof(uint64_t))
    if array == NULL:
        return DECODE_NO_MEMORY  # block_hashes is larger than the capacity says: harmless
    batch.local_hashes = array
    batch.blocks_capacity = capacity
    return DECODE_OK


cdef inline int append_event(EventBatch* batch, const Event* event) noexcept nogil:
    cdef Event* array
    cdef uint32_t capacity
    if batch.n_events == batch.events_capacity:
        if batch.n_events == UINT32_MAX:
            return DECODE_TOO_LARGE
        capacity = grown(batch.events_capacity, <uint64_t>batch.n_events + 1)
        array = <Event*>realloc(batch.events, capacity * sizeof(Event))
        if array == NULL:
            return DECODE_NO_MEMORY
        batch.events = array
        batch.events_capacity = capacity
    batch.events[batch.n_events] = event[0]
    batch.n_events += 1
    return DECODE_OK
