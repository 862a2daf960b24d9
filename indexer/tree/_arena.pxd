# _arena.pxd: where blocks live. A block's id is its position; an edge owns a range of positions.
#
# Free ranges keep their own books in the arrays: both ends are owned by NONE and have the range's
# size in `local`; the first one's `ext` links it into the list of its size class. So freeing joins
# neighbours in constant time, and no byte is spent outside. Only the two ends are meaningful.
from libc.stdint cimport uint32_t, uint64_t

from ...runtime.native._memory cimport Memory, array_grow, array_release, array_shrink
from ...runtime.native._table cimport NONE

cdef extern from * nogil:
    int clz32 "__builtin_clz" (unsigned int)
    int ctz64 "__builtin_ctzll" (unsigned long long)

cdef enum:
    ARENA_BINS = 128
    LEAST_ROOM = 64   # positions that are not worth giving back
    ARENA_TRIES = 4   # ranges of the tightest class that are tried for a fit

cdef struct Arena:
    uint64_t* local          # local hash of a block
    uint64_t* ext            # its canonical external hash
    uint32_t* owner          # its edge; NONE at the ends of a free range
    uint32_t used            # positions in use or in free lists; the rest was never touched
    uint32_t capacity        # positions that all three arrays have
    uint32_t rooms[3]        # positions of each: more than capacity after a failure in between
    uint32_t free_blocks     # positions in free lists
    uint64_t filled[2]       # bit b: bins[b] is not empty
    uint32_t bins[128]       # first free range of each size class


cdef inline void arena_init(Arena* arena) noexcept nogil:
    cdef uint32_t b
    arena.local = arena.ext = NULL
    arena.owner = NULL
    arena.used = arena.capacity = arena.free_blocks = 0
    arena.filled[0] = arena.filled[1] = 0
    arena.rooms[0] = arena.rooms[1] = arena.rooms[2] = 0
    for b in range(ARENA_BINS):
        arena.bins[b] = NONE


cdef inline void arena_close(Arena* arena, Memory* memory) noexcept nogil:
    array_release(memory, arena.local, <size_t>arena.rooms[0] * 8)
    array_release(memory, arena.ext, <size_t>arena.rooms[1] * 8)
    array_release(memory, arena.owner, <size_t>arena.rooms[2] * 4)


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
    arena.local[start] = arena.local[last] = size
    arena.ext[start] = (<uint64_t>NONE << 32) | after  # upper half: the one before
    if after != NONE:
        arena.ext[after] = (<uint64_t>start << 32) | <uint32_t>arena.ext[after]
    arena.bins[b] = start
    arena.filled[b >> 6] |= <uint64_t>1 << (b & 63)
    arena.free_blocks += size


cdef inline uint32_t arena_unlink(Arena* arena, uint32_t start) noexcept nogil:
    """Take a free range out of its list; returns its size."""
    cdef uint32_t size = <uint32_t>arena.local[start]
    cdef uint32_t b = arena_bin(size)
    cdef uint32_t before = <uint32_t>(arena.ext[start] >> 32)
    cdef uint32_t after = <uint32_t>arena.ext[start]
    if before != NONE:
        arena.ext[before] = (arena.ext[before] & (<uint64_t>NONE << 32)) | after
    else:
        arena.bins[b] = after
        if after == NONE:
            arena.filled[b >> 6] &= ~(<uint64_t>1 << (b & 63))
    if after != NONE:
        arena.ext[after] = (<uint64_t>before << 32) | <uint32_t>arena.ext[after]
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
        before = <uint32_t>arena.local[start - 1]
        start -= before
        size += arena_unlink(arena, start)
    if start + size == arena.used:
        arena.used = start
    else:
        arena_link(arena, start, size)


cdef inline void* arena_array(
    Memory* memory, void* old, uint32_t* room, uint32_t wanted, size_t item
) noexcept nogil:
    """One array with room for as many items; NULL leaves it as it was."""
    cdef void* new
    if room[0] >= wanted:
        return old
    new = array_grow(memory, old, room[0] * item, <size_t>wanted * item)
    if new != NULL:
        room[0] = wanted
    return new


cdef inline bint arena_reserve(Arena* arena, Memory* memory, uint32_t more) noexcept nogil:
    """Room for one allocation of `more` blocks at the end; false if there is no memory."""
    cdef uint64_t wanted = <uint64_t>arena.used + more
    cdef uint64_t room
    cdef void* grown
    if wanted <= arena.capacity:
        return True
    if wanted >= NONE:
        return False
    room = max(wanted, <uint64_t>arena.capacity + arena.capacity // 2 + 64)
    room = min(room, <uint64_t>NONE - 1)
    grown = arena_array(memory, arena.local, &arena.rooms[0], <uint32_t>room, 8)
    if grown == NULL:
        return False
    arena.local = <uint64_t*>grown
    grown = arena_array(memory, arena.ext, &arena.rooms[1], <uint32_t>room, 8)
    if grown == NULL:
        return False
    arena.ext = <uint64_t*>grown
    grown = arena_array(memory, arena.owner, &arena.rooms[2], <uint32_t>room, 4)
    if grown == NULL:
        return False
    arena.owner = <uint32_t*>grown
    arena.capacity = <uint32_t>room
    return True


cdef inline bint arena_trim_array(
    Memory* memory, void** array, uint32_t* room, uint32_t wanted, size_t item
) noexcept nogil:
    cdef void* new = array_shrink(memory, array[0], room[0] * item, wanted * item)
    if new == NULL:
        return False
    array[0] = new
    room[0] = wanted
    return True


cdef inline void arena_trim(Arena* arena, Memory* memory) noexcept nogil:
    """Give the end of the arrays back if half of them and more lies behind what is in use."""
    cdef uint32_t wanted = arena.used + arena.used // 4 + LEAST_ROOM
    if arena.capacity // 2 < wanted:
        return
    # Whatever fails is larger than the capacity, as after a growth that failed halfway.
    arena.capacity = wanted
    if arena_trim_array(memory, <void**>&arena.local, &arena.rooms[0], wanted, 8):
        if arena_trim_array(memory, <void**>&arena.ext, &arena.rooms[1], wanted, 8):
            arena_trim_array(memory, <void**>&arena.owner, &arena.rooms[2], wanted, 4)


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
        if arena.local[at] >= size:
            return arena_take(arena, at, size, edge)
        at = <uint32_t>arena.ext[at]
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
    """A range of `size` blocks for an edge: its first block. Room must have been reserved."""
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
    elif arena.owner[end] == NONE and arena.local[end] >= size:
        arena_take(arena, end, size, edge)
    else:
        return False
    arena.owner[end] = arena.owner[end + size - 1] = edge
    return True
