"""Plain arrays that grow by doubling: for what is small, or short-lived, and counted by nobody."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

cdef enum:
    LEAST_ITEMS = 16   # that an array is made for


cdef inline uint64_t grown_capacity(uint64_t capacity, uint64_t needed) noexcept nogil:
    """A capacity for `needed` items, at least doubled so that growing takes linear time."""
    return max(capacity * 2, needed, <uint64_t>LEAST_ITEMS)


cdef inline bint vector_resize(void* array, size_t size) noexcept nogil:
    """Give an array, by the address of the pointer to it, `size` bytes; false leaves it as it was."""
    cdef void* at
    memcpy(&at, array, sizeof(at))
    at = realloc(at, size)
    if at == NULL:
        return False
    memcpy(array, &at, sizeof(at))
    return True


cdef inline bint vector_reserve(
    void* array, size_t* capacity, uint64_t needed, size_t item
) noexcept nogil:
    """Make the capacity `needed` items at least; false, and nothing changed, without memory."""
    cdef uint64_t grown
    if needed <= capacity[0]:
        return True
    grown = grown_capacity(capacity[0], needed)
    if not vector_resize(array, grown * item):
        return False
    capacity[0] = grown
    return True
