"""The sources of events, by the tree's worker numbers, and what waits behind a gap of each."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from ...runtime.native._memory cimport vector_reserve
from ..wire._events cimport EVENT_STORED, Event
from ._cursor cimport SOURCE_EXACT, SOURCE_SILENT, EventCursor, cursor_has_gap


cdef enum ReorderStatus:
    REORDER_KEPT = 0
    REORDER_KNOWN = 1         # an event of this id waits already
    REORDER_FULL = 2          # the budget or the memory is used up


cdef struct ReorderBudget: # of all sources together
    uint64_t events        # waiting
    uint64_t blocks        # in those
    uint64_t max_events    # 0: nobody asks for missing events, so none may wait
    uint64_t max_blocks    # in all events that wait


cdef struct ParkedEvent:
    Event event
    uint64_t* hashes       # owned: its external hashes and, of a stored one, as many local hashes


cdef struct ReorderBuffer:
    ParkedEvent* events    # in the order of their ids, no id twice; owned
    uint32_t count
    size_t capacity        # of `events`


cdef inline uint32_t reorder_position(
    const ReorderBuffer* buffer, uint64_t event_id
) noexcept nogil:
    """Where an event of this id stands or belongs. Mostly at the end."""
    cdef uint32_t i = buffer.count
    while i > 0 and buffer.events[i - 1].event.event_id >= event_id:
        i -= 1
    return i


cdef inline int reorder_put(
    ReorderBuffer* buffer,
    ReorderBudget* budget,
    const Event* event,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
) noexcept nogil:
    """Keep a copy of an event: a ReorderStatus."""
    cdef uint32_t at = reorder_position(buffer, event.event_id)
    cdef size_t size = event.count * sizeof(uint64_t)
    cdef ParkedEvent new
    if at < buffer.count and buffer.events[at].event.event_id == event.event_id:
        return REORDER_KNOWN
    if budget.events >= budget.max_events or budget.blocks + event.count > budget.max_blocks:
        return REORDER_FULL
    if not vector_reserve(
        &buffer.events, &buffer.capacity, <uint64_t>buffer.count + 1, sizeof(ParkedEvent)
    ):
        return REORDER_FULL
    new.event = event[0]
    new.hashes = <uint64_t*>malloc(2 * size + 1)
    if new.hashes == NULL:
        return REORDER_FULL
    if event.count:
        memcpy(new.hashes, external_hashes, size)
        if event.kind == EVENT_STORED:
            memcpy(new.hashes + event.count, local_hashes, size)
    memmove(
        buffer.events + at + 1, buffer.events + at, (buffer.count - at) * sizeof(ParkedEvent)
    )
    buffer.events[at] = new
    buffer.count += 1
    budget.events += 1
    budget.blocks += event.count
    return REORDER_KEPT


cdef inline void reorder_drop(
    ReorderBuffer* buffer, ReorderBudget* budget, uint32_t n
) noexcept nogil:
    """Let go of the first n; with the last one the array goes too."""
    cdef uint32_t i
    for i in range(n):
        budget.events -= 1
        budget.blocks -= buffer.events[i].event.count
        free(buffer.events[i].hashes)
    buffer.count -= n
    if buffer.count:
        memmove(buffer.events, buffer.events + n, buffer.count * sizeof(ParkedEvent))
    else:
        free(buffer.events)
        buffer.events = NULL
        buffer.capacity = 0


cdef inline uint32_t reorder_last_run(const ReorderBuffer* buffer) noexcept nogil:
    """Where the unbroken run begins that ends with the last event. There must be one."""
    cdef uint32_t i = buffer.count - 1
    while i > 0 and buffer.events[i - 1].event.event_id + 1 == buffer.events[i].event.event_id:
        i -= 1
    return i


cdef struct Source:
    EventCursor cursor     # zero: it was never heard of
    ReorderBuffer parked   # empty unless the cursor is exact and has a gap
    uint64_t publisher_id  # the one that its worker announced over its own connection
    uint64_t unannounced   # events and heartbeats of others, which were ignored
    uint8_t announced      # whether it announced one


cdef struct Sources:
    Source* all            # owned; those never heard of are zero
    size_t count           # of `all`
    ReorderBudget budget


cdef inline Source* source_of(Sources* sources, uint32_t worker) noexcept nogil:
    """The source of a tree worker; NULL if there is no memory for it."""
    cdef size_t before = sources.count
    if not vector_reserve(
        &sources.all, &sources.count, <uint64_t>worker + 1, sizeof(Source)
    ):
        return NULL
    if sources.count != before:
        memset(sources.all + before, 0, (sources.count - before) * sizeof(Source))
    return sources.all + worker


cdef inline bint source_is_well(const Source* source) noexcept nogil:
    """Whether there is nothing to ask it for. Nothing is known of one that is silent."""
    cdef const EventCursor* cursor = &source.cursor
    return cursor.state == SOURCE_SILENT or (
        cursor.state == SOURCE_EXACT and not cursor.suspect and not cursor_has_gap(cursor)
    )


cdef inline void source_forget(Sources* sources, uint32_t worker) noexcept nogil:
    """As if nothing had been heard of it."""
    if worker < sources.count:
        reorder_drop(
            &sources.all[worker].parked, &sources.budget, sources.all[worker].parked.count
        )
        memset(sources.all + worker, 0, sizeof(Source))


cdef inline void sources_free(Sources* sources) noexcept nogil:
    cdef uint32_t worker
    for worker in range(sources.count):
        source_forget(sources, worker)
    free(sources.all)
    sources.all = NULL
    sources.count = 0
