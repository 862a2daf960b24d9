# _memory.pxd: allocation of the tree's arrays, counted, and able to fail on purpose.
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc

cdef struct Memory:
    size_t bytes   # held now
    int64_t fuse   # requests that still succeed; negative: no limit (tests light it)


cdef inline bint memory_blown(Memory* memory) noexcept nogil:
    """One request passes; true when it is to fail."""
    if memory.fuse > 0:
        memory.fuse -= 1
        return False
    return memory.fuse == 0


cdef inline void* memory_resize(
    Memory* memory, void* old, size_t old_size, size_t new_size
) noexcept nogil:
    """`old` at its new size, content kept; NULL leaves it as it was."""
    cdef void* new
    if memory_blown(memory):
        return NULL
    new = realloc(old, new_size)
    if new != NULL:
        memory.bytes += new_size - old_size
    return new


cdef inline void* memory_shrink(
    Memory* memory, void* old, size_t old_size, size_t new_size
) noexcept nogil:
    """`old` at a smaller size above 0. It cannot fail, so the fuse does not count it."""
    cdef void* new = realloc(old, new_size)
    memory.bytes -= old_size - new_size
    return new if new != NULL else old


cdef inline void* memory_zeroed(Memory* memory, size_t size) noexcept nogil:
    cdef void* new
    if memory_blown(memory):
        return NULL
    new = calloc(size, 1)
    if new != NULL:
        memory.bytes += size
    return new


cdef inline void memory_release(Memory* memory, void* old, size_t size) noexcept nogil:
    if old != NULL:
        free(old)
        memory.bytes -= size
