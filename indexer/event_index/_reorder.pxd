"""Events that wait behind a gap of their source, until the missing ones came or are given up.

A heap by event id, and a set of the ids in it: whatever order n events come in, putting them in
and taking them out again costs O(n log n). Event 0 never waits, for nothing comes before it.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from ...base.native._memory cimport vector_reserve
from ...base.native._mix cimport splitmix64
from ..wire._events cimport EVENT_STORED, Event

cdef enum:
    LEAST_SLOTS = 16           # of an IdSet in use


cdef enum ReorderStatus:
    REORDER_KEPT = 0
    REORDER_KNOWN = 1          # an event of this id waits already
    REORDER_FULL = 2           # the budget or the memory is used up


cdef struct ReorderBudget:     # of all sources together
    uint64_t events            # waiting
    uint64_t blocks            # in those
    uint64_t max_events        # 0: missing events are not asked for, so none may wait
    uint64_t max_blocks        # in all events that wait
    uint64_t seed              # of the sets' hashes, so that no publisher knows which ids collide


cdef struct IdSet:             # open addressing; 0 is an empty slot
    uint64_t* slots            # capacity of them; owned
    uint64_t mask              # capacity - 1; capacity is a power of two
    uint32_t count             # at most half of the capacity


cdef struct ParkedEvent:
    Event event
    uint64_t sequence          # of its envelope
    uint64_t* hashes           # owned: its external hashes and, of a stored one, as many local hashes


cdef struct ReorderBuffer:
    ParkedEvent* heap          # the least event id first; owned
    uint32_t count
    size_t capacity            # of `heap`
    IdSet ids                  # of the events in it


# Ids ---------------------------------------------------------------------------------------------

cdef inline uint64_t* id_slot(const IdSet* ids, uint64_t seed, uint64_t id) noexcept nogil:
    """Where an id is, or belongs. There must be slots."""
    cdef uint64_t at = splitmix64(id ^ seed) & ids.mask
    while ids.slots[at] != 0 and ids.slots[at] != id:
        at = (at + 1) & ids.mask
    return &ids.slots[at]


cdef inline bint ids_have(const IdSet* ids, uint64_t seed, uint64_t id) noexcept nogil:
    return id != 0 and ids.slots != NULL and id_slot(ids, seed, id)[0] == id


cdef inline bint ids_reserve(IdSet* ids, uint64_t seed) noexcept nogil:
    """Room for one more; false without memory."""
    cdef IdSet new
    cdef uint64_t i
    if ids.slots != NULL and 2 * (<uint64_t>ids.count + 1) <= ids.mask + 1:
        return True
    new.mask = LEAST_SLOTS - 1 if ids.slots == NULL else 2 * ids.mask + 1
    new.count = ids.count
    new.slots = <uint64_t*>calloc(new.mask + 1, sizeof(uint64_t))
    if new.slots == NULL:
        return False
    if ids.slots != NULL:
        for i in range(ids.mask + 1):
            if ids.slots[i] != 0:
                id_slot(&new, seed, ids.slots[i])[0] = ids.slots[i]
        free(ids.slots)
    ids[0] = new
    return True


cdef inline void ids_remove(IdSet* ids, uint64_t seed, uint64_t id) noexcept nogil:
    """Take out an id that is there, and move back what probed past it."""
    cdef uint64_t hole = id_slot(ids, seed, id) - ids.slots
    cdef uint64_t at = hole
    cdef uint64_t home
    while True:
        at = (at + 1) & ids.mask
        if ids.slots[at] == 0:
            break
        home = splitmix64(ids.slots[at] ^ seed) & ids.mask
        if ((at - home) & ids.mask) >= ((at - hole) & ids.mask):
            ids.slots[hole] = ids.slots[at]
            hole = at
    ids.slots[hole] = 0
    ids.count -= 1


# Events ------------------------------------------------------------------------------------------

cdef inline uint64_t parked_id(const ReorderBuffer* buffer, uint32_t at) noexcept nogil:
    return buffer.heap[at].event.event_id


cdef inline void reorder_rise(ReorderBuffer* buffer, uint32_t at) noexcept nogil:
    """Move the last event up to its place."""
    cdef ParkedEvent moving = buffer.heap[at]
    cdef uint32_t above
    while at > 0:
        above = (at - 1) // 2
        if parked_id(buffer, above) < moving.event.event_id:
            break
        buffer.heap[at] = buffer.heap[above]
        at = above
    buffer.heap[at] = moving


cdef inline void reorder_sink(ReorderBuffer* buffer) noexcept nogil:
    """Move the first event down to its place."""
    cdef ParkedEvent moving = buffer.heap[0]
    cdef uint64_t at = 0
    cdef uint64_t below = 1
    while below < buffer.count:
        if below + 1 < buffer.count and parked_id(buffer, below + 1) < parked_id(buffer, below):
            below += 1
        if moving.event.event_id < parked_id(buffer, below):
            break
        buffer.heap[at] = buffer.heap[below]
        at = below
        below = 2 * at + 1
    buffer.heap[at] = moving


cdef inline int reorder_put(
    ReorderBuffer* buffer,
    ReorderBudget* budget,
    const Event* event,
    uint64_t sequence,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
) noexcept nogil:
    """Keep a copy of an event: a ReorderStatus."""
    cdef size_t size = event.count * sizeof(uint64_t)
    cdef ParkedEvent* new
    cdef uint64_t* hashes
    if ids_have(&buffer.ids, budget.seed, event.event_id):
        return REORDER_KNOWN
    if budget.events >= budget.max_events or budget.blocks + event.count > budget.max_blocks:
        return REORDER_FULL
    if not ids_reserve(&buffer.ids, budget.seed) or not vector_reserve(
        &buffer.heap, &buffer.capacity, <uint64_t>buffer.count + 1, sizeof(ParkedEvent)
    ):
        return REORDER_FULL
    hashes = <uint64_t*>malloc(2 * size + 1)
    if hashes == NULL:
        return REORDER_FULL
    if event.count:
        memcpy(hashes, external_hashes, size)
        if event.kind == EVENT_STORED:
            memcpy(hashes + event.count, local_hashes, size)
    new = buffer.heap + buffer.count
    new.event = event[0]
    new.sequence = sequence
    new.hashes = hashes
    id_slot(&buffer.ids, budget.seed, event.event_id)[0] = event.event_id
    buffer.ids.count += 1
    buffer.count += 1
    budget.events += 1
    budget.blocks += event.count
    reorder_rise(buffer, buffer.count - 1)
    return REORDER_KEPT


cdef inline void reorder_drop_first(ReorderBuffer* buffer, ReorderBudget* budget) noexcept nogil:
    """Let go of the event with the least id; with the last one the arrays go too."""
    cdef ParkedEvent* first = buffer.heap
    budget.events -= 1
    budget.blocks -= first.event.count
    ids_remove(&buffer.ids, budget.seed, first.event.event_id)
    free(first.hashes)
    buffer.count -= 1
    if buffer.count:
        buffer.heap[0] = buffer.heap[buffer.count]
        reorder_sink(buffer)
    else:
        free(buffer.heap)
        free(buffer.ids.slots)
        memset(buffer, 0, sizeof(ReorderBuffer))


cdef inline void reorder_drop_below(
    ReorderBuffer* buffer, ReorderBudget* budget, uint64_t event_id
) noexcept nogil:
    """Let go of the events with smaller ids."""
    while buffer.count and buffer.heap[0].event.event_id < event_id:
        reorder_drop_first(buffer, budget)


cdef inline void reorder_clear(ReorderBuffer* buffer, ReorderBudget* budget) noexcept nogil:
    """Let go of all."""
    cdef uint32_t i
    for i in range(buffer.count):
        budget.blocks -= buffer.heap[i].event.count
        free(buffer.heap[i].hashes)
    budget.events -= buffer.count
    free(buffer.heap)
    free(buffer.ids.slots)
    memset(buffer, 0, sizeof(ReorderBuffer))


cdef inline uint64_t reorder_run(
    const ReorderBuffer* buffer, const ReorderBudget* budget, uint64_t last
) noexcept nogil:
    """The first id of the unbroken run of events that ends with `last`; last + 1 if that one does
    not wait."""
    while ids_have(&buffer.ids, budget.seed, last):
        last -= 1
    return last + 1
