# _pace.pxd: the points in long work on a tree at which others may read it.
#
# Stores, removals, clears and the growth of tables do at most `step` blocks of work from one such
# point to the next. At each the tree is whole for a match: it holds some of the event's blocks, in
# the event's order, and nothing that neither the state before nor the one after holds. Only readers
# come in between, so nothing the writer has in hand moves.
from libc.stdint cimport uint32_t

cdef struct Pace:
    void (*give_way)(void* context) noexcept nogil   # NULL: nobody reads meanwhile
    void* context
    uint32_t step        # blocks of work between two points, at least 1
    uint32_t done        # since the last one


cdef inline uint32_t pace_limit(const Pace* pace, uint32_t blocks) noexcept nogil:
    """How many of so many blocks to do before the next point."""
    return blocks if pace.give_way == NULL else min(blocks, pace.step)


cdef inline void pace_work(Pace* pace, uint32_t blocks) noexcept nogil:
    """A point: so many blocks of work were done since the last one."""
    if pace.give_way == NULL:
        return
    pace.done += blocks
    if pace.done >= pace.step:
        pace.done = 0
        pace.give_way(pace.context)
