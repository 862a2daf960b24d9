"""The points in long work on a tree at which others may read it.

Stores, removals, clears and the growth of tables do at most `step` blocks of work from one such
point to the next. At each the tree is whole for a match: it holds some of the event's blocks, in
the event's order, and nothing that neither the state before nor the one after holds. Only readers
come in between, so nothing the writer has in hand moves.
"""
from libc.stdint cimport uint32_t

cdef struct YieldPoints:
    void (*yield_to_readers)(void* context) noexcept nogil   # NULL: nobody reads meanwhile
    void* context        # its argument
    uint32_t step        # blocks of work between two points, at least 1
    uint32_t done        # blocks of work since the last one


cdef inline uint32_t yield_limit(const YieldPoints* points, uint32_t blocks) noexcept nogil:
    """How many of so many blocks to do before the next point."""
    return blocks if points.yield_to_readers == NULL else min(blocks, points.step)


cdef inline void yield_after(YieldPoints* points, uint32_t blocks) noexcept nogil:
    """Count so many blocks of work; let readers in if that makes a step."""
    if points.yield_to_readers == NULL:
        return
    points.done += blocks
    if points.done >= points.step:
        points.done = 0
        points.yield_to_readers(points.context)
