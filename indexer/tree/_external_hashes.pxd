"""By which external hash a worker knows a block.

A block has one canonical external hash. A worker that calls the block otherwise, or whose hash for
it is already the canonical one of another block, has an alias for it.
"""
from libc.stdint cimport uint32_t, uint64_t

from ...runtime.native._memory cimport Memory, array_release, array_reserve, array_trim
from ...runtime.native._table cimport (
    NONE,
    hash_key,
    hash_pair,
    table_add,
    table_free,
    table_remove,
    table_rename,
    table_reserve,
    table_seek,
    table_trim,
)
from ._edge cimport edge_coverage
from ._tree cimport Alias, Aliases, Edge, Tree


cdef inline uint32_t alias_by_external_hash(
    const Aliases* aliases, uint32_t worker, uint64_t external_hash
) noexcept nogil:
    cdef uint64_t step = 0
    cdef uint32_t hashed = hash_pair(external_hash, worker)
    cdef uint32_t i
    while True:
        i = table_seek(&aliases.by_external_hash, hashed, &step)
        if i == NONE or (
            aliases.all[i].external_hash == external_hash and aliases.all[i].worker == worker
        ):
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
    """Capacity for one more; false without memory."""
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
        aliases.capacity + aliases.capacity // 2 + 16,
        sizeof(Alias),
    )


cdef inline void alias_add(
    Aliases* aliases, uint32_t worker, uint64_t external_hash, uint32_t block
) noexcept nogil:
    """Capacity must have been reserved; the worker has no alias for the block, nor of this hash."""
    cdef uint32_t i = aliases.used
    aliases.used += 1
    aliases.all[i].external_hash = external_hash
    aliases.all[i].block = block
    aliases.all[i].worker = worker
    table_add(&aliases.by_external_hash, hash_pair(external_hash, worker), i)
    table_add(&aliases.by_block, hash_pair(block, worker), i)


cdef inline void alias_drop(Aliases* aliases, uint32_t i) noexcept nogil:
    cdef Alias* alias = &aliases.all[i]
    cdef uint32_t last = aliases.used - 1
    table_remove(&aliases.by_external_hash, hash_pair(alias.external_hash, alias.worker), i)
    table_remove(&aliases.by_block, hash_pair(alias.block, alias.worker), i)
    if i != last:
        alias[0] = aliases.all[last]
        table_rename(
            &aliases.by_external_hash, hash_pair(alias.external_hash, alias.worker), last, i
        )
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
    table_free(&aliases.by_external_hash, memory)
    table_free(&aliases.by_block, memory)


cdef inline void aliases_trim(Aliases* aliases, Memory* memory) noexcept nogil:
    """Give back what is mostly unused."""
    cdef uint32_t wanted = aliases.used + aliases.used // 4 + 16
    if aliases.used == 0:
        aliases_close(aliases, memory)
        return
    table_trim(&aliases.by_external_hash, memory)
    table_trim(&aliases.by_block, memory)
    if wanted < aliases.capacity // 2:
        array_trim(memory, &aliases.all, &aliases.capacity, wanted, sizeof(Alias))


cdef inline uint32_t find_canonical(const Tree* tree, uint64_t external_hash) noexcept nogil:
    """The block whose canonical hash this is, or NONE."""
    cdef uint64_t step = 0
    cdef uint32_t hashed = hash_key(external_hash)
    cdef uint32_t block
    while True:
        block = table_seek(&tree.by_external_hash, hashed, &step)
        if block == NONE or tree.blocks.external_hash[block] == external_hash:
            return block


cdef inline bint is_canonical(const Tree* tree, uint32_t block) noexcept nogil:
    return tree.shadowed == 0 or find_canonical(tree, tree.blocks.external_hash[block]) == block


cdef inline uint64_t external_hash_of(
    const Tree* tree, uint32_t worker, uint32_t block
) noexcept nogil:
    """What a worker that covers the block calls it."""
    cdef uint32_t alias
    if tree.workers[worker].aliases != 0:
        alias = alias_by_block(&tree.aliases, worker, block)
        if alias != NONE:
            return tree.aliases.all[alias].external_hash
    return tree.blocks.external_hash[block]


cdef inline bint worker_calls_block(
    const Tree* tree, uint32_t worker, uint32_t block, uint64_t external_hash
) noexcept nogil:
    """Whether that is what a worker that covers the block calls it."""
    if tree.workers[worker].aliases == 0:
        return tree.blocks.external_hash[block] == external_hash
    return external_hash_of(tree, worker, block) == external_hash


cdef inline uint32_t find_held(
    const Tree* tree, uint32_t worker, uint64_t external_hash
) noexcept nogil:
    """The block that the worker holds under this hash, or NONE."""
    cdef uint32_t block
    cdef const Edge* edge
    if tree.workers[worker].aliases != 0:
        block = alias_by_external_hash(&tree.aliases, worker, external_hash)
        if block != NONE:
            return tree.aliases.all[block].block
    block = find_canonical(tree, external_hash)
    if block == NONE:
        return NONE
    edge = &tree.edges[tree.blocks.owner[block]]
    if block - edge.start >= edge_coverage(edge, worker):
        return NONE
    if (
        tree.workers[worker].aliases != 0
        and alias_by_block(&tree.aliases, worker, block) != NONE
    ):
        return NONE
    return block


cdef inline void forget_alias(Tree* tree, uint32_t worker, uint32_t block) noexcept nogil:
    cdef uint32_t alias = alias_by_block(&tree.aliases, worker, block)
    if alias != NONE:
        alias_drop(&tree.aliases, alias)
        tree.workers[worker].aliases -= 1
