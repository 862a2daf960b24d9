"""The sources of events, by the tree's worker numbers, and who spoke for workers that left."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from ...base.native._memory cimport vector_reserve
from ._cursor cimport (
    SOURCE_EXACT,
    SOURCE_SILENT,
    EventCursor,
    PastPublishers,
    cursor_has_gap,
    past_end,
    past_note,
)
from ._reorder cimport ReorderBudget, ReorderBuffer, reorder_clear

cdef enum:
    DEPARTED = 256         # workers that left and are remembered


cdef struct Source:
    EventCursor cursor     # zero: no message came
    PastPublishers past    # those that were believed before
    ReorderBuffer parked   # empty unless the cursor is exact and has a gap
    uint64_t publisher_id  # the one that its worker announced over its own connection
    uint64_t unannounced   # events and heartbeats of others, which were ignored
    uint8_t announced      # whether it announced one
    uint8_t unknown        # nothing but its own messages named this worker


cdef struct Departed:      # a worker that left
    uint64_t worker_id
    uint32_t dp_rank
    uint8_t used           # whether this entry is one
    uint8_t bare           # whether its events came without envelopes
    PastPublishers past    # who spoke for it


cdef struct Sources:
    Source* all            # owned; those without a message are zero
    size_t count           # of `all`
    uint32_t unknown       # how many of them are
    uint32_t max_unknown   # the most there may be
    uint64_t max_unknown_blocks  # that each of them may hold in a tier; 0: no bound of their own
    ReorderBudget budget
    Departed departed[256] # workers that left last, a ring
    uint32_t next_departed # where the next one goes in it


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


cdef inline void source_register(Sources* sources, uint32_t worker) noexcept nogil:
    """A trusted caller named this worker: it does not count as unknown."""
    if worker < sources.count and sources.all[worker].unknown:
        sources.all[worker].unknown = False
        sources.unknown -= 1


cdef inline void source_forget(Sources* sources, uint32_t worker) noexcept nogil:
    """As if no message had come from it."""
    if worker < sources.count:
        source_register(sources, worker)
        reorder_clear(&sources.all[worker].parked, &sources.budget)
        memset(sources.all + worker, 0, sizeof(Source))


cdef inline Departed* find_departed(
    Sources* sources, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    """NULL if it did not leave, or long ago."""
    cdef uint32_t i
    for i in range(DEPARTED):
        if (
            sources.departed[i].used
            and sources.departed[i].worker_id == worker_id
            and sources.departed[i].dp_rank == dp_rank
        ):
            return &sources.departed[i]
    return NULL


cdef inline bint spoke_for(
    const Departed* gone, uint64_t publisher_id, bint has_envelope
) noexcept nogil:
    """Whether a publisher was believed while the worker was here."""
    return past_end(&gone.past, publisher_id) != 0 if has_envelope else gone.bare != 0


cdef inline bint source_welcome(
    Sources* sources, uint32_t worker, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    """A worker is here, perhaps again; false without memory for its source."""
    cdef Source* source = source_of(sources, worker)
    cdef Departed* gone = find_departed(sources, worker_id, dp_rank)
    if source == NULL:
        return False
    source_register(sources, worker)
    if gone != NULL:
        if source.cursor.state == SOURCE_SILENT:
            source.past = gone.past
        gone.used = False
    return True


cdef inline void note_departure(
    Sources* sources, uint32_t worker, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    """A worker left: its publisher is not believed again as long as it is gone, and what
    was known of its events stays known after that."""
    cdef Source* source = sources.all + worker
    cdef Departed* entry
    if worker >= sources.count or source.cursor.state == SOURCE_SILENT:
        return
    entry = &sources.departed[sources.next_departed]
    sources.next_departed = (sources.next_departed + 1) % DEPARTED
    entry.worker_id = worker_id
    entry.dp_rank = dp_rank
    entry.used = True
    entry.bare = source.cursor.bare
    entry.past = source.past
    if not entry.bare:
        past_note(&entry.past, source.cursor.publisher_id, source.cursor.newest + 1)


cdef inline void sources_free(Sources* sources) noexcept nogil:
    cdef uint32_t worker
    for worker in range(sources.count):
        source_forget(sources, worker)
    free(sources.all)
    sources.all = NULL
    sources.count = 0
