# cython: language_level=3
"""_stack_distance.pyx: how deep in an LRU stack each block of a trace lies. Face: cache_curve.py.

A request touches its blocks from the last to the first, so that a prefix is never evicted before
what follows it. Blocks last touched by one request are then neighbours in the stack, and it is
enough to count per request how many blocks it was the last to touch: a Fenwick tree over requests,
asked once per run of blocks instead of once per block.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

import numpy as np

cimport cython


cdef inline void raise_by(int64_t* tree, int64_t size, int64_t at, int64_t by) noexcept nogil:
    at += 1
    while at <= size:
        tree[at] += by
        at += at & -at


cdef inline int64_t sum_through(const int64_t* tree, int64_t at) noexcept nogil:
    """The sum of places 0 to `at`, both included."""
    cdef int64_t total = 0
    at += 1
    while at > 0:
        total += tree[at]
        at -= at & -at
    return total


@cython.boundscheck(False)   # the face checks that nodes are below `n_nodes` and offsets fit
@cython.wraparound(False)
cdef void measure(
    const uint32_t[::1] nodes,
    const int64_t[::1] offsets,
    int64_t* tree,
    int64_t* last,
    int64_t[::1] out,
) noexcept nogil:
    cdef int64_t requests = offsets.shape[0] - 1
    cdef int64_t held = 0       # blocks that the tree counts
    cdef int64_t request, at, begin, end, start, owner, above
    for request in range(requests):
        begin, end = offsets[request], offsets[request + 1]
        at = begin
        while at < end and last[nodes[at]] >= 0:
            # A run of blocks that `owner` was the last to touch: above it lie the blocks touched
            # since, and this prompt's own blocks before the run, which the tree no longer counts.
            start, owner = at, last[nodes[at]]
            above = held - sum_through(tree, owner)
            while at < end and last[nodes[at]] == owner:
                last[nodes[at]] = request
                out[at] = above + at - begin + 1
                at += 1
            raise_by(tree, requests, owner, start - at)
            held -= at - start
        while at < end:
            last[nodes[at]] = request
            out[at] = -1
            at += 1
        raise_by(tree, requests, request, end - begin)
        held += end - begin


def stack_distances(
    const uint32_t[::1] nodes not None, const int64_t[::1] offsets not None, int64_t n_nodes
):
    """Per block how many blocks an LRU cache must hold for it to be there; -1 on first use."""
    cdef int64_t requests = offsets.shape[0] - 1
    cdef int64_t at
    cdef int64_t* tree = <int64_t*>calloc(requests + 1, sizeof(int64_t))
    cdef int64_t* last = <int64_t*>malloc(max(n_nodes, 1) * sizeof(int64_t))
    try:
        if tree == NULL or last == NULL:
            raise MemoryError
        for at in range(n_nodes):
            last[at] = -1
        found = np.empty(nodes.shape[0], np.int64)
        if requests > 0:
            fill(nodes, offsets, tree, last, found)
        return found
    finally:
        free(tree)
        free(last)


cdef int fill(
    const uint32_t[::1] nodes,
    const int64_t[::1] offsets,
    int64_t* tree,
    int64_t* last,
    int64_t[::1] out,
) except -1:
    with nogil:
        measure(nodes, offsets, tree, last, out)
    return 0
