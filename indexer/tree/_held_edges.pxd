"""Which edges a worker covers, so that it can leave without a walk of the whole tree.

A worker's list has every edge of which it covers something. An entry is added when coverage of an
edge begins, and stays when that ends: what an edge says counts. A list without room loses its
needless entries before it grows, and one that is much longer than its worker holds blocks loses
them too; so going through it is linear in those blocks. A worker for whose list there is no memory
has none until it holds nothing: all edges are looked at then.
"""
from libc.stdint cimport uint32_t, uint64_t

from ...runtime.native._memory cimport array_give_back, array_reserve, array_trim, enlarged_capacity
from ...runtime.native._table cimport prefetch
from ...runtime.native._yield_points cimport yield_after
from ._edge cimport edge_coverage, lowest64
from ._tree cimport AHEAD, LISTED, Edge, Tree, Worker

cdef enum:
    LEAST_LISTED = 8     # entries that a list is made for


cdef inline void unlist_worker(Tree* tree, uint32_t worker) noexcept nogil:
    """Free the list of a worker that covers nothing."""
    cdef Worker* holder = &tree.workers[worker]
    cdef uint32_t* edges = holder.edges
    cdef size_t size = <size_t>holder.edges_capacity * sizeof(uint32_t)
    holder.edges = NULL
    holder.edges_used = holder.edges_capacity = 0
    holder.unlisted = False
    array_give_back(&tree.memory, edges, size)


cdef inline void compact_list(Tree* tree, uint32_t worker) noexcept nogil:
    """Keep one entry for each edge that the worker covers a part of."""
    cdef Worker* holder = &tree.workers[worker]
    cdef uint32_t* edges = holder.edges
    cdef uint32_t i, e, kept = 0
    cdef Edge* edge
    for i in range(holder.edges_used):
        if i + AHEAD < holder.edges_used and edges[i + AHEAD] < tree.edges_used:
            prefetch(&tree.edges[edges[i + AHEAD]])
        e = edges[i]
        if e < tree.edges_used:
            edge = &tree.edges[e]
            if not edge.flags & LISTED and edge_coverage(edge, worker) != 0:
                edge.flags |= LISTED
                edges[kept] = e
                kept += 1
        yield_after(&tree.memory.yield_points, 1)
    for i in range(kept):
        tree.edges[edges[i]].flags &= ~LISTED
        yield_after(&tree.memory.yield_points, 1)
    holder.edges_used = kept


cdef inline bint reserve_in_list(Tree* tree, uint32_t worker) noexcept nogil:
    """Room for one more entry; false without memory."""
    cdef Worker* holder = &tree.workers[worker]
    cdef uint64_t wanted
    compact_list(tree, worker)
    wanted = enlarged_capacity(holder.edges_used, LEAST_LISTED)
    if wanted > holder.edges_capacity:
        array_reserve(
            &tree.memory, &holder.edges, &holder.edges_capacity, wanted, sizeof(uint32_t)
        )
    return holder.edges_used < holder.edges_capacity


cdef inline void list_edge(Tree* tree, uint32_t worker, uint32_t e) noexcept nogil:
    """Note that the worker has begun to cover the edge. The tree is whole."""
    cdef Worker* holder = &tree.workers[worker]
    if holder.unlisted:
        return
    if holder.edges_used == holder.edges_capacity and not reserve_in_list(tree, worker):
        unlist_worker(tree, worker)
        holder.unlisted = True
        return
    holder.edges[holder.edges_used] = e
    holder.edges_used += 1


cdef inline void list_holders(Tree* tree, uint32_t e) noexcept nogil:
    """Note that all who cover a part of the edge have begun to. The tree is whole."""
    cdef const Edge* edge = &tree.edges[e]
    cdef uint64_t word
    cdef uint32_t i
    for i in range(edge.n_partial):
        list_edge(tree, edge.partial[i].worker, e)
        yield_after(&tree.memory.yield_points, 1)
    if edge.n_words == 0:
        for i in range(edge.n_full):
            list_edge(tree, edge.full.few[i], e)
    for i in range(edge.n_words):
        word = edge.full.words[i]
        while word != 0:
            list_edge(tree, 64 * i + lowest64(word), e)
            word &= word - 1
            yield_after(&tree.memory.yield_points, 1)


cdef inline void trim_list(Tree* tree, uint32_t worker) noexcept nogil:
    """After the worker lost blocks: keep its list in proportion to those it holds."""
    cdef Worker* holder = &tree.workers[worker]
    cdef uint64_t wanted
    if <uint64_t>holder.edges_used // 4 <= holder.blocks + <uint64_t>(2 * LEAST_LISTED):
        return
    compact_list(tree, worker)
    wanted = enlarged_capacity(holder.edges_used, LEAST_LISTED)
    if wanted < <uint64_t>holder.edges_capacity // 2:
        array_trim(&tree.memory, &holder.edges, &holder.edges_capacity, wanted, sizeof(uint32_t))
