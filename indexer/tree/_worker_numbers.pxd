"""A tree's own numbers of its workers: from 0, used again when a worker is gone."""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from ...runtime.native._memory cimport array_reserve, array_trim
from ...runtime.native._table cimport (
    NONE,
    table_add,
    table_hash_pair,
    table_remove,
    table_reserve,
    table_seek,
    table_trim,
)
from ._tree cimport Tree, Worker

cdef enum:
    MOST_WORKERS = 1 << 21  # an edge counts the words of its bitset in 16 bits


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
