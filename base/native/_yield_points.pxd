"""The points in long work on a tree at which others may read it.

Stores, removals, clears and compaction do at most `step` blocks of work from one such point to the
next. At each the tree is whole for a match: it holds some of the event's blocks, in the event's
order, and nothing that neither the state before nor the one after holds. Only readers come in
between, so nothing the writer has in hand moves.

What concerns memory that no reader knows (new arrays and tables filled, old ones given back, pages
that the system clears on their first use) is done beside readers: they come and go meanwhile,
and the writer changes nothing that they see.
"""
from libc.stdint cimport uint32_t

cdef struct YieldPoints:
    void (*yield_to_readers)(void* context) noexcept nogil   # NULL: no other readers
    void (*admit_readers)(void* context) noexcept nogil          # readers come in until it is closed
    void (*exclude_readers)(void* context) noexcept nogil         # waits for those that are in
    void* context        # their argument
    uint32_t step        # blocks of work between two points, at least 1
    uint32_t done        # blocks of work since the last one


cdef inline YieldPoints no_yield_points() noexcept nogil:
    """For a tree without other readers."""
    return YieldPoints(NULL, NULL, NULL, NULL, 1, 0)


cdef inline uint32_t yield_limit(const YieldPoints* points, uint32_t blocks) noexcept nogil:
    """How many of `blocks` to do before the next point."""
    return blocks if points.yield_to_readers == NULL else min(blocks, points.step)


cdef inline void yield_after(YieldPoints* points, uint32_t blocks) noexcept nogil:
    """Count `blocks` of work; let readers in if that makes a step."""
    if points.yield_to_readers == NULL:
        return
    points.done += blocks
    if points.done >= points.step:
        points.done = 0
        points.yield_to_readers(points.context)


cdef inline void admit_readers(YieldPoints* points) noexcept nogil:
    """Let readers in until exclude_readers. The tree is whole, and stays as it is until then."""
    if points.yield_to_readers != NULL:
        points.admit_readers(points.context)


cdef inline void exclude_readers(YieldPoints* points) noexcept nogil:
    """End what admit_readers began. What no reader can find any more now, none has."""
    if points.yield_to_readers != NULL:
        points.done = 0
        points.exclude_readers(points.context)
