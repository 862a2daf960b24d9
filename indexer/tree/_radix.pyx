"""Who holds which block: a path-compressed radix tree over local hashes, as Python objects.

A worker's truth is a map from external hash to a path of local hashes; the tree is the union of
them. A score is the length of the contiguous prefix that a worker holds, so a block that was
removed from the middle hides those below it until it is stored again.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ...base.native._table cimport NONE
from .._integers cimport UIntView
from ..wire._events cimport EVENT_REMOVED, EVENT_STORED, Event
from ..wire._wire cimport batch_free, batch_init, decode_json_event
from ._arguments cimport as_hash, raise_status, read_worker, view_hashes
from ._ops cimport (
    TREE_BLOCK_NOT_FOUND,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_NOT_FOUND,
    Hits,
    Tree,
    TreeTotals,
    WorkerInfo,
    WorkerKey,
    hits_free,
    tree_bind,
    tree_clear,
    tree_close,
    tree_drop_worker,
    tree_find_worker,
    tree_intern_worker,
    tree_limit,
    tree_match,
    tree_match_bound,
    tree_open,
    tree_remove,
    tree_store,
    tree_store_cross_tier,
    tree_totals,
    tree_worker_info,
    tree_workers_end,
    tree_workers_version,
)

import numpy as np

from ...base.identity import WorkerWithDpRank
from ..wire import describe_decode_error, encode_router_event


cdef uint32_t require_worker(Tree* tree, const WorkerKey* key) except? 0xFFFFFFFF:
    """The tree's number of a worker, new if need be."""
    cdef uint32_t w = tree_intern_worker(tree, key.worker_id, key.dp_rank)
    if w == NONE:
        raise MemoryError
    return w


cdef class Match:
    """How many leading blocks of a request each worker holds; workers with none are left out."""

    @property
    def workers(self):
        """The workers: an array of WorkerWithDpRank objects."""
        return self.worker_array[np.frombuffer(self.index, np.uint32)]

    @property
    def overlaps(self):
        """Their overlaps in blocks, aligned with `workers`: a read-only array of uint32."""
        return np.frombuffer(self.blocks, np.uint32)

    @property
    def scores(self):
        """The same as a dict from WorkerWithDpRank to blocks."""
        cdef const uint32_t* numbers
        cdef const uint32_t* blocks
        cdef uint32_t i
        if self.cached is None:
            numbers = <const uint32_t*><const char*>self.index
            blocks = <const uint32_t*><const char*>self.blocks
            self.cached = {}
            for i in range(self.count):
                self.cached[self.worker_list[numbers[i]]] = blocks[i]
        return self.cached

    @property
    def frequencies(self):
        """Dynamo keeps this field and leaves it empty; so does this."""
        return []

    def __len__(self):
        return self.count

    def __repr__(self):
        return f"Match({self.scores!r})"


cdef class RadixTree:
    """The index. Not for several threads at once, except through the interpreter's lock.

    A worker is an id, which means its rank 0, or (worker_id, dp_rank). Hashes are arrays of
    uint64, which are not copied, or lists or tuples of ints.

    With `max_blocks` the tree holds no more than that many different blocks after any call, where
    a hash that a worker alone has for a block (`num_aliases`) counts as one: it drops the branches that were of use longest ago. What a worker loses that way is counted in
    `num_missing`; the tree then says less than the worker holds, never more.
    """

    def __cinit__(self, max_blocks=None):
        if max_blocks is not None and not 1 <= max_blocks < 1 << 64:
            raise ValueError(f"max_blocks must be at least 1, not {max_blocks}")
        self.tree = tree_open()
        if self.tree == NULL:
            raise MemoryError
        if max_blocks is not None:
            tree_limit(self.tree, max_blocks)
        batch_init(&self.batch)
        self.worker_list = []
        self.worker_array = np.empty(0, object)

    def __dealloc__(self):
        tree_close(self.tree)
        batch_free(&self.batch)

    cdef int refresh_workers(self) except -1:
        """Make `worker_list` and `worker_array` those of the tree's present workers."""
        cdef WorkerInfo info
        cdef uint64_t version = tree_workers_version(self.tree)
        workers = []
        for w in range(tree_workers_end(self.tree)):
            info = tree_worker_info(self.tree, w)
            workers.append(WorkerWithDpRank(info.key.worker_id, info.key.dp_rank))
        worker_array = np.empty(len(workers), object)
        for w, worker in enumerate(workers):
            worker_array[w] = worker
        self.worker_list = workers
        self.worker_array = worker_array
        self.workers_version = version
        return 0

    def store(self, worker, parent_hash, block_hashes, local_hashes):
        """The worker holds these blocks, each below the one before, the first below its parent.

        No parent hash means the first block of a prompt. Storing again what is held changes
        nothing; a held block under a new hash is known by that one from now on; a hash that the
        worker held elsewhere moves here.

        Raises EventError, which is a RuntimeError: parent_not_found, and nothing is stored;
        parent_evicted, likewise, if the tree has dropped blocks of this worker to keep its budget:
        the event is in order, but cannot be indexed; invalid_sequence, if the chain runs into
        itself: the blocks before that are stored.
        ValueError if the two differ in length, OverflowError or TypeError for no hashes.
        """
        cdef WorkerKey key
        cdef UIntView external = view_hashes(block_hashes)
        cdef UIntView local = view_hashes(local_hashes)
        cdef uint64_t parent = 0 if parent_hash is None else as_hash(parent_hash)
        cdef uint32_t w
        read_worker(&key, worker)
        if external.size != local.size:
            raise ValueError(f"{external.size} block hashes for {local.size} local hashes")
        w = require_worker(self.tree, &key)
        raise_status(
            tree_store(
                self.tree,
                w,
                parent_hash is not None,
                parent,
                <const uint64_t*>external.data,
                <const uint64_t*>local.data,
                <uint32_t>external.size,
            ),
            key.worker_id,
        )

    def store_at(self, worker, RadixTree upper not None, parent_hash, block_hashes, local_hashes):
        """As `store`, below the block that the worker calls `parent_hash` in another tree.

        The worker need not hold here what is above the blocks. Raises as `store` does.
        """
        cdef WorkerKey key
        cdef UIntView external = view_hashes(block_hashes)
        cdef UIntView local = view_hashes(local_hashes)
        cdef uint64_t parent = as_hash(parent_hash)
        cdef uint32_t w, holder
        cdef int status = TREE_PARENT_NOT_FOUND
        read_worker(&key, worker)
        if external.size != local.size:
            raise ValueError(f"{external.size} block hashes for {local.size} local hashes")
        w = require_worker(self.tree, &key)
        holder = tree_find_worker(upper.tree, key.worker_id, key.dp_rank)
        if holder != NONE:
            status = tree_store_cross_tier(
                self.tree,
                w,
                upper.tree,
                holder,
                parent,
                <const uint64_t*>external.data,
                <const uint64_t*>local.data,
                <uint32_t>external.size,
            )
        raise_status(status, key.worker_id)

    def remove(self, worker, block_hashes):
        """The worker holds these blocks no more; what it holds below them stays held.

        Raises EventError (block_not_found) if it did not hold one of them, unless that may have
        been dropped to keep the budget; the others are removed.
        """
        cdef WorkerKey key
        cdef UIntView external = view_hashes(block_hashes)
        cdef uint32_t w, unknown
        cdef int status = TREE_OK
        read_worker(&key, worker)
        w = tree_find_worker(self.tree, key.worker_id, key.dp_rank)
        if w != NONE:
            status = tree_remove(
                self.tree,
                w,
                <const uint64_t*>external.data,
                <uint32_t>external.size,
                &unknown,
            )
        elif external.size != 0:
            status = TREE_BLOCK_NOT_FOUND
        raise_status(status, key.worker_id)

    def apply_event(self, worker_id, const uint8_t[::1] event not None):
        """Apply one cache event of this worker, Dynamo's JSON; event ids are not looked at.

        The rank is the event's, unless `worker_id` is a tuple. Raises ValueError if it is no such
        event, EventError as `store` and `remove` do.
        """
        cdef WorkerKey key
        cdef const Event* parsed
        cdef const uint64_t* external_hashes
        cdef size_t size = event.shape[0]
        cdef uint32_t w, unknown
        cdef int status
        read_worker(&key, worker_id)
        status = decode_json_event(
            &self.batch, key.worker_id, &event[0] if size else NULL, size
        )
        if status != 0:
            raise ValueError(describe_decode_error(status))
        parsed = self.batch.events
        if not isinstance(worker_id, tuple):
            key.dp_rank = parsed.dp_rank
        w = tree_intern_worker(self.tree, key.worker_id, key.dp_rank)
        external_hashes = self.batch.external_hashes + parsed.first
        if w == NONE:
            status = TREE_NO_MEMORY
        elif parsed.kind == EVENT_STORED:
            status = tree_store(
                self.tree,
                w,
                parsed.has_parent,
                parsed.parent_hash,
                external_hashes,
                self.batch.local_hashes + parsed.first,
                parsed.count,
            )
        elif parsed.kind == EVENT_REMOVED:
            status = tree_remove(self.tree, w, external_hashes, parsed.count, &unknown)
        else:
            tree_clear(self.tree, w)
        raise_status(status, key.worker_id)

    def match(self, local_hashes, bint early_exit=False):
        """How many leading blocks of this chain each worker holds: a Match.

        With `early_exit` the walk may stop once a single worker is left, which then may be given
        less than it holds.
        """
        cdef UIntView local = view_hashes(local_hashes)
        cdef Match match = Match.__new__(Match)
        cdef Hits hits
        while self.workers_version != tree_workers_version(self.tree):
            self.refresh_workers()  # which may let another thread in
        try:
            if not tree_match(
                self.tree,
                <const uint64_t*>local.data,
                <uint32_t>local.size,
                early_exit,
                &hits,
            ):
                raise MemoryError
            match.worker_list = self.worker_list
            match.worker_array = self.worker_array
            match.count = hits.count
            match.index = PyBytes_FromStringAndSize(<char*>hits.worker, 4 * hits.count)
            match.blocks = PyBytes_FromStringAndSize(<char*>hits.blocks, 4 * hits.count)
        finally:
            hits_free(&hits)
        return match

    def match_bound(self, local_hashes, uint32_t[::1] out not None):
        """Zero `out`, write every bound worker's overlap to out[number]; return the longest."""
        cdef UIntView local = view_hashes(local_hashes)
        cdef uint32_t n = <uint32_t>out.shape[0]
        cdef uint32_t longest
        if n == 0:
            return 0
        longest = tree_match_bound(
            self.tree, <const uint64_t*>local.data, <uint32_t>local.size, &out[0], n
        )
        if longest == NONE:
            raise MemoryError
        return longest

    def bind(self, worker, number):
        """Write the worker's overlap under this number in match_bound's array; None: nowhere."""
        cdef WorkerKey key
        cdef uint32_t w
        cdef uint32_t bound = NONE if number is None else number
        read_worker(&key, worker)
        w = require_worker(self.tree, &key)
        tree_bind(self.tree, w, bound)

    def find_matches(self, sequence, bint early_exit=False):
        """Dynamo's name for `match`."""
        return self.match(sequence, early_exit)

    cdef list numbers_of(self, worker):
        """The tree's numbers of one rank, if a tuple names it, or of all ranks of an id."""
        cdef WorkerKey key
        cdef WorkerInfo info
        cdef uint32_t w
        read_worker(&key, worker)
        if isinstance(worker, tuple):
            w = tree_find_worker(self.tree, key.worker_id, key.dp_rank)
            return [] if w == NONE else [w]
        found = []
        for w in range(tree_workers_end(self.tree)):
            info = tree_worker_info(self.tree, w)
            if info.live and info.key.worker_id == key.worker_id:
                found.append(w)
        return found

    def remove_worker(self, worker):
        """Forget a worker: all ranks of an id, or the one rank that a tuple names."""
        for w in self.numbers_of(worker):
            tree_drop_worker(self.tree, w)

    def clear_all_blocks(self, worker):
        """The same ranks hold nothing any more, but stay known."""
        for w in self.numbers_of(worker):
            tree_clear(self.tree, w)

    def dump_tree_as_events(self):
        """JSON router events that rebuild the tree; see dump.py."""
        from .dump import dump_events

        return [encode_router_event(event).decode() for event in dump_events(self)]

    def workers(self):
        """Every known worker, with blocks or without: a list of WorkerWithDpRank."""
        cdef uint32_t w
        if self.workers_version != tree_workers_version(self.tree):
            self.refresh_workers()
        return [
            worker
            for w, worker in enumerate(self.worker_list)
            if tree_worker_info(self.tree, w).live
        ]

    def num_blocks(self, worker):
        """How many blocks a worker holds: an id's on all its ranks, a tuple's on that one."""
        return sum(tree_worker_info(self.tree, w).blocks for w in self.numbers_of(worker))

    def num_missing(self, worker):
        """How many more blocks a worker reported, which the tree dropped or could not
        store; counted as in num_blocks. An upper estimate."""
        return sum(tree_worker_info(self.tree, w).missing for w in self.numbers_of(worker))

    def evicted(self):
        """(blocks, branches) dropped to keep the budget, since the tree was made."""
        cdef TreeTotals totals = tree_totals(self.tree)
        return totals.evicted, totals.evictions

    def __len__(self):
        """How many different blocks are held, with the holes above them."""
        return tree_totals(self.tree).blocks

    def num_aliases(self):
        """How many hashes of single workers there are for blocks that others call otherwise."""
        return tree_totals(self.tree).aliases

    def memory_bytes(self):
        """Bytes allocated, used or kept for use."""
        return tree_totals(self.tree).bytes
