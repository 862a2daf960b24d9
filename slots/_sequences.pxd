"""The owner of a book of active requests; the book itself is in _book.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._book cimport Book

cdef class SequenceBook:
    cdef Book book
    cdef double expiry                  # seconds after which a request is dropped
    cdef dict records                   # request id -> record
    cdef list ids                       # record -> request id, None where free
    cdef readonly uint64_t duplicates   # requests not booked, their id was in use
    cdef readonly uint64_t refused      # requests and output blocks not booked, the book was full
    cdef readonly uint64_t expired      # requests dropped for their age

    cdef int64_t _record(self, str request_id) except -2    # -1: not booked
    cdef str _release(self, uint32_t record)
    cdef int _trim(self) except -1
    cdef int _see(self, double now) except -1
