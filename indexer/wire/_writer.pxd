"""The event writer for other kernels, which have their hashes in C arrays."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class EventWriter:
    cdef uint8_t* data           # the events, encoded; owned
    cdef size_t size             # bytes in them
    cdef size_t capacity         # of `data`
    cdef readonly uint32_t events  # in the message so far
    cdef readonly uint32_t blocks  # in those events, stored and removed

    cdef int reserve(self, size_t more) except -1
    cdef uint8_t* begin(
        self, uint64_t worker_id, uint64_t event_id, str tier, size_t n_blocks, const char* kind
    ) except NULL
    cdef int end(self, uint8_t* at, uint32_t dp_rank, size_t n_blocks) except -1
    cdef int put_stored(
        self, uint64_t worker_id, uint32_t dp_rank, uint64_t event_id, bint has_parent,
        uint64_t parent, const uint64_t* external_hashes,
        const uint64_t* local_hashes, size_t n_blocks, str tier,
    ) except -1
    cdef int put_removed(
        self, uint64_t worker_id, uint32_t dp_rank, uint64_t event_id,
        const uint64_t* external_hashes, size_t n_blocks, str tier,
    ) except -1
