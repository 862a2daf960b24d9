"""Where a chain that is being stored has got to."""
from libc.stdint cimport uint32_t

from ...base.native._yield_points cimport yield_after
from ._edge cimport STORED, edge_cover, edge_coverage, edge_mark
from ._shape cimport merge_edge
from ._tree cimport ON_PATH, ROOT, Edge, Tree
from ._workers cimport list_edge

cdef struct TreePosition:
    uint32_t edge   # where a chain has got to: an edge
    uint32_t at     # and how many of its blocks are behind
    bint on_path    # whether edges above are flagged ON_PATH


cdef inline void position_behind(
    const Tree* tree, TreePosition* position, uint32_t block
) noexcept nogil:
    """Move the position behind a block."""
    position.edge = tree.blocks.owner[block]
    position.at = block + 1 - tree.edges[position.edge].start


cdef inline bint position_advance(
    Tree* tree, TreePosition* position, uint32_t worker, uint32_t run
) noexcept nogil:
    """Let the worker cover the next `run` blocks of the edge; false without memory."""
    cdef Edge* edge = &tree.edges[position.edge]
    cdef uint32_t covered = edge_coverage(edge, worker)
    cdef uint32_t last, parent
    edge_mark(edge, STORED)
    position.at += run
    if position.at <= covered:
        return True
    if not edge_cover(edge, &tree.memory, worker, position.at):
        return False
    tree.workers[worker].blocks += position.at - covered
    if covered == 0:
        list_edge(tree, worker, position.edge)
        edge = &tree.edges[position.edge]
    if position.at == edge.len:
        # A hole may have been filled.
        last = edge.start + edge.len - 1
        parent = edge.parent
        merge_edge(tree, position.edge)
        merge_edge(tree, parent)
        position_behind(tree, position, last)
    return True


cdef inline bint position_is_below(
    const Tree* tree, TreePosition position, uint32_t block
) noexcept nogil:
    """Whether a block lies on the path from the root to the position."""
    cdef uint32_t home = tree.blocks.owner[block]
    while position.edge != ROOT:
        if position.edge == home:
            return block - tree.edges[home].start < position.at
        position.edge = tree.edges[position.edge].parent
        position.at = tree.edges[position.edge].len
    return False


cdef inline bint position_has_passed(
    Tree* tree, TreePosition* position, uint32_t block
) noexcept nogil:
    """As position_is_below; a chain that asks more than once walks up once in all."""
    cdef uint32_t home = tree.blocks.owner[block]
    cdef uint32_t e = position.edge
    position.on_path = True
    while e != ROOT and not tree.edges[e].flags & ON_PATH:
        tree.edges[e].flags |= ON_PATH
        e = tree.edges[e].parent
        yield_after(&tree.memory.yield_points, 1)
    if home == position.edge:
        return block - tree.edges[home].start < position.at
    return tree.edges[home].flags & ON_PATH != 0


cdef inline void unflag_path(Tree* tree, uint32_t e) noexcept nogil:
    """Of edge `e` and those above."""
    while e != ROOT:
        tree.edges[e].flags &= ~ON_PATH
        e = tree.edges[e].parent
        yield_after(&tree.memory.yield_points, 1)
