"""The tree as a Python object; the operations on it are in `_ops.pxd`."""
from libc.stdint cimport uint32_t, uint64_t

from ..wire._events cimport EventBatch
from ._ops cimport Tree


cdef class RadixTree:
    cdef Tree* tree                # owned
    cdef EventBatch batch          # of apply_event, reused
    cdef list worker_list          # WorkerWithDpRank by the tree's number, as of workers_version
    cdef object worker_array       # the same as a numpy array of objects
    cdef uint64_t workers_version  # the tree's when the two were made

    cdef int refresh_workers(self) except -1
    cdef list numbers_of(self, worker)


cdef class Match:
    cdef list worker_list          # of the tree when it matched
    cdef object worker_array       # likewise
    cdef uint32_t count            # workers that matched
    cdef bytes index               # the tree's numbers of them, count u32
    cdef bytes blocks              # their overlaps, count u32
    cdef dict cached               # scores, once asked for
