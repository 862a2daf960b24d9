"""A tree's workers: the number of each, and which edges it covers.

The tree numbers them from 0, and uses the number of one that is gone again.

A worker's list has every edge of which it covers something, so that it can leave without a walk of
the whole tree. An entry is added when coverage of an edge begins, and stays when that ends: what an
edge says counts. A list without room loses its needless entries before it grows, and one that is
much longer than its worker holds blocks loses them too; so going through it is linear in those
blocks. A worker for whose list there is no memory has none until it holds nothing: all edges are
looked at then.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from ...base.native._memory cimport array_give_back, array_reserve, array_trim, enlarged_capacity
from ...base.native._table cimport (
    NONE,
    prefetch,
    table_add,
    table_hash_pair,
    table_remove,
    table_reserve,
    table_seek,
    table_trim,
)
from ...base.native._yield_points cimport yield_after
from ._edge cimport edge_coverage, lowest64
from ._tree cimport AHEAD, LISTED, Edge, Tree, Worker

cdef enum:
    MOST_WORKERS = 1 << 21  # an edge counts the words of its bitset in 16 bits
    LEAST_LISTED = 8        # entries that a list is made for


# Numbers -----------------------------------------------------------------------------------------

cdef inline uint32_t find_worker(
    const Tree* tree, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    """The number of a worker, or NONE."""
    cdef uint64_t step = 0
    cdef uint32_t w
    while True:
        w = table_seek(&tree.by_worker_id, table_hash_pair(&tree.by_worker_id, worker_id, dp_rank), &step)
        if w == NONE or (
            tree.workers[w].worker_id == worker_id and tree.workers[w].dp_rank == dp_rank
        ):
            return w


cdef inline bint reserve_worker(Tree* tree) noexcept nogil:
    """Capacity for one more worker; false without memory."""
    cdef uint32_t wanted = tree.workers_capacity * 2 + 64
    if not table_reserve(&tree.by_worker_id, &tree.memory, 1):
        return False
    if tree.workers_free != NONE or tree.workers_used < tree.workers_capacity:
        return True
    if tree.workers_capacity >= MOST_WORKERS:
        return False
    return array_reserve(
        &tree.memory, &tree.numbers, &tree.numbers_capacity, wanted, sizeof(uint32_t)
    ) and array_reserve(
        &tree.memory, &tree.workers, &tree.workers_capacity, wanted, sizeof(Worker)
    )


cdef inline void list_vacant(Tree* tree, uint32_t w) noexcept nogil:
    """A number below the end is vacant."""
    tree.workers[w].live = False
    tree.workers[w].prev_vacant = NONE
    tree.workers[w].next_vacant = tree.workers_free
    if tree.workers_free != NONE:
        tree.workers[tree.workers_free].prev_vacant = w
    tree.workers_free = w


cdef inline void unlist_vacant(Tree* tree, uint32_t w) noexcept nogil:
    """A vacant number is to be used again, or is above the end."""
    cdef uint32_t before = tree.workers[w].prev_vacant
    cdef uint32_t after = tree.workers[w].next_vacant
    if before == NONE:
        tree.workers_free = after
    else:
        tree.workers[before].next_vacant = after
    if after != NONE:
        tree.workers[after].prev_vacant = before


cdef inline void trim_workers(Tree* tree) noexcept nogil:
    """End above the highest number in use, and give memory back if that is far below.

    What grows with the end (a match, the list of workers) does not go by all that ever were here.
    """
    cdef uint32_t wanted
    while tree.workers_used != 0 and not tree.workers[tree.workers_used - 1].live:
        tree.workers_used -= 1
        unlist_vacant(tree, tree.workers_used)
    table_trim(&tree.by_worker_id, &tree.memory)
    wanted = max(<uint32_t>64, 2 * tree.workers_used)
    if tree.workers_capacity < 2 * wanted:
        return
    if array_trim(&tree.memory, &tree.workers, &tree.workers_capacity, wanted, sizeof(Worker)):
        array_trim(&tree.memory, &tree.numbers, &tree.numbers_capacity, wanted, sizeof(uint32_t))


cdef inline uint32_t intern_worker(
    Tree* tree, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    """The number of a worker, a new one if it has none; NONE without memory."""
    cdef uint32_t w = find_worker(tree, worker_id, dp_rank)
    if w != NONE:
        return w
    if not reserve_worker(tree):
        return NONE
    w = tree.workers_free
    if w == NONE:
        w = tree.workers_used
        tree.workers_used += 1
    else:
        unlist_vacant(tree, w)
    memset(&tree.workers[w], 0, sizeof(Worker))
    tree.workers[w].worker_id = worker_id
    tree.workers[w].dp_rank = dp_rank
    tree.workers[w].live = True
    tree.numbers[w] = NONE
    table_add(&tree.by_worker_id, table_hash_pair(&tree.by_worker_id, worker_id, dp_rank), w)
    tree.n_workers += 1
    tree.workers_version += 1
    return w


cdef inline void vacate_worker(Tree* tree, uint32_t worker) noexcept nogil:
    """A worker that holds nothing is gone: its number is free again."""
    cdef const Worker* gone = &tree.workers[worker]
    table_remove(
        &tree.by_worker_id,
        table_hash_pair(&tree.by_worker_id, gone.worker_id, gone.dp_rank),
        worker,
    )
    list_vacant(tree, worker)
    tree.numbers[worker] = NONE
    tree.n_workers -= 1
    tree.workers_version += 1
    trim_workers(tree)


# Lists of edges ----------------------------------------------------------------------------------

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
