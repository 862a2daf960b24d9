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

    # `add_request` of `count` sequence hashes: whether it was booked. ValueError as that.
    cdef bint book_request(
        self, str request_id, int64_t number, const uint64_t* first, uint64_t count, uint32_t isl,
        uint32_t prefill_tokens, uint32_t expected_output_tokens, double now,
    ) except -1
    cdef bint drop(self, str request_id) except -1          # `free`
    cdef int64_t _record(self, str request_id) except -2    # -1: not booked
    cdef str _release(self, uint32_t record)
    cdef int _trim(self) except -1
    cdef int _see(self, double now) except -1
