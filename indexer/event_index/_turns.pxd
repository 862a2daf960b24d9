"""Turns at writing: one at a time, in the order in which they were asked for.

A mutex would let a thread that lets go of it and asks again pass those that were already waiting.
No thread may hold the GIL while waiting for a turn.
"""
from libc.stdint cimport uint32_t, uint64_t

from ._threads cimport (
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_t,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

cdef struct Turns:
    pthread_mutex_t lock   # guards all below
    pthread_cond_t moved   # broadcast when a turn ended and another one was asked for
    uint64_t asked         # turns asked for, ever
    uint64_t ended         # turns over: turn number `ended` is the present one
    uint32_t callers       # that wait, the index's own thread not among them


cdef inline void turns_init(Turns* turns) noexcept nogil:
    """Of a zeroed struct."""
    pthread_mutex_init(&turns.lock, NULL)
    pthread_cond_init(&turns.moved, NULL)


cdef inline void turns_destroy(Turns* turns) noexcept nogil:
    pthread_cond_destroy(&turns.moved)
    pthread_mutex_destroy(&turns.lock)


cdef inline void turns_await(Turns* turns, bint caller) noexcept nogil:
    """Ask for a turn and wait until it comes. Under the lock."""
    cdef uint64_t ticket = turns.asked
    turns.asked += 1
    turns.callers += caller
    while turns.ended != ticket:
        pthread_cond_wait(&turns.moved, &turns.lock)
    turns.callers -= caller


cdef inline void turns_begin(Turns* turns, bint caller) noexcept nogil:
    """Wait for a turn. `caller`: not the index's own thread."""
    pthread_mutex_lock(&turns.lock)
    turns_await(turns, caller)
    pthread_mutex_unlock(&turns.lock)


cdef inline void turns_end(Turns* turns) noexcept nogil:
    pthread_mutex_lock(&turns.lock)
    turns.ended += 1
    if turns.asked != turns.ended:
        pthread_cond_broadcast(&turns.moved)
    pthread_mutex_unlock(&turns.lock)


cdef inline void turns_pass(Turns* turns, bint caller) noexcept nogil:
    """In the middle of a turn: let all who wait go first if a caller is among them, and go on after
    that."""
    pthread_mutex_lock(&turns.lock)
    if turns.callers != 0:
        turns.ended += 1
        pthread_cond_broadcast(&turns.moved)
        turns_await(turns, caller)
    pthread_mutex_unlock(&turns.lock)
