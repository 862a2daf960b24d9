# _workers.pxd: the workers a tree knows, and the small numbers it knows them by.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from ...runtime.native._memory cimport array_grow
from ...runtime.native._table cimport NONE, hash_pair, table_add, table_remove, table_reserve, table_seek
from ._tree cimport Tree, Worker

cdef enum:
    MOST_WORKERS = 1 << 21  # an edge counts the words of its bitset in 16 bits


cdef inline uint32_t find_worker(
    const Tree* tree, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    """The worker's number in the tree, or NONE."""
    cdef uint64_t step = 0
    cdef uint32_t w
    while True:
        w = table_seek(&tree.by_name, hash_pair(worker_id, dp_rank), &step)
        if w == NONE or (
            tree.workers[w].worker_id == worker_id and tree.workers[w].dp_rank == dp_rank
        ):
            return w


cdef inline bint reserve_worker(Tree* tree) noexcept nogil:
    """Room for one more worker; false without memory."""
    cdef uint32_t old = tree.workers_room
    cdef uint32_t new = old * 2 + 64
    cdef void* grown
    if not table_reserve(&tree.by_name, &tree.memory, 1):
        return False
    if tree.workers_free != NONE or tree.workers_used < old:
        return True
    if old >= MOST_WORKERS:
        return False
    if tree.numbers_room < new:
        grown = array_grow(
            &tree.memory,
            tree.numbers,
            tree.numbers_room * sizeof(uint32_t),
            new * sizeof(uint32_t),
        )
        if grown == NULL:
            return False
        tree.numbers = <uint32_t*>grown
        tree.numbers_room = new
    grown = array_grow(&tree.memory, tree.workers, old * sizeof(Worker), new * sizeof(Worker))
    if grown == NULL:
        return False
    tree.workers = <Worker*>grown
    tree.workers_room = new
    return True


cdef inline uint32_t intern_worker(
    Tree* tree, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    """The worker's number in the tree, new if need be; NONE without memory."""
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
        tree.workers_free = tree.workers[w].next_vacant
    memset(&tree.workers[w], 0, sizeof(Worker))
    tree.workers[w].worker_id = worker_id
    tree.workers[w].dp_rank = dp_rank
    tree.numbers[w] = NONE
    tree.workers[w].live = True
    table_add(&tree.by_name, hash_pair(worker_id, dp_rank), w)
    tree.n_workers += 1
    tree.names += 1
    return w


cdef inline void forget_worker(Tree* tree, uint32_t worker) noexcept nogil:
    """Free the number of a worker that holds nothing any more."""
    cdef Worker* gone = &tree.workers[worker]
    table_remove(&tree.by_name, hash_pair(gone.worker_id, gone.dp_rank), worker)
    gone.live = False
    tree.numbers[worker] = NONE
    gone.next_vacant = tree.workers_free
    tree.workers_free = worker
    tree.n_workers -= 1
    tree.names += 1
