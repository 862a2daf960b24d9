"""SipHash-2-4 of a record's hashes and names, and numbers in decimal digits."""
from libc.stdint cimport uint64_t

cdef enum:
    DIGITS = 20      # of the longest uint64_t

cdef struct Key:
    uint64_t low
    uint64_t high


cdef Key read_key(bytes key) except *
cdef uint64_t siphash_bytes(bytes data, Key key) noexcept
# Its decimal digits; where they end.
cdef char* write_number(char* out, uint64_t value) noexcept nogil
# How many bytes a JSON array of every `step`-th of `n` hashes and of a tail may have.
cdef Py_ssize_t salted_bytes(Py_ssize_t n, Py_ssize_t step) noexcept nogil
# That array, with the tail where there is one; where it ends.
cdef char* write_array(
    char* out, const uint64_t* hashes, Py_ssize_t n, Py_ssize_t step, const uint64_t* tail, Key salt
) noexcept
