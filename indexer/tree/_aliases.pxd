# _aliases.pxd: keys that are not a block's canonical one.
#
# A block has one canonical external hash. A worker that calls the block otherwise, or whose hash
# for it is already the canonical one of another block, has an alias for it. Invariant: a worker
# with an alias for a block covers that block, and the alias is then its only key for it.
from libc.stdint cimport uint32_t, uint64_t

from ...runtime.native._memory cimport Memory, array_grow, array_release, array_shrink
from ...runtime.native._table cimport (
    NONE,
    Table,
    hash_pair,
    table_add,
    table_free,
    table_remove,
    table_rename,
    table_reserve,
    table_seek,
    table_trim,
)

cdef struct Alias:
    uint64_t ext       # what the worker calls the block
    uint32_t block
    uint32_t worker

cdef struct Aliases:
    Alias* all         # without gaps: the last one moves to where one is dropped
    uint32_t used
    uint32_t capacity
    Table by_key       # (worker, ext) -> alias
    Table by_block     # (worker, block) -> alias


cdef inline uint32_t alias_by_key(
    const Aliases* aliases, uint32_t worker, uint64_t ext
) noexcept nogil:
    cdef uint64_t step = 0
    cdef uint32_t hashed = hash_pair(ext, worker)
    cdef uint32_t i
    while True:
        i = table_seek(&aliases.by_key, hashed, &step)
        if i == NONE or (aliases.all[i].ext == ext and aliases.all[i].worker == worker):
            return i


cdef inline uint32_t alias_by_block(
    const Aliases* aliases, uint32_t worker, uint32_t block
) noexcept nogil:
    cdef uint64_t step = 0
    cdef uint32_t hashed = hash_pair(block, worker)
    cdef uint32_t i
    while True:
        i = table_seek(&aliases.by_block, hashed, &step)
        if i == NONE or (aliases.all[i].block == block and aliases.all[i].worker == worker):
            return i


cdef inline bint aliases_reserve(Aliases* aliases, Memory* memory) noexcept nogil:
    """Room for one more; false without memory."""
    cdef uint32_t room
    cdef Alias* grown
    if not table_reserve(&aliases.by_key, memory, 1):
        return False
    if not table_reserve(&aliases.by_block, memory, 1):
        return False
    if aliases.used < aliases.capacity:
        return True
    room = aliases.capacity + aliases.capacity // 2 + 16
    grown = <Alias*>array_grow(
        memory, aliases.all, aliases.capacity * sizeof(Alias), room * sizeof(Alias)
    )
    if grown == NULL:
        return False
    aliases.all = grown
    aliases.capacity = room
    return True


cdef inline void alias_add(
    Aliases* aliases, uint32_t worker, uint64_t ext, uint32_t block
) noexcept nogil:
    """Room must have been reserved; neither (worker, ext) nor (worker, block) is in yet."""
    cdef uint32_t i = aliases.used
    aliases.used += 1
    aliases.all[i].ext = ext
    aliases.all[i].block = block
    aliases.all[i].worker = worker
    table_add(&aliases.by_key, hash_pair(ext, worker), i)
    table_add(&aliases.by_block, hash_pair(block, worker), i)


cdef inline void alias_drop(Aliases* aliases, uint32_t i) noexcept nogil:
    cdef Alias* alias = &aliases.all[i]
    cdef uint32_t last = aliases.used - 1
    table_remove(&aliases.by_key, hash_pair(alias.ext, alias.worker), i)
    table_remove(&aliases.by_block, hash_pair(alias.block, alias.worker), i)
    if i != last:
        alias[0] = aliases.all[last]
        table_rename(&aliases.by_key, hash_pair(alias.ext, alias.worker), last, i)
        table_rename(&aliases.by_block, hash_pair(alias.block, alias.worker), last, i)
    aliases.used = last


cdef inline void alias_move(Aliases* aliases, uint32_t i, uint32_t block) noexcept nogil:
    """Its block has got another id."""
    cdef Alias* alias = &aliases.all[i]
    table_remove(&aliases.by_block, hash_pair(alias.block, alias.worker), i)
    alias.block = block
    table_add(&aliases.by_block, hash_pair(block, alias.worker), i)


cdef inline void aliases_close(Aliases* aliases, Memory* memory) noexcept nogil:
    """Give all memory back; it may be filled again."""
    array_release(memory, aliases.all, aliases.capacity * sizeof(Alias))
    aliases.all = NULL
    aliases.used = aliases.capacity = 0
    table_free(&aliases.by_key, memory)
    table_free(&aliases.by_block, memory)


cdef inline void aliases_trim(Aliases* aliases, Memory* memory) noexcept nogil:
    """Give back what is mostly unused."""
    cdef uint32_t room = aliases.used + aliases.used // 4 + 16
    cdef void* shrunk
    if aliases.used == 0:
        aliases_close(aliases, memory)
        return
    table_trim(&aliases.by_key, memory)
    table_trim(&aliases.by_block, memory)
    if room < aliases.capacity // 2:
        shrunk = array_shrink(
            memory, aliases.all, aliases.capacity * sizeof(Alias), room * sizeof(Alias)
        )
        if shrunk != NULL:
            aliases.all = <Alias*>shrunk
            aliases.capacity = room
