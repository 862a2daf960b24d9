# cython: language_level=3
"""_chains.pyx: names the ids of a trace by their place in the prefix tree. Face: prefix_tree.py."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc

import numpy as np

cimport cython

cdef enum:
    MIN_SLOTS = 1024    # of an empty table; always a power of two
    MIN_NODES = 256


cdef inline uint64_t home(uint64_t key, int shift) noexcept nogil:
    """The slot a key belongs to: Fibonacci hashing, as ids are often 0, 1, 2 ..."""
    return (key * <uint64_t>0x9E3779B97F4A7C15) >> shift


@cython.final
cdef class ChainTable:
    """The nodes of a prefix tree by their id, numbered as they appear: a parent is below its child.

    Filled once by `add_all`; the arrays of `export` are copies.
    """

    def __cinit__(self):
        self.slots = MIN_SLOTS
        self.shift = 64 - 10
        self.capacity = MIN_NODES
        self.table = <uint32_t*>calloc(self.slots, sizeof(uint32_t))
        self.nodes = <Node*>malloc(self.capacity * sizeof(Node))
        if self.table == NULL or self.nodes == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.table)
        free(self.nodes)

    @cython.boundscheck(False)   # offsets are checked by the face, and below against the ids
    @cython.wraparound(False)
    def add_all(
        self,
        const uint64_t[::1] ids,
        const int64_t[::1] offsets,
        uint32_t[::1] nodes,
        uint32_t[::1] known,
        int64_t[::1] latest,
    ):
        """Walks all requests; returns the place of the first id with a second parent, or -1.

        Per id its node goes to `nodes`; per request the number of leading nodes that were there
        before goes to `known`, and the last request that had the deepest of them (or -1) to
        `latest`.
        """
        cdef int64_t requests = offsets.shape[0] - 1
        cdef int64_t request, at, fault = -1
        cdef uint32_t parent, node, new
        if nodes.shape[0] != ids.shape[0] or offsets[requests] != ids.shape[0]:
            raise ValueError("offsets and nodes must fit the ids")
        if known.shape[0] != requests or latest.shape[0] != requests:
            raise ValueError("known and latest must be as many as the requests")
        with nogil:
            for request in range(requests):
                parent = NO_NODE
                known[request] = 0
                latest[request] = -1
                for at in range(offsets[request], offsets[request + 1]):
                    new = self.count
                    node = self.intern(ids[at])
                    if node == NO_NODE:
                        with gil:
                            raise MemoryError
                    if node == new:
                        self.nodes[node].parent = parent
                        self.nodes[node].depth = <uint32_t>(at - offsets[request]) + 1
                        self.nodes[node].first = request
                    elif self.nodes[node].parent != parent:
                        fault = at
                        break
                    else:
                        known[request] += 1
                        latest[request] = self.nodes[node].last
                    self.nodes[node].last = request
                    nodes[at] = node
                    parent = node
                if fault >= 0:
                    break
        return fault

    cdef uint32_t intern(self, uint64_t key) noexcept nogil:
        """The node of an id, a new one if it has none; NO_NODE without memory."""
        cdef uint64_t at
        if <uint64_t>self.count * 5 >= self.slots * 3 and self.grow_table() < 0:
            return NO_NODE
        at = home(key, self.shift)
        while self.table[at]:
            if self.nodes[self.table[at] - 1].id == key:
                return self.table[at] - 1
            at = (at + 1) & (self.slots - 1)
        if self.count == self.capacity and self.grow_nodes() < 0:
            return NO_NODE
        self.nodes[self.count].id = key
        self.count += 1
        self.table[at] = self.count
        return self.count - 1

    cdef int grow_table(self) noexcept nogil:
        cdef uint64_t slots = self.slots * 2
        cdef uint32_t* table = <uint32_t*>calloc(slots, sizeof(uint32_t))
        cdef uint32_t node
        cdef uint64_t at
        if table == NULL:
            return -1
        free(self.table)
        self.table = table
        self.slots = slots
        self.shift -= 1
        for node in range(self.count):
            at = home(self.nodes[node].id, self.shift)
            while table[at]:
                at = (at + 1) & (slots - 1)
            table[at] = node + 1
        return 0

    cdef int grow_nodes(self) noexcept nogil:
        # NO_NODE stays free, and so does its successor: slots hold node + 1.
        cdef uint64_t capacity = min(<uint64_t>self.capacity * 2, <uint64_t>NO_NODE - 1)
        cdef Node* nodes
        if capacity == self.capacity:
            return -1
        nodes = <Node*>realloc(self.nodes, capacity * sizeof(Node))
        if nodes == NULL:
            return -1
        self.nodes = nodes
        self.capacity = <uint32_t>capacity
        return 0

    @cython.boundscheck(False)   # the arrays are made here, of the very length
    @cython.wraparound(False)
    def export(self):
        """Per node (parent, or -1 at the start; depth from 1; first and last request)."""
        parents = np.empty(self.count, np.int64)
        depths = np.empty(self.count, np.uint32)
        firsts = np.empty(self.count, np.uint32)
        lasts = np.empty(self.count, np.uint32)
        cdef int64_t[::1] parent = parents
        cdef uint32_t[::1] depth = depths
        cdef uint32_t[::1] first = firsts
        cdef uint32_t[::1] last = lasts
        cdef uint32_t node
        for node in range(self.count):
            parent[node] = -1 if self.nodes[node].parent == NO_NODE else self.nodes[node].parent
            depth[node] = self.nodes[node].depth
            first[node] = <uint32_t>self.nodes[node].first
            last[node] = <uint32_t>self.nodes[node].last
        return parents, depths, firsts, lasts
