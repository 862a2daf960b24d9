# _held.pxd: the events of one source that wait behind a gap, in the order of their ids.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from ..wire._events cimport EVENT_STORED, Event


cdef enum HeldStatus:
    HELD_KEPT = 0
    HELD_KNOWN = 1         # an event of this id waits already
    HELD_FULL = 2          # the budget or the memory is used up


cdef struct Budget:        # of all sources together
    uint64_t events        # waiting
    uint64_t blocks        # in those
    uint64_t max_events    # 0: nobody asks for missing events, so none may wait
    uint64_t max_blocks


cdef struct HeldEvent:
    Event event
    uint64_t* hashes       # owned: its block hashes and, of a stored one, as many local hashes


cdef struct Held:
    HeldEvent* events      # by id, no id twice
    uint32_t count
    uint32_t room


cdef inline uint32_t held_place(const Held* held, uint64_t event_id) noexcept nogil:
    """Where an event of this id stands or belongs. Mostly at the end."""
    cdef uint32_t i = held.count
    while i > 0 and held.events[i - 1].event.event_id >= event_id:
        i -= 1
    return i


cdef inline int held_put(
    Held* held, Budget* budget, const Event* event, const uint64_t* blocks,
    const uint64_t* locals_,
) noexcept nogil:
    """Keep a copy of an event: a HeldStatus."""
    cdef uint32_t place = held_place(held, event.event_id)
    cdef uint32_t room
    cdef size_t size = event.count * sizeof(uint64_t)
    cdef HeldEvent* grown
    cdef HeldEvent new
    if place < held.count and held.events[place].event.event_id == event.event_id:
        return HELD_KNOWN
    if budget.events >= budget.max_events or budget.blocks + event.count > budget.max_blocks:
        return HELD_FULL
    if held.count == held.room:
        room = held.room * 2 + 8
        grown = <HeldEvent*>realloc(held.events, room * sizeof(HeldEvent))
        if grown == NULL:
            return HELD_FULL
        held.events = grown
        held.room = room
    new.event = event[0]
    new.hashes = <uint64_t*>malloc(2 * size + 1)
    if new.hashes == NULL:
        return HELD_FULL
    if event.count:
        memcpy(new.hashes, blocks, size)
        if event.kind == EVENT_STORED:
            memcpy(new.hashes + event.count, locals_, size)
    memmove(
        held.events + place + 1, held.events + place, (held.count - place) * sizeof(HeldEvent)
    )
    held.events[place] = new
    held.count += 1
    budget.events += 1
    budget.blocks += event.count
    return HELD_KEPT


cdef inline void held_drop(Held* held, Budget* budget, uint32_t n) noexcept nogil:
    """Let go of the first n; with the last one the array goes too."""
    cdef uint32_t i
    for i in range(n):
        budget.events -= 1
        budget.blocks -= held.events[i].event.count
        free(held.events[i].hashes)
    held.count -= n
    if held.count:
        memmove(held.events, held.events + n, held.count * sizeof(HeldEvent))
    else:
        free(held.events)
        held.events = NULL
        held.room = 0


cdef inline uint32_t held_last_run(const Held* held) noexcept nogil:
    """Where the unbroken run begins that ends with the last event. There must be one."""
    cdef uint32_t i = held.count - 1
    while i > 0 and held.events[i - 1].event.event_id + 1 == held.events[i].event.event_id:
        i -= 1
    return i
