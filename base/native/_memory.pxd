"""Arrays of the kernels. Those that may get large are counted, and able to fail on purpose.

Large arrays are mapped: growing one moves its pages, not its bytes, and what it does not use any
more goes back to the system. They are in huge pages where the kernel has them: an index is read
and written at random, and with small pages finding the page costs more than the access. But not
as long as the unused end of the last huge page would be a good part of the whole.
"""
from libc.stdint cimport UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from ._yield_points cimport YieldPoints, exclude_readers, admit_readers, yield_after

cdef extern from * nogil:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #define DR_LARGE ((size_t)1 << 18)  /* from here on arrays are mapped */
    #define DR_PAGE ((size_t)2 << 20)  /* a huge page; mapped sizes are rounded up to it */
    #define DR_HUGE (4 * DR_PAGE)
    #define DR_ROUND(size) (((size) + DR_PAGE - 1) & ~(DR_PAGE - 1))
    static inline void dr_wish_huge(void *at, size_t size) {  /* failure costs speed only */
        madvise(at, DR_ROUND(size), MADV_HUGEPAGE);
    }
    /* A place that begins where a huge page does: tables of pages move whole between two such. */
    static inline void *dr_place(size_t size, int protection) {
        char *at = mmap(NULL, size + DR_PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        size_t before;
        if (at == (char *)MAP_FAILED) return NULL;
        before = -(size_t)at & (DR_PAGE - 1);
        if (before != 0) munmap(at, before);
        munmap(at + before + size, DR_PAGE - before);
        return at + before;
    }
    static inline void *dr_map(size_t size, size_t huge_from) {
        void *at = dr_place(DR_ROUND(size), PROT_READ | PROT_WRITE);
        if (at != NULL && size >= huge_from) dr_wish_huge(at, size);
        return at;
    }
    static inline void *dr_remap(void *old, size_t old_size, size_t size) {
        size_t wanted = DR_ROUND(size);
        void *place, *at = mremap(old, DR_ROUND(old_size), wanted, 0);
        if (at == MAP_FAILED) {
            place = dr_place(wanted, PROT_NONE);
            if (place == NULL) return NULL;
            at = mremap(old, DR_ROUND(old_size), wanted, MREMAP_MAYMOVE | MREMAP_FIXED, place);
            if (at == MAP_FAILED) {
                munmap(place, wanted);
                return NULL;
            }
        }
        if (size >= DR_HUGE) dr_wish_huge(at, size);
        return at;
    }
    static inline void dr_unmap(void *old, size_t size) { munmap(old, DR_ROUND(size)); }
    #else
    #define DR_LARGE SIZE_MAX
    #define DR_PAGE SIZE_MAX
    #define DR_HUGE SIZE_MAX
    static inline void *dr_map(size_t size, size_t huge_from) { return calloc(size, 1); }
    static inline void *dr_remap(void *old, size_t old_size, size_t size) {
        return realloc(old, size);
    }
    static inline void dr_unmap(void *old, size_t size) { free(old); }
    #endif
    /* Lets the system find pages for memory that is not in use yet: 0.1 us or more for one of 4 KiB,
       up to a ms for a huge one. */
    static inline void dr_touch(char *begin, size_t size) {
        size_t at;
        if (size == 0) return;
        for (at = 0; at < size; at += 4096) *(volatile char *)(begin + at) = 0;
        *(volatile char *)(begin + size - 1) = 0;
    }
    """
    void touch_pages "dr_touch" (char* begin, size_t size)
    const size_t LARGE "DR_LARGE"
    const size_t HUGE_PAGE "DR_PAGE"
    const size_t HUGE_FROM "DR_HUGE"
    void* map_pages "dr_map" (size_t size, size_t huge_from)
    void* remap_pages "dr_remap" (void* old, size_t old_size, size_t size)
    void unmap_pages "dr_unmap" (void* old, size_t size)

cdef enum:
    LEAST_ITEMS = 16   # that a plain array is made for
    QUICK = 1 << 16    # bytes that are moved in a few us

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
    if memory_fails(memory):
        return NULL
    if size >= QUICK:
        admit_readers(&memory.yield_points)
    new = calloc(size, 1) if size < LARGE else map_pages(size, HUGE_PAGE)
    if new != NULL:
        touch_pages(<char*>new, size)
    if size >= QUICK:
        exclude_readers(&memory.yield_points)
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

cdef inline void array_touch(
    Memory* memory, void* array, uint64_t begin, uint64_t end, size_t item
) noexcept nogil:
    """Find pages for items [begin, end) of a large array, not in use yet, while readers come
    in."""
    cdef char* at
    if begin >= end:
        return
    memcpy(&at, array, sizeof(at))
    admit_readers(&memory.yield_points)
    touch_pages(at + <size_t>begin * item, <size_t>(end - begin) * item)
    exclude_readers(&memory.yield_points)


cdef inline void array_give_back(Memory* memory, void* old, size_t size) noexcept nogil:
    """As array_release, of an array that no reader finds any more, while readers come in."""
    if size >= QUICK:
        admit_readers(&memory.yield_points)
    if size < LARGE:
        free(old)
    else:
        unmap_pages(old, size)
    if size >= QUICK:
        exclude_readers(&memory.yield_points)
    memory.bytes -= size


cdef inline void* array_copy(
    Memory* memory, const void* old, size_t kept, size_t new_size
) noexcept nogil:
    """A new array that begins with `kept` bytes of an old one, too few to take a step's time to
    copy; NULL without memory."""
    cdef char* new
    if memory_fails(memory):
        return NULL
    admit_readers(&memory.yield_points)
    new = <char*>(malloc(new_size) if new_size < LARGE else map_pages(new_size, HUGE_FROM))
    if new != NULL:
        touch_pages(new, kept)
    exclude_readers(&memory.yield_points)
    if new != NULL:
        memcpy(new, old, kept)
        memory.bytes += new_size
    return new


cdef inline bint array_reserve(
    Memory* memory, void* array, uint32_t* capacity, uint64_t wanted, size_t item
) noexcept nogil:
    """Make the capacity `wanted` at least; false, and nothing changed, without memory.

    The tree is whole: readers may come in.
    """
    cdef void* at
    cdef void* old
    cdef size_t old_size = <size_t>capacity[0] * item
    if capacity[0] >= wanted:
        return True
    if wanted >= UINT32_MAX:
        return False
    memcpy(&old, array, sizeof(old))
    if old_size < QUICK or old_size >= LARGE:
        at = array_grow(memory, old, old_size, <size_t>wanted * item)
        old = NULL
    else:
        at = array_copy(memory, old, old_size, <size_t>wanted * item)
    if at == NULL:
        return False
    memcpy(array, &at, sizeof(at))
    capacity[0] = <uint32_t>wanted
    if old != NULL:
        array_give_back(memory, old, old_size)
    elif old_size >= LARGE:
        yield_after(&memory.yield_points, memory.yield_points.step)
    return True


cdef inline uint64_t enlarged_capacity(uint64_t items, uint64_t least) noexcept nogil:
    """A capacity for `items` with a half more to grow into, in 64 bits; at most as many as
    32 bits can number, so that a caller who needs more sees it."""
    return min(items + items // 2 + least, <uint64_t>UINT32_MAX - 1)


cdef inline uint64_t shrunk_capacity(uint64_t items, uint64_t least) noexcept nogil:
    """What an array is made smaller to: a quarter more than it holds, in 64 bits. Worth it if that
    is less than half of what there is."""
    return items + items // 4 + least


cdef inline bint array_trim(
    Memory* memory, void* array, uint32_t* capacity, uint64_t wanted, size_t item
) noexcept nogil:
    """Make the capacity `wanted`, which is smaller and above 0; false, and nothing changed, without
    memory. The tree is whole, and readers may come in: they use none of the items that go."""
    cdef void* at
    cdef void* old
    cdef size_t old_size = <size_t>capacity[0] * item
    cdef size_t new_size = <size_t>wanted * item
    memcpy(&old, array, sizeof(old))
    if new_size >= LARGE:
        admit_readers(&memory.yield_points)  # it stays where it is: pages are cut off its end
        at = array_shrink(memory, old, old_size, new_size)
        exclude_readers(&memory.yield_points)
        old = NULL
    elif old_size >= LARGE:
        at = array_copy(memory, old, new_size, new_size)
    else:
        at = array_shrink(memory, old, old_size, new_size)
        old = NULL
    if at == NULL:
        return False
    memcpy(array, &at, sizeof(at))
    capacity[0] = <uint32_t>wanted
    if old != NULL:
        array_give_back(memory, old, old_size)
    return True


# Plain arrays, grown by doubling: for what is small, or short-lived, and not counted.

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
