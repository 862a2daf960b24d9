"""Integers from Python (tokens, hashes), as one C array of uint32 or uint64."""
from cpython.buffer cimport Py_buffer


cdef class UIntView:
    cdef const void* data    # size items of `width` bytes each, in native (little-endian) order
    cdef Py_ssize_t size     # number of items
    cdef void* owned         # our copy, where the source could not be read in place; else NULL
    cdef Py_buffer buffer    # the source's buffer while it is read in place
    cdef bint has_buffer     # buffer must be released


# Read `values` as unsigned integers of `width` (4 or 8) bytes; `what` names one item in errors.
#   list, tuple, any iterable  items with __index__
#   array, numpy, memoryview   any integer width, strides allowed; read in place where it fits
#   bytes, bytearray, memoryview of bytes   the items themselves, little-endian
# OverflowError: an item out of range. TypeError: not integers. ValueError: not one-dimensional,
# or bytes that end within an item.
cdef UIntView view_integers(object values, int width, str what)
