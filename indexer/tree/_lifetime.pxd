# _lifetime.pxd: making a tree, and freeing it.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ._aliases cimport aliases_close
from ._arena cimport arena_close, arena_init
from ._edge cimport Edge, edge_uncover_all
from ...runtime.native._memory cimport array_release
from ...runtime.native._table cimport NONE, table_free
from ._tree cimport Tree, Worker, new_edge, reserve_edge


cdef inline Tree* make_tree() noexcept nogil:
    """An empty tree; NULL without memory."""
    cdef Tree* tree = <Tree*>calloc(1, sizeof(Tree))
    if tree == NULL:
        return NULL
    tree.memory.fuse = -1
    tree.max_blocks = <uint64_t>-1
    tree.fresh = NONE
    tree.edges_free = tree.workers_free = NONE
    arena_init(&tree.blocks)
    if not reserve_edge(tree):
        free_tree(tree)
        return NULL
    new_edge(tree)  # ROOT
    return tree


cdef inline void free_tree(Tree* tree) noexcept nogil:
    cdef uint32_t e
    if tree == NULL:
        return
    for e in range(tree.edges_used):
        edge_uncover_all(&tree.edges[e], &tree.memory)
    array_release(&tree.memory, tree.edges, tree.edges_room * sizeof(Edge))
    array_release(&tree.memory, tree.workers, tree.workers_room * sizeof(Worker))
    array_release(&tree.memory, tree.numbers, tree.numbers_room * sizeof(uint32_t))
    arena_close(&tree.blocks, &tree.memory)
    aliases_close(&tree.aliases, &tree.memory)
    table_free(&tree.by_ext, &tree.memory)
    table_free(&tree.children, &tree.memory)
    table_free(&tree.by_name, &tree.memory)
    free(tree)
