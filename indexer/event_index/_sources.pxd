# _sources.pxd: what the actor knows of the sources of its events, by the tree's worker numbers.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from ._cursor cimport SOURCE_EXACT, SOURCE_SILENT, Cursor, cursor_has_gap
from ._reorder_buffer cimport Budget, Held, held_drop


cdef struct Source:
    Cursor cursor
    Held held              # empty unless the cursor is exact and has a gap


cdef struct Sources:
    Source* all            # those never heard of are zero
    uint32_t count
    Budget budget


cdef inline Source* source_of(Sources* sources, uint32_t worker) noexcept nogil:
    """The source of a tree worker; NULL if there is no memory for it."""
    cdef uint32_t wanted
    cdef Source* grown
    if worker >= sources.count:
        wanted = worker + 1 + worker // 2
        grown = <Source*>realloc(sources.all, wanted * sizeof(Source))
        if grown == NULL:
            return NULL
        memset(grown + sources.count, 0, (wanted - sources.count) * sizeof(Source))
        sources.all = grown
        sources.count = wanted
    return sources.all + worker


cdef inline bint source_is_well(const Source* source) noexcept nogil:
    """Whether there is nothing to ask it for. Nothing is known of one that is silent."""
    cdef const Cursor* cursor = &source.cursor
    return cursor.state == SOURCE_SILENT or (
        cursor.state == SOURCE_EXACT and not cursor.suspect and not cursor_has_gap(cursor)
    )


cdef inline void source_forget(Sources* sources, uint32_t worker) noexcept nogil:
    if worker < sources.count:
        held_drop(&sources.all[worker].held, &sources.budget, sources.all[worker].held.count)
        memset(sources.all + worker, 0, sizeof(Source))


cdef inline void sources_free(Sources* sources) noexcept nogil:
    cdef uint32_t worker
    for worker in range(sources.count):
        source_forget(sources, worker)
    free(sources.all)
    sources.all = NULL
    sources.count = 0
