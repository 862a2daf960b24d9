"""Arrays of the kernels. Those that may get large are counted, and able to fail on purpose.

Large arrays are mapped: growing one moves its pages, not its bytes, and what it does not use any
more goes back to the system. They are in huge pages where the kernel has them: an index is read
and written at random, and with small pages finding the page costs more than the access. But not
as long as the unused end of the last huge page would be a good part of the whole.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from ._yield_points cimport YieldPoints

cdef extern from * nogil:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #define DR_LARGE ((size_t)2 << 20)  /* a huge page; sizes are rounded up to it */
    #define DR_HUGE (4 * DR_LARGE)
    #define DR_ROUND(size) (((size) + DR_LARGE - 1) & ~(DR_LARGE - 1))
    static inline void dr_wish_huge(void *at, size_t size) {  /* failure costs speed only */
        madvise(at, DR_ROUND(size), MADV_HUGEPAGE);
    }
    static inline void *dr_map(size_t size, size_t huge_from) {
        void *at = mmap(NULL, DR_ROUND(size), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return NULL;
        if (size >= huge_from) dr_wish_huge(at, size);
        return at;
    }
    static inline void *dr_remap(void *old, size_t old_size, size_t size) {
        void *at = mremap(old, DR_ROUND(old_size), DR_ROUND(size), MREMAP_MAYMOVE);
        if (at == MAP_FAILED) return NULL;
        if (size >= DR_HUGE) dr_wish_huge(at, size);
        return at;
    }
    static inline void dr_unmap(void *old, size_t size) { munmap(old, DR_ROUND(size)); }
    #else
    #define DR_LARGE SIZE_MAX
    #define DR_HUGE SIZE_MAX
    static inline void *dr_map(size_t size, size_t huge_from) { return calloc(size, 1); }
    static inline void *dr_remap(void *old, size_t old_size, size_t size) {
        return realloc(old, size);
    }
    static inline void dr_unmap(void *old, size_t size) { free(old); }
    #endif
    """
    const size_t LARGE "DR_LARGE"
    const size_t HUGE_FROM "DR_HUGE"
    void* map_pages "dr_map" (size_t size, size_t huge_from)
    void* remap_pages "dr_remap" (void* old, size_t old_size, size_t size)
    void unmap_pages "dr_unmap" (void* old, size_t size)

cdef enum:
    LEAST_ITEMS = 16   # that a plain array is made for

cdef struct Memory:
    size_t bytes               # held now
    int64_t fail_after         # requests that still succeed (for tests); negative: no limit
    YieldPoints yield_points   # of long work on what is allocated here


cdef inline void memory_init(Memory* memory) noexcept nogil:
    """Of a zeroed struct."""
    memory.fail_after = -1


cdef inline bint memory_fails(Memory* memory) noexcept nogil:
    """Count one request; true if it has to fail."""
    if memory.fail_after > 0:
        memory.fail_after -= 1
        return False
    return memory.fail_after == 0


# Pieces: coverage and other small things.

cdef inline void* memory_resize(
    Memory* memory, void* old, size_t old_size, size_t new_size
) noexcept nogil:
    """`old` at its new size, content kept; NULL leaves it as it was."""
    cdef void* new
    if memory_fails(memory):
        return NULL
    new = realloc(old, new_size)
    if new != NULL:
        memory.bytes += new_size - old_size
    return new


cdef inline void* memory_shrink(
    Memory* memory, void* old, size_t old_size, size_t new_size
) noexcept nogil:
    """`old` at a smaller size above 0. It cannot fail, so `fail_after` does not count it."""
    cdef void* new = realloc(old, new_size)
    memory.bytes -= old_size - new_size
    return new if new != NULL else old


cdef inline void* memory_zeroed(Memory* memory, size_t size) noexcept nogil:
    cdef void* new
    if memory_fails(memory):
        return NULL
    new = calloc(size, 1)
    if new != NULL:
        memory.bytes += size
    return new


cdef inline void memory_release(Memory* memory, void* old, size_t size) noexcept nogil:
    if old != NULL:
        free(old)
        memory.bytes -= size


# Arrays: what grows with the tree. Where one lives follows from its size, so every size handed
# back must be the very one it was made with.

cdef inline void* array_grow(
    Memory* memory, void* old, size_t old_size, size_t new_size
) noexcept nogil:
    """`old`, or NULL of size 0, at its new, larger size; NULL leaves it as it was."""
    cdef void* new
    if new_size < LARGE:
        return memory_resize(memory, old, old_size, new_size)
    if memory_fails(memory):
        return NULL
    if old_size >= LARGE:
        new = remap_pages(old, old_size, new_size)
    else:
        new = map_pages(new_size, HUGE_FROM)
        if new != NULL and old != NULL:
            memcpy(new, old, old_size)
            free(old)
    if new != NULL:
        memory.bytes += new_size - old_size
    return new


cdef inline void* array_shrink(
    Memory* memory, void* old, size_t old_size, size_t new_size
) noexcept nogil:
    """`old` at its new, smaller size above 0; NULL leaves it as it was."""
    cdef void* new
    if memory_fails(memory):
        return NULL
    if old_size < LARGE:
        new = realloc(old, new_size)
    elif new_size >= LARGE:
        new = remap_pages(old, old_size, new_size)
    else:
        new = malloc(new_size)
        if new != NULL:
            memcpy(new, old, new_size)
            unmap_pages(old, old_size)
    if new != NULL:
        memory.bytes -= old_size - new_size
    return new


cdef inline void* array_zeroed(Memory* memory, size_t size) noexcept nogil:
    """A new array, of which all will be used from the start."""
    cdef void* new
    if size < LARGE:
        return memory_zeroed(memory, size)
    if memory_fails(memory):
        return NULL
    new = map_pages(size, LARGE)
    if new != NULL:
        memory.bytes += size
    return new


cdef inline void array_release(Memory* memory, void* old, size_t size) noexcept nogil:
    if size < LARGE:
        memory_release(memory, old, size)
    else:
        unmap_pages(old, size)
        memory.bytes -= size


# Arrays of items, given by the address of the pointer to them, with their capacity in items.

cdef inline bint array_reserve(
    Memory* memory, void* array, uint32_t* capacity, uint32_t wanted, size_t item
) noexcept nogil:
    """Make the capacity `wanted` at least; false, and nothing changed, without memory."""
    cdef void* at
    if capacity[0] >= wanted:
        return True
    memcpy(&at, array, sizeof(at))
    at = array_grow(memory, at, capacity[0] * item, wanted * item)
    if at == NULL:
        return False
    memcpy(array, &at, sizeof(at))
    capacity[0] = wanted
    return True


cdef inline bint array_trim(
    Memory* memory, void* array, uint32_t* capacity, uint32_t wanted, size_t item
) noexcept nogil:
    """Make the capacity `wanted`, which is smaller and above 0; false, and nothing changed, without
    memory."""
    cdef void* at
    memcpy(&at, array, sizeof(at))
    at = array_shrink(memory, at, capacity[0] * item, wanted * item)
    if at == NULL:
        return False
    memcpy(array, &at, sizeof(at))
    capacity[0] = wanted
    return True


# Plain arrays, grown by doubling: for what is small, or short-lived, and counted by nobody.

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
