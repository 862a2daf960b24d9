# The prefix tree of a trace while it is read.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    NO_NODE = 0xFFFFFFFF


cdef struct Node:
    uint64_t id             # the trace's own
    int64_t first           # request that brought it
    int64_t last            # latest request that had it
    uint32_t parent         # node before it, NO_NODE at the start of a prompt
    uint32_t depth          # blocks from the start, itself included


@cython.final
cdef class ChainTable:
    cdef uint32_t* table    # open addressing: node + 1, or 0 where empty
    cdef Node* nodes        # `count` of them in use
    cdef uint64_t slots     # of the table, a power of two
    cdef uint32_t capacity  # of `nodes`
    cdef uint32_t count
    cdef int shift          # 64 - log2(slots)

    cdef uint32_t intern(self, uint64_t key) noexcept nogil
    cdef int grow_table(self) noexcept nogil
    cdef int grow_nodes(self) noexcept nogil
