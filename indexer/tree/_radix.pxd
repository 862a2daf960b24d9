# _radix.pxd: the index of cached prefixes as Python objects; _kernel.pxd is the tree itself.
from libc.stdint cimport uint32_t, uint64_t

from ..wire._events cimport EventBatch
from ._ops cimport Name
from ._tree cimport Tree

# For other doors to Python.
cdef int read_name(Name* name, worker) except -1
cdef int raise_status(int status, uint64_t worker_id) except -1


cdef class RadixTree:
    cdef Tree* tree          # owned
    cdef EventBatch batch    # of apply_event, reused
    cdef list names          # WorkerWithDpRank by the tree's number, as of names_version
    cdef object roster       # the same as a numpy array of objects
    cdef uint64_t names_version

    cdef int refresh_names(self) except -1
    cdef list numbers_of(self, worker)


cdef class Match:
    cdef list names          # of the tree when it matched
    cdef object roster
    cdef uint32_t count      # workers that matched
    cdef bytes index         # their numbers, count u32
    cdef bytes blocks        # their overlaps, count u32
    cdef dict cached         # scores, once asked for
