"""By which external hash a worker knows a block.

A block has one canonical external hash. A worker that calls the block otherwise, or whose hash for
it is already the canonical one of another block, has an alias for it.
"""
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._memory cimport (
    Memory,
    array_give_back,
    array_reserve,
    array_trim,
    shrunk_capacity,
    memory_release,
    memory_zeroed,
    enlarged_capacity,
)
from ...base.native._table cimport (
    NONE,
    table_hash,
    table_add,
    table_give_back,
    table_init,
    table_remove,
    table_rename,
    table_reserve,
    table_seek,
    table_trim,
)
from ._canonical_hashes cimport find_canonical
from ._edge cimport edge_coverage
from ._tree cimport Alias, Aliases, Edge, Tree


cdef enum:
    LEAST_ALIASES = 16   # entries that are not worth giving back


cdef inline bint has_aliases(const Tree* tree, uint32_t worker) noexcept nogil:
    return tree.workers[worker].aliases != NULL and tree.workers[worker].aliases.used != 0


cdef inline uint32_t alias_by_external_hash(
    const Aliases* aliases, uint64_t external_hash
) noexcept nogil:
    """The index of the alias, or NONE. There may be no aliases."""
    cdef uint64_t step = 0
    cdef uint32_t i, hashed
    if aliases == NULL:
        return NONE
    hashed = table_hash(&aliases.by_external_hash, external_hash)
    while True:
        i = table_seek(&aliases.by_external_hash, hashed, &step)
        if i == NONE or aliases.all[i].external_hash == external_hash:
            return i


cdef inline uint32_t alias_by_block(const Aliases* aliases, uint32_t block) noexcept nogil:
    """The index of the alias, or NONE. There may be no aliases."""
    cdef uint64_t step = 0
    cdef uint32_t i, hashed
    if aliases == NULL:
        return NONE
    hashed = table_hash(&aliases.by_block, block)
    while True:
        i = table_seek(&aliases.by_block, hashed, &step)
        if i == NONE or aliases.all[i].block == block:
            return i


cdef inline bint reserve_alias(Tree* tree, uint32_t worker) noexcept nogil:
    """Capacity for one more alias of the worker; false without memory."""
    cdef Memory* memory = &tree.memory
    cdef Aliases* aliases = tree.workers[worker].aliases
    if aliases == NULL:
        aliases = <Aliases*>memory_zeroed(memory, sizeof(Aliases))
        if aliases == NULL:
            return False
        table_init(&aliases.by_external_hash, tree.by_external_hash.multiplier)
        table_init(&aliases.by_block, tree.by_external_hash.multiplier)
        tree.workers[worker].aliases = aliases
    if not table_reserve(&aliases.by_external_hash, memory, 1):
        return False
    if not table_reserve(&aliases.by_block, memory, 1):
        return False
    if aliases.used < aliases.capacity:
        return True
    return array_reserve(
        memory,
        &aliases.all,
        &aliases.capacity,
        enlarged_capacity(aliases.capacity, LEAST_ALIASES),
        sizeof(Alias),
    )


cdef inline void alias_add(
    Tree* tree, uint32_t worker, uint64_t external_hash, uint32_t block
) noexcept nogil:
    """Capacity must have been reserved; the worker has no alias for the block, nor of this hash."""
    cdef Aliases* aliases = tree.workers[worker].aliases
    cdef uint32_t i = aliases.used
    aliases.used += 1
    tree.n_aliases += 1
    aliases.all[i].external_hash = external_hash
    aliases.all[i].block = block
    table_add(&aliases.by_external_hash, table_hash(&aliases.by_external_hash, external_hash), i)
    table_add(&aliases.by_block, table_hash(&aliases.by_block, block), i)


cdef inline void forget_alias(Tree* tree, uint32_t worker, uint32_t block) noexcept nogil:
    """Drop the worker's alias for a block, if it has one. Its memory stays."""
    cdef Aliases* aliases = tree.workers[worker].aliases
    cdef uint32_t i = alias_by_block(aliases, block)
    cdef uint32_t last
    cdef Alias* alias
    if i == NONE:
        return
    alias = &aliases.all[i]
    last = aliases.used - 1
    table_remove(&aliases.by_external_hash, table_hash(&aliases.by_external_hash, alias.external_hash), i)
    table_remove(&aliases.by_block, table_hash(&aliases.by_block, alias.block), i)
    if i != last:
        alias[0] = aliases.all[last]
        table_rename(&aliases.by_external_hash, table_hash(&aliases.by_external_hash, alias.external_hash), last, i)
        table_rename(&aliases.by_block, table_hash(&aliases.by_block, alias.block), last, i)
    aliases.used = last
    tree.n_aliases -= 1


cdef inline void alias_move(Aliases* aliases, uint32_t i, uint32_t block) noexcept nogil:
    """Its block has got another id."""
    cdef Alias* alias = &aliases.all[i]
    table_remove(&aliases.by_block, table_hash(&aliases.by_block, alias.block), i)
    alias.block = block
    table_add(&aliases.by_block, table_hash(&aliases.by_block, block), i)


cdef inline void drop_aliases(Tree* tree, uint32_t worker) noexcept nogil:
    """Forget all aliases of a worker, with their memory."""
    cdef Memory* memory = &tree.memory
    cdef Aliases* aliases = tree.workers[worker].aliases
    if aliases == NULL:
        return
    tree.workers[worker].aliases = NULL
    tree.n_aliases -= aliases.used
    array_give_back(memory, aliases.all, aliases.capacity * sizeof(Alias))
    table_give_back(&aliases.by_external_hash, memory)
    table_give_back(&aliases.by_block, memory)
    memory_release(memory, aliases, sizeof(Aliases))


cdef inline void trim_aliases(Tree* tree, uint32_t worker) noexcept nogil:
    """Give back what is mostly unused."""
    cdef Memory* memory = &tree.memory
    cdef Aliases* aliases = tree.workers[worker].aliases
    cdef uint64_t wanted
    if aliases == NULL:
        return
    if aliases.used == 0:
        drop_aliases(tree, worker)
        return
    table_trim(&aliases.by_external_hash, memory)
    table_trim(&aliases.by_block, memory)
    wanted = shrunk_capacity(aliases.used, LEAST_ALIASES)
    if wanted < <uint64_t>aliases.capacity // 2:
        array_trim(memory, &aliases.all, &aliases.capacity, wanted, sizeof(Alias))


cdef inline uint64_t external_hash_of(
    const Tree* tree, uint32_t worker, uint32_t block
) noexcept nogil:
    """What a worker that covers the block calls it."""
    cdef const Aliases* aliases = tree.workers[worker].aliases
    cdef uint32_t alias = alias_by_block(aliases, block)
    if alias != NONE:
        return aliases.all[alias].external_hash
    return tree.blocks.external_hash[block]


cdef inline bint worker_calls_block(
    const Tree* tree, uint32_t worker, uint32_t block, uint64_t external_hash
) noexcept nogil:
    """Whether that is what a worker that covers the block calls it."""
    return external_hash_of(tree, worker, block) == external_hash


cdef inline uint32_t find_held(
    const Tree* tree, uint32_t worker, uint64_t external_hash
) noexcept nogil:
    """The block that the worker holds under this hash, or NONE."""
    cdef const Aliases* aliases = tree.workers[worker].aliases
    cdef uint32_t block = alias_by_external_hash(aliases, external_hash)
    cdef const Edge* edge
    if block != NONE:
        return aliases.all[block].block
    block = find_canonical(tree, external_hash)
    if block == NONE:
        return NONE
    edge = &tree.edges[tree.blocks.owner[block]]
    if block - edge.start >= edge_coverage(edge, worker):
        return NONE
    if alias_by_block(aliases, block) != NONE:
        return NONE
    return block
