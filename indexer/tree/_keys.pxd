# _keys.pxd: by which hash a worker knows a block.
from libc.stdint cimport uint32_t, uint64_t

from ._aliases cimport alias_by_block, alias_by_key, alias_drop
from ._edge cimport Edge, edge_coverage
from ...runtime.native._table cimport NONE
from ._tree cimport Tree, find_canonical


cdef inline bint is_canonical(const Tree* tree, uint32_t block) noexcept nogil:
    return tree.shadowed == 0 or find_canonical(tree, tree.blocks.ext[block]) == block


cdef inline bint is_key(
    const Tree* tree, uint32_t worker, uint32_t block, uint64_t ext
) noexcept nogil:
    """Whether a worker that covers the block calls it so. Without an alias its key is canonical."""
    cdef uint32_t alias
    if tree.workers[worker].aliases != 0:
        alias = alias_by_block(&tree.aliases, worker, block)
        if alias != NONE:
            return tree.aliases.all[alias].ext == ext
    return tree.blocks.ext[block] == ext


cdef inline uint32_t find_held(const Tree* tree, uint32_t worker, uint64_t ext) noexcept nogil:
    """The block that the worker holds under this hash, or NONE."""
    cdef uint32_t block
    cdef const Edge* edge
    if tree.workers[worker].aliases != 0:
        block = alias_by_key(&tree.aliases, worker, ext)
        if block != NONE:
            return tree.aliases.all[block].block
    block = find_canonical(tree, ext)
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
