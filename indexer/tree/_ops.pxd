"""The door to the tree for other kernels. The caller owns the tree, and is alone in changing it."""
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._yield_points cimport YieldPoints
from ._tree cimport (
    TREE_BLOCK_NOT_FOUND,
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_EVICTED,
    TREE_PARENT_NOT_FOUND,
    Tree,
    TreeStatus,
)
from ._worker_image cimport ImageRun, WorkerImage, worker_image_free

cdef struct WorkerKey:       # what the fleet knows a worker by
    uint64_t worker_id
    uint32_t dp_rank

cdef struct WorkerInfo:
    WorkerKey key
    uint64_t blocks          # how many it holds
    uint64_t missing         # how many more it reported, dropped to keep the budget
    uint32_t number          # what it is bound to; UINT32_MAX: nothing
    bint lossy               # whether any was dropped since it held nothing
    bint live                # false: the tree's number is vacant

cdef struct TreeTotals:
    uint64_t blocks          # different ones, the holes above them included
    uint64_t aliases         # hashes of single workers for blocks that others call otherwise
    uint64_t max_blocks      # the most of both after any event
    uint64_t bytes           # allocated
    uint64_t evicted         # blocks dropped to keep the budget, since the tree was made
    uint64_t evictions       # branches cut for that

cdef struct Hits:
    uint32_t count           # workers that hold a prefix
    uint32_t* worker         # the tree's numbers of them
    uint32_t* blocks         # their overlaps
    uint64_t* memory         # where all of it lives

cdef Tree* tree_open() noexcept nogil                # empty; NULL: no memory
cdef void tree_close(Tree* tree) noexcept nogil      # NULL is allowed

# The most blocks and aliases that stay after an event, at least 1. What does not fit is dropped, longest unused
# first, and counted.
cdef void tree_limit(Tree* tree, uint64_t max_blocks) noexcept nogil
cdef void tree_set_yield_points(Tree* tree, YieldPoints points) noexcept nogil
cdef TreeTotals tree_totals(const Tree* tree) noexcept nogil

# The tree's number of a worker: below tree_workers_end, UINT32_MAX: unknown, or no memory.
cdef uint32_t tree_find_worker(
    const Tree* tree, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil
cdef uint32_t tree_intern_worker(Tree* tree, uint64_t worker_id, uint32_t dp_rank) noexcept nogil
cdef uint32_t tree_workers_end(const Tree* tree) noexcept nogil
cdef uint32_t tree_worker_count(const Tree* tree) noexcept nogil
cdef uint64_t tree_workers_version(const Tree* tree) noexcept nogil   # grows as workers come and go
cdef WorkerInfo tree_worker_info(const Tree* tree, uint32_t worker) noexcept nogil

# The number that match_bound writes the worker's overlap under; UINT32_MAX: none.
cdef void tree_bind(Tree* tree, uint32_t worker, uint32_t number) noexcept nogil
cdef void tree_clear(Tree* tree, uint32_t worker) noexcept nogil         # the worker stays
cdef void tree_drop_worker(Tree* tree, uint32_t worker) noexcept nogil   # its number is free again

# n blocks below the one that the worker calls `parent`, or at the start: a TreeStatus.
cdef int tree_store(
    Tree* tree,
    uint32_t worker,
    bint has_parent,
    uint64_t parent,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil

# The same below the block that `upper_worker` calls `parent` in another tree, held here or not.
cdef int tree_store_cross_tier(
    Tree* tree,
    uint32_t worker,
    const Tree* upper,
    uint32_t upper_worker,
    uint64_t parent,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil

# What tree_store does with n blocks below a parent that is held nowhere: `lossy` and `missing` say the
# same as in WorkerInfo, of all the trees where the parent may have been. A TreeStatus.
cdef int tree_refuse_orphans(
    Tree* tree, uint32_t worker, const uint64_t* hashes, uint32_t n, bint lossy, bint missing
) noexcept nogil
cdef bint tree_holds(const Tree* tree, uint32_t worker, uint64_t external_hash) noexcept nogil

# Removes every block that is held: a TreeStatus; *unknown becomes the number of those that are not.
cdef int tree_remove(
    Tree* tree, uint32_t worker, const uint64_t* external_hashes, uint32_t n, uint32_t* unknown
) noexcept nogil

# The overlaps of all workers that have one; false: no memory. With early_exit a single worker left
# may be given less than it holds. Free them either way.
cdef bint tree_match(
    const Tree* tree, const uint64_t* local_hashes, uint32_t n, bint early_exit, Hits* hits
) noexcept nogil
# Who the hits are, hits.count of them, for the caller to free; NULL: no memory.
cdef WorkerKey* tree_match_workers(const Tree* tree, const Hits* hits) noexcept nogil
cdef void hits_free(Hits* hits) noexcept nogil

# Zeroes out[0:n_out], writes the overlap of every bound worker to out[number]; returns the longest,
# UINT32_MAX without memory.
cdef uint32_t tree_match_bound(
    const Tree* tree, const uint64_t* local_hashes, uint32_t n, uint32_t* out, uint32_t n_out
) noexcept nogil

# How far each worker's blocks in this tree continue what it holds of a chain elsewhere. A worker's
# index in the arrays is indices[its number in the tree], or with NULL the number it is bound to; one
# at n_out or above is passed over. `reached` are the leading blocks it holds elsewhere; they grow by
# what this tree holds from there on without a hole, and so does `gained`.
cdef void tree_match_continued(
    const Tree* tree,
    const uint64_t* local_hashes,
    uint32_t n,
    const uint32_t* indices,
    uint32_t* reached,
    uint32_t* gained,
    uint32_t n_out,
) noexcept nogil

# All that a worker holds and a match can see, into a zeroed image; false without memory. Blocks
# below one that it does not hold are left out: n_blocks is then less than it holds.
cdef bint tree_read_image(
    const Tree* tree, uint32_t worker, WorkerImage* image
) noexcept nogil
# Lets a worker hold what was read, as far as the budget allows, and count `missing` more as dropped
# before: a TreeStatus, or -1 if the runs do not add up to n_blocks.
cdef int tree_store_image(
    Tree* tree,
    uint32_t worker,
    const ImageRun* runs,
    size_t n_runs,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    size_t n_blocks,
    uint64_t missing,
) noexcept nogil
