# cython: language_level=3
"""_predictions.pyx: blocks that routing makes likely, each with a deadline. Face: approximate.py.

Predictions stand in one list by deadline. A route moves those of its chain to the end, the deepest
first, so every block stands behind those below it: whatever is taken from the front, by time or by
size, never leaves a hole in a chain.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from ._integers cimport UIntView, view_integers
from ..runtime.native._memory cimport Memory, array_grow, array_release
from .tree._ops cimport (
    tree_bind,
    tree_drop_worker,
    tree_find_worker,
    tree_remove,
    tree_store,
    tree_worker,
)
from .tree._radix cimport RadixTree
from ..runtime.native._table cimport (
    NONE,
    Table,
    hash_pair,
    table_add,
    table_free,
    table_remove,
    table_reserve,
    table_seek,
)
from .tree._tree cimport TREE_NO_MEMORY, TREE_OK

cdef enum:
    RUN = 256  # predictions of one worker that leave the tree in one call

cdef struct Prediction:
    uint64_t key       # sequence hash: the block's external hash in the tree
    uint64_t deadline  # the tick from which it is believed no more
    uint32_t worker    # the tree's number
    uint32_t before    # towards the front, where the earliest deadline is
    uint32_t after     # the next vacant one, if it is vacant
    bint live

cdef struct Predictions:
    Memory memory
    Table by_key       # (worker, key) -> prediction
    Prediction* all
    uint32_t used      # entries ever in use
    uint32_t room
    uint32_t vacant
    uint32_t front
    uint32_t back
    uint32_t count


cdef uint32_t find(const Predictions* p, uint32_t worker, uint64_t key) noexcept nogil:
    cdef uint64_t step = 0
    cdef uint32_t hashed = hash_pair(key, worker)
    cdef uint32_t i
    while True:
        i = table_seek(&p.by_key, hashed, &step)
        if i == NONE or (p.all[i].key == key and p.all[i].worker == worker):
            return i


cdef void unlink(Predictions* p, uint32_t i) noexcept nogil:
    cdef Prediction* one = &p.all[i]
    if one.before != NONE:
        p.all[one.before].after = one.after
    else:
        p.front = one.after
    if one.after != NONE:
        p.all[one.after].before = one.before
    else:
        p.back = one.before


cdef void append(Predictions* p, uint32_t i) noexcept nogil:
    p.all[i].before = p.back
    p.all[i].after = NONE
    if p.back != NONE:
        p.all[p.back].after = i
    else:
        p.front = i
    p.back = i


cdef bint reserve(Predictions* p, uint32_t more) noexcept nogil:
    cdef uint64_t wanted = <uint64_t>p.used + more
    cdef uint64_t room = wanted + wanted // 2
    cdef void* grown
    if not table_reserve(&p.by_key, &p.memory, more):
        return False
    if wanted <= p.room:
        return True
    if room >= NONE:
        return False
    grown = array_grow(
        &p.memory, p.all, p.room * sizeof(Prediction), <size_t>room * sizeof(Prediction)
    )
    if grown == NULL:
        return False
    p.all = <Prediction*>grown
    p.room = <uint32_t>room
    return True


cdef void touch(Predictions* p, uint32_t worker, uint64_t key, uint64_t deadline) noexcept nogil:
    """Believe one block until the deadline. Room must have been reserved."""
    cdef uint32_t i = find(p, worker, key)
    if i != NONE:
        unlink(p, i)
    else:
        i = p.vacant
        if i == NONE:
            i = p.used
            p.used += 1
        else:
            p.vacant = p.all[i].after
        p.all[i].key = key
        p.all[i].worker = worker
        p.all[i].live = True
        p.count += 1
        table_add(&p.by_key, hash_pair(key, worker), i)
    p.all[i].deadline = deadline
    append(p, i)


cdef void forget(Predictions* p, uint32_t i) noexcept nogil:
    unlink(p, i)
    table_remove(&p.by_key, hash_pair(p.all[i].key, p.all[i].worker), i)
    p.all[i].live = False
    p.all[i].after = p.vacant
    p.vacant = i
    p.count -= 1


@cython.final
cdef class PredictionTree:
    """A radix tree of predicted blocks, and their deadlines in ticks. Not thread-safe."""

    cdef Predictions books
    cdef readonly RadixTree tree

    def __cinit__(self):
        self.books.memory.fuse = -1
        self.books.vacant = self.books.front = self.books.back = NONE
        self.tree = RadixTree()

    def __dealloc__(self):
        array_release(
            &self.books.memory, self.books.all, self.books.room * sizeof(Prediction)
        )
        table_free(&self.books.by_key, &self.books.memory)

    def __len__(self):
        return self.books.count

    def memory_bytes(self):
        return self.books.memory.bytes + self.tree.memory_bytes()

    def record(self, worker, local_hashes, sequence_hashes, uint64_t deadline):
        """Believe until `deadline` that the worker holds this chain, which starts at the root.

        A deadline before the last one recorded counts as that one. Raises ValueError for hashes
        that differ in number, or of which one comes twice.
        """
        cdef UIntView local = view_integers(local_hashes, 8, "local hash")
        cdef UIntView keys = view_integers(sequence_hashes, 8, "sequence hash")
        cdef const uint64_t* key = <const uint64_t*>keys.data
        cdef Predictions* p = &self.books
        cdef uint64_t worker_id = worker[0]
        cdef uint32_t dp_rank = worker[1]
        cdef uint32_t w, i
        cdef int status
        if local.size != keys.size:
            raise ValueError(f"{local.size} local hashes and {keys.size} sequence hashes")
        if keys.size >= NONE // 2:
            raise ValueError(f"{keys.size} hashes are more than a prompt can have")
        w = tree_worker(self.tree.tree, worker_id, dp_rank)
        if w == NONE or not reserve(p, <uint32_t>keys.size):
            raise MemoryError
        if p.back != NONE and deadline < p.all[p.back].deadline:
            deadline = p.all[p.back].deadline
        for i in range(<uint32_t>keys.size, 0, -1):
            touch(p, w, key[i - 1], deadline)
        # Whatever of it is refused has a deadline all the same, so nothing stays for ever.
        status = tree_store(
            self.tree.tree, w, False, 0, key, <const uint64_t*>local.data, <uint32_t>keys.size
        )
        if status == TREE_NO_MEMORY:
            raise MemoryError
        if status != TREE_OK:
            raise ValueError("a sequence hash comes twice in a chain")

    def expire(self, uint64_t tick):
        """Forget what is believed until this tick at most; returns how many blocks that were."""
        return self.take_front(tick, 0)

    def prune(self, uint32_t keep):
        """Forget the earliest deadlines until `keep` blocks are left; returns how many went."""
        return self.take_front(<uint64_t>-1, keep)

    cdef take_front(self, uint64_t tick, uint32_t keep):
        cdef Predictions* p = &self.books
        cdef uint64_t run[RUN]
        cdef uint32_t i, n, w, unknown
        cdef uint32_t before = p.count
        while p.count > keep and p.all[p.front].deadline <= tick:
            w = p.all[p.front].worker
            i = p.front
            n = 0
            while (
                i != NONE
                and n < RUN
                and p.count - n > keep
                and p.all[i].worker == w
                and p.all[i].deadline <= tick
            ):
                run[n] = p.all[i].key
                n += 1
                i = p.all[i].after
            # From the tree first: if that fails, they are still here for the next attempt.
            if tree_remove(self.tree.tree, w, run, n, &unknown) == TREE_NO_MEMORY:
                raise MemoryError
            while n > 0:
                forget(p, p.front)
                n -= 1
        return before - p.count

    def bind(self, worker, uint32_t number):
        cdef uint32_t w = tree_worker(self.tree.tree, worker[0], worker[1])
        if w == NONE:
            raise MemoryError
        tree_bind(self.tree.tree, w, number)

    def remove_worker(self, worker):
        """Forget one (worker, rank) and all that is believed of it."""
        cdef Predictions* p = &self.books
        cdef uint32_t i
        cdef uint32_t w = tree_find_worker(self.tree.tree, worker[0], worker[1])
        if w == NONE:
            return
        for i in range(p.used):
            if p.all[i].live and p.all[i].worker == w:
                forget(p, i)
        tree_drop_worker(self.tree.tree, w)
