"""KV events as C structs: what the decoder produces and the index applies."""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t

from ...base.native._memory cimport grown_capacity, vector_reserve, vector_resize
from ._reader cimport DECODE_NO_MEMORY, DECODE_OK, DECODE_TOO_LARGE


cdef enum:
    BATCH_TIERS = 4          # an engine that clears its cache clears each of them


cdef enum EventKind:
    EVENT_STORED = 0
    EVENT_REMOVED = 1
    EVENT_CLEARED = 2
    EVENT_HEARTBEAT = 3      # no event: event_id is that of the source's last one


cdef struct Event:
    uint64_t worker_id
    uint64_t event_id        # in the source's numbering
    uint64_t parent_hash     # an external hash; meaningful when has_parent
    uint32_t dp_rank
    uint32_t first           # offset of its blocks in the batch's arrays
    uint32_t count           # its blocks; 0 for cleared
    uint8_t kind             # EventKind
    uint8_t tier             # 0 device, 1 host_pinned, 2 disk, 3 external
    uint8_t has_parent       # of a stored event: whether it goes on below a block


cdef struct EventBatch:        # owned arrays, reused between messages
    Event* events
    uint32_t n_events
    size_t events_capacity     # of `events`
    uint64_t* external_hashes  # of stored and of removed blocks
    uint64_t* local_hashes     # of stored ones, aligned (unused for removed)
    uint32_t n_blocks
    size_t blocks_capacity     # of both arrays
    uint64_t publisher_id      # meaningful when has_envelope
    uint64_t sequence          # meaningful when has_envelope
    uint8_t has_envelope       # 0: the events came bare
    uint8_t topic              # Topic (_wire.pxd)


cdef inline int batch_reserve_blocks(EventBatch* batch, uint64_t more) noexcept nogil:
    """Capacity for `more` blocks beyond n_blocks: a DecodeError."""
    cdef uint64_t needed = batch.n_blocks + more
    cdef uint64_t capacity
    if needed <= batch.blocks_capacity:
        return DECODE_OK
    if needed > UINT32_MAX:
        return DECODE_TOO_LARGE
    capacity = grown_capacity(batch.blocks_capacity, needed)
    if not (
        vector_resize(&batch.external_hashes, capacity * sizeof(uint64_t))
        and vector_resize(&batch.local_hashes, capacity * sizeof(uint64_t))
    ):
        return DECODE_NO_MEMORY
    batch.blocks_capacity = capacity
    return DECODE_OK


cdef inline int batch_append_event(EventBatch* batch, const Event* event) noexcept nogil:
    """A DecodeError."""
    if batch.n_events == UINT32_MAX:
        return DECODE_TOO_LARGE
    if not vector_reserve(
        &batch.events, &batch.events_capacity, <uint64_t>batch.n_events + 1, sizeof(Event)
    ):
        return DECODE_NO_MEMORY
    batch.events[batch.n_events] = event[0]
    batch.n_events += 1
    return DECODE_OK


cdef inline int batch_append_cleared(EventBatch* batch, const Event* event) noexcept nogil:
    """One event for each tier, numbered from the event's own number on: a DecodeError."""
    cdef Event cleared = event[0]
    cdef int code = DECODE_OK
    cdef uint8_t tier
    cleared.kind = EVENT_CLEARED
    cleared.count = 0
    for tier in range(BATCH_TIERS):
        cleared.tier = tier
        if code == DECODE_OK:
            code = batch_append_event(batch, &cleared)
        cleared.event_id += 1
    return code
