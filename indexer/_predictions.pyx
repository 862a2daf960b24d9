"""Blocks that routing makes likely, each with a deadline.

Predictions stand in one list by deadline. A route moves those of its chain to the end, the deepest
first, so every block stands behind those below it: whatever is taken from the front, by time or by
size, never leaves a hole in a chain.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from ..base.native._memory cimport Memory, array_release, array_reserve, memory_init
from ..base.native._mix cimport random_multiplier
from ..base.native._table cimport (
    NONE,
    Table,
    table_hash_pair,
    table_add,
    table_free,
    table_init,
    table_remove,
    table_reserve,
    table_seek,
)
from ._integers cimport UIntView, view_integers
from .tree._ops cimport (
    TREE_NO_MEMORY,
    TREE_OK,
    tree_bind,
    tree_drop_worker,
    tree_find_worker,
    tree_intern_worker,
    tree_remove,
    tree_store,
)
from .tree._radix cimport RadixTree

cdef enum:
    RUN = 256  # predictions of one worker that leave the tree in one call

cdef struct Prediction:
    uint64_t sequence_hash   # also the block's external hash in the tree
    uint64_t deadline        # the tick from which it is believed no more
    uint32_t worker          # the tree's number
    uint32_t before          # towards the front, where the earliest deadline is
    uint32_t after           # towards the back; of a vacant entry: the next vacant one
    bint live                # false: the entry is vacant

cdef struct Predictions:
    Memory memory
    Table by_sequence_hash   # (worker, sequence hash) -> prediction
    Prediction* all          # owned
    uint32_t used            # entries ever in use
    uint32_t capacity        # of `all`
    uint32_t vacant          # first vacant entry, or NONE
    uint32_t front           # first to be forgotten, or NONE
    uint32_t back            # last one, or NONE
    uint32_t count           # predictions


cdef uint32_t find_prediction(
    const Predictions* p, uint32_t worker, uint64_t sequence_hash
) noexcept nogil:
    cdef uint64_t step = 0
    cdef uint32_t hashed = table_hash_pair(&p.by_sequence_hash, sequence_hash, worker)
    cdef uint32_t i
    while True:
        i = table_seek(&p.by_sequence_hash, hashed, &step)
        if i == NONE or (p.all[i].sequence_hash == sequence_hash and p.all[i].worker == worker):
            return i


cdef void unlink_prediction(Predictions* p, uint32_t i) noexcept nogil:
    cdef Prediction* one = &p.all[i]
    if one.before != NONE:
        p.all[one.before].after = one.after
    else:
        p.front = one.after
    if one.after != NONE:
        p.all[one.after].before = one.before
    else:
        p.back = one.before


cdef void append_prediction(Predictions* p, uint32_t i) noexcept nogil:
    p.all[i].before = p.back
    p.all[i].after = NONE
    if p.back != NONE:
        p.all[p.back].after = i
    else:
        p.front = i
    p.back = i


cdef bint reserve_predictions(Predictions* p, uint32_t more) noexcept nogil:
    """Capacity for `more`; false without memory."""
    cdef uint64_t wanted = <uint64_t>p.used + more
    if not table_reserve(&p.by_sequence_hash, &p.memory, more):
        return False
    if wanted <= p.capacity:
        return True
    wanted += wanted // 2
    return wanted < NONE and array_reserve(
        &p.memory, &p.all, &p.capacity, <uint32_t>wanted, sizeof(Prediction)
    )


cdef void touch_prediction(
    Predictions* p, uint32_t worker, uint64_t sequence_hash, uint64_t deadline
) noexcept nogil:
    """Believe one block until the deadline. Capacity must have been reserved."""
    cdef uint32_t i = find_prediction(p, worker, sequence_hash)
    if i != NONE:
        unlink_prediction(p, i)
    else:
        i = p.vacant
        if i == NONE:
            i = p.used
            p.used += 1
        else:
            p.vacant = p.all[i].after
        p.all[i].sequence_hash = sequence_hash
        p.all[i].worker = worker
        p.all[i].live = True
        p.count += 1
        table_add(&p.by_sequence_hash, table_hash_pair(&p.by_sequence_hash, sequence_hash, worker), i)
    p.all[i].deadline = deadline
    append_prediction(p, i)


cdef void forget_prediction(Predictions* p, uint32_t i) noexcept nogil:
    unlink_prediction(p, i)
    table_remove(&p.by_sequence_hash, table_hash_pair(&p.by_sequence_hash, p.all[i].sequence_hash, p.all[i].worker), i)
    p.all[i].live = False
    p.all[i].after = p.vacant
    p.vacant = i
    p.count -= 1


@cython.final
cdef class PredictionTree:
    """A radix tree of predicted blocks, and their deadlines in ticks. Not thread-safe."""

    cdef Predictions predictions
    cdef readonly RadixTree tree

    def __cinit__(self):
        memory_init(&self.predictions.memory)
        table_init(&self.predictions.by_sequence_hash, random_multiplier())
        self.predictions.vacant = self.predictions.front = self.predictions.back = NONE
        self.tree = RadixTree()

    def __dealloc__(self):
        cdef Predictions* p = &self.predictions
        array_release(&p.memory, p.all, p.capacity * sizeof(Prediction))
        table_free(&p.by_sequence_hash, &p.memory)

    def __len__(self):
        return self.predictions.count

    def memory_bytes(self):
        return self.predictions.memory.bytes + self.tree.memory_bytes()

    def record(self, worker, local_hashes, sequence_hashes, uint64_t deadline):
        """Believe until `deadline` that the worker holds this chain, which starts at the root.

        A deadline before the last one recorded counts as that one. Raises ValueError for hashes
        that differ in number, or of which one comes twice.
        """
        cdef UIntView local = view_integers(local_hashes, 8, "local hash")
        cdef UIntView sequence = view_integers(sequence_hashes, 8, "sequence hash")
        cdef const uint64_t* hashes = <const uint64_t*>sequence.data
        cdef Predictions* p = &self.predictions
        cdef uint64_t worker_id = worker[0]
        cdef uint32_t dp_rank = worker[1]
        cdef uint32_t w, i
        cdef int status
        if local.size != sequence.size:
            raise ValueError(f"{local.size} local hashes and {sequence.size} sequence hashes")
        if sequence.size >= NONE // 2:
            raise ValueError(f"{sequence.size} hashes are more than a prompt can have")
        w = tree_intern_worker(self.tree.tree, worker_id, dp_rank)
        if w == NONE or not reserve_predictions(p, <uint32_t>sequence.size):
            raise MemoryError
        if p.back != NONE and deadline < p.all[p.back].deadline:
            deadline = p.all[p.back].deadline
        for i in range(<uint32_t>sequence.size, 0, -1):
            touch_prediction(p, w, hashes[i - 1], deadline)
        # Whatever of it is refused has a deadline all the same, so nothing stays for ever.
        status = tree_store(
            self.tree.tree,
            w,
            False,
            0,
            hashes,
            <const uint64_t*>local.data,
            <uint32_t>sequence.size,
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
        cdef Predictions* p = &self.predictions
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
                run[n] = p.all[i].sequence_hash
                n += 1
                i = p.all[i].after
            # From the tree first: if that fails, they are still here for the next attempt.
            if tree_remove(self.tree.tree, w, run, n, &unknown) == TREE_NO_MEMORY:
                raise MemoryError
            while n > 0:
                forget_prediction(p, p.front)
                n -= 1
        return before - p.count

    def bind(self, worker, uint32_t number):
        cdef uint32_t w = tree_intern_worker(self.tree.tree, worker[0], worker[1])
        if w == NONE:
            raise MemoryError
        tree_bind(self.tree.tree, w, number)

    def remove_worker(self, worker):
        """Forget one (worker, rank) and all that is believed of it."""
        cdef Predictions* p = &self.predictions
        cdef uint32_t i
        cdef uint32_t w = tree_find_worker(self.tree.tree, worker[0], worker[1])
        if w == NONE:
            return
        for i in range(p.used):
            if p.all[i].live and p.all[i].worker == w:
                forget_prediction(p, i)
        tree_drop_worker(self.tree.tree, w)
