"""Where blocks live. A block's id is its position; an edge owns a range of positions.

Free ranges are booked in the arrays themselves: both ends are owned by NONE and have the range's
size in `local_hash`; the first one's `external_hash` links it into the list of its size class. So
freeing joins neighbours in constant time, and no byte is spent outside. Only the two ends are
meaningful.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp

from ...base.native._memory cimport (
    LARGE,
    Memory,
    array_release,
    array_reserve,
    array_touch,
    array_trim,
    shrunk_capacity,
    enlarged_capacity,
)
from ...base.native._table cimport NONE
from ._tree cimport ARENA_BINS, Arena

cdef extern from * nogil:
    int clz32 "__builtin_clz" (unsigned int)
    int ctz64 "__builtin_ctzll" (unsigned long long)

cdef enum:
    LEAST_CAPACITY = 64   # positions that are not worth giving back
    ARENA_TRIES = 4   # ranges of the tightest class that are tried for a fit
    STRIDE = 128          # hashes compared at once
    TOUCHED_AHEAD = 1 << 15  # positions whose pages are found before they are needed


cdef inline void arena_init(Arena* arena) noexcept nogil:
    cdef uint32_t b
    arena.local_hash = arena.external_hash = NULL
    arena.owner = NULL
    arena.used = arena.capacity = arena.touched = arena.free_blocks = 0
    arena.filled[0] = arena.filled[1] = 0
    arena.capacities[0] = arena.capacities[1] = arena.capacities[2] = 0
    for b in range(<uint32_t>ARENA_BINS):
        arena.bins[b] = NONE


cdef inline void arena_close(Arena* arena, Memory* memory) noexcept nogil:
    array_release(memory, arena.local_hash, <size_t>arena.capacities[0] * 8)
    array_release(memory, arena.external_hash, <size_t>arena.capacities[1] * 8)
    array_release(memory, arena.owner, <size_t>arena.capacities[2] * 4)


cdef inline uint32_t arena_bin(uint32_t size) noexcept nogil:
    """The class of a size: exact below 16, then four a doubling."""
    cdef uint32_t log
    if size < 16:
        return size
    log = 31 - clz32(size)
    return 4 * log + ((size >> (log - 2)) & 3)


cdef inline void arena_link(Arena* arena, uint32_t start, uint32_t size) noexcept nogil:
    """Book a range as free."""
    cdef uint32_t b = arena_bin(size)
    cdef uint32_t after = arena.bins[b]
    cdef uint32_t last = start + size - 1
    arena.owner[start] = arena.owner[last] = NONE
    arena.local_hash[start] = arena.local_hash[last] = size
    arena.external_hash[start] = (<uint64_t>NONE << 32) | after  # upper half: the one before
    if after != NONE:
        arena.external_hash[after] = (<uint64_t>start << 32) | <uint32_t>arena.external_hash[after]
    arena.bins[b] = start
    arena.filled[b >> 6] |= <uint64_t>1 << (b & 63)
    arena.free_blocks += size


cdef inline uint32_t arena_unlink(Arena* arena, uint32_t start) noexcept nogil:
    """Take a free range out of its list; returns its size."""
    cdef uint32_t size = <uint32_t>arena.local_hash[start]
    cdef uint32_t b = arena_bin(size)
    cdef uint32_t before = <uint32_t>(arena.external_hash[start] >> 32)
    cdef uint32_t after = <uint32_t>arena.external_hash[start]
    if before != NONE:
        arena.external_hash[before] = (arena.external_hash[before] & (<uint64_t>NONE << 32)) | after
    else:
        arena.bins[b] = after
        if after == NONE:
            arena.filled[b >> 6] &= ~(<uint64_t>1 << (b & 63))
    if after != NONE:
        arena.external_hash[after] = (<uint64_t>before << 32) | <uint32_t>arena.external_hash[after]
    arena.free_blocks -= size
    return size


cdef inline void arena_release(Arena* arena, uint32_t start, uint32_t size) noexcept nogil:
    """Give a range back; it joins free neighbours, and the end of the arena shrinks."""
    cdef uint32_t before
    if size == 0:
        return
    if start + size < arena.used and arena.owner[start + size] == NONE:
        size += arena_unlink(arena, start + size)
    if start > 0 and arena.owner[start - 1] == NONE:
        before = <uint32_t>arena.local_hash[start - 1]
        start -= before
        size += arena_unlink(arena, start)
    if start + size == arena.used:
        arena.used = start
    else:
        arena_link(arena, start, size)


cdef inline bint arena_reserve(Arena* arena, Memory* memory, uint32_t more) noexcept nogil:
    """Capacity for one allocation of `more` blocks at the end; false if there is no memory."""
    cdef uint64_t end = <uint64_t>arena.used + more
    cdef uint64_t capacity
    if end <= arena.touched:
        return True
    if end > arena.capacity:
        if end >= NONE:
            return False
        capacity = max(end, enlarged_capacity(arena.capacity, LEAST_CAPACITY))
        if not arena_grow(arena, memory, capacity):
            return False
    capacity = min(end + TOUCHED_AHEAD, <uint64_t>arena.capacity)
    if <size_t>arena.capacity * sizeof(uint32_t) >= LARGE:
        array_touch(memory, &arena.local_hash, arena.touched, capacity, sizeof(uint64_t))
        array_touch(memory, &arena.external_hash, arena.touched, capacity, sizeof(uint64_t))
        array_touch(memory, &arena.owner, arena.touched, capacity, sizeof(uint32_t))
    arena.touched = <uint32_t>capacity
    return True


cdef inline bint arena_grow(Arena* arena, Memory* memory, uint64_t capacity) noexcept nogil:
    if not (
        array_reserve(memory, &arena.local_hash, &arena.capacities[0], capacity, sizeof(uint64_t))
        and array_reserve(
            memory, &arena.external_hash, &arena.capacities[1], capacity, sizeof(uint64_t)
        )
        and array_reserve(memory, &arena.owner, &arena.capacities[2], capacity, sizeof(uint32_t))
    ):
        return False
    arena.capacity = <uint32_t>capacity
    return True


cdef inline void arena_trim(Arena* arena, Memory* memory) noexcept nogil:
    """Give the end of the arrays back if half of them and more lies behind what is in use."""
    cdef uint64_t wanted = shrunk_capacity(arena.used, LEAST_CAPACITY)
    if <uint64_t>arena.capacity // 2 < wanted:
        return
    # Whatever fails is larger than the capacity, as after a growth that failed halfway.
    arena.capacity = <uint32_t>wanted
    arena.touched = min(arena.touched, arena.capacity)
    if array_trim(memory, &arena.local_hash, &arena.capacities[0], wanted, sizeof(uint64_t)):
        if array_trim(memory, &arena.external_hash, &arena.capacities[1], wanted, sizeof(uint64_t)):
            array_trim(memory, &arena.owner, &arena.capacities[2], wanted, sizeof(uint32_t))


cdef inline uint32_t arena_take(
    Arena* arena, uint32_t start, uint32_t size, uint32_t edge
) noexcept nogil:
    """Give the first `size` blocks of a free range to an edge; the rest stays free."""
    cdef uint32_t found = arena_unlink(arena, start)
    if found > size:
        arena_link(arena, start + size, found - size)
    arena.owner[start] = arena.owner[start + size - 1] = edge
    return start


cdef inline uint32_t arena_reuse(Arena* arena, uint32_t size, uint32_t edge) noexcept nogil:
    """A range of `size` blocks for an edge among those that are free, or NONE."""
    cdef uint32_t b = arena_bin(size)
    cdef uint32_t at = arena.bins[b]
    cdef uint32_t tries = 0
    cdef uint64_t left
    while at != NONE and tries < ARENA_TRIES:
        if arena.local_hash[at] >= size:
            return arena_take(arena, at, size, edge)
        at = <uint32_t>arena.external_hash[at]
        tries += 1
    # Any range of a higher class is large enough.
    b += 1
    left = arena.filled[b >> 6] & (~<uint64_t>0 << (b & 63)) if b < ARENA_BINS else 0
    if left == 0 and b < 64:
        b = 64
        left = arena.filled[1]
    if left != 0:
        b = (b & 64) + ctz64(left)
        return arena_take(arena, arena.bins[b], size, edge)
    return NONE


cdef inline uint32_t arena_allocate(Arena* arena, uint32_t size, uint32_t edge) noexcept nogil:
    """A range of `size` blocks for an edge: its first block. Capacity must have been reserved."""
    cdef uint32_t at = arena_reuse(arena, size, edge)
    if at == NONE:
        at = arena.used
        arena.used += size
        arena.owner[at] = arena.owner[at + size - 1] = edge
    return at


cdef inline bint arena_extend(
    Arena* arena, uint32_t end, uint32_t size, uint32_t edge
) noexcept nogil:
    """Add the `size` positions behind a range that ends at `end` to it; false if not free."""
    if end == arena.used:
        if <uint64_t>end + size > arena.capacity:
            return False
        arena.used += size
    elif arena.owner[end] == NONE and arena.local_hash[end] >= size:
        arena_take(arena, end, size, edge)
    else:
        return False
    arena.owner[end] = arena.owner[end + size - 1] = edge
    return True


cdef inline uint32_t common_run(const uint64_t* a, const uint64_t* b, uint32_t n) noexcept nogil:
    """How many leading hashes are equal."""
    cdef uint32_t i = 0
    # The C library's comparison uses vectors that we may not assume.
    while i + STRIDE <= n and memcmp(a + i, b + i, STRIDE * sizeof(uint64_t)) == 0:
        i += STRIDE
    while i + 4 <= n and (
        (a[i] ^ b[i]) | (a[i + 1] ^ b[i + 1]) | (a[i + 2] ^ b[i + 2]) | (a[i + 3] ^ b[i + 3])
    ) == 0:
        i += 4
    while i < n and a[i] == b[i]:
        i += 1
    return i
