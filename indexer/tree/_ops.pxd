# _kernel.pxd: the tree as other kernels use it. Whoever calls owns the tree.
from libc.stdint cimport uint32_t, uint64_t

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

cdef struct Hits:
    uint32_t count
    uint32_t* worker         # the tree's numbers of the workers
    uint32_t* blocks         # their overlaps
    uint64_t* memory         # where all of it lives

cdef struct Name:
    uint64_t worker_id
    uint32_t dp_rank

cdef Tree* tree_open() noexcept nogil                # NULL: no memory
cdef void tree_close(Tree* tree) noexcept nogil

# The most blocks that stay after an event, at least 1. What does not fit is dropped, longest unused
# first, and counted.
cdef void tree_limit(Tree* tree, uint64_t max_blocks) noexcept nogil

# The number the tree knows (worker_id, dp_rank) by, new if need be; UINT32_MAX: no memory.
cdef uint32_t tree_worker(Tree* tree, uint64_t worker_id, uint32_t dp_rank) noexcept nogil
cdef uint32_t tree_find_worker(const Tree* tree, uint64_t worker_id, uint32_t dp_rank) noexcept nogil

cdef int tree_store(
    Tree* tree,
    uint32_t worker,
    bint has_parent,
    uint64_t parent,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
) noexcept nogil

# The same below the block that `upper_worker` calls `parent` in another tree, held here or not.
cdef int tree_store_below(
    Tree* tree,
    uint32_t worker,
    const Tree* upper,
    uint32_t upper_worker,
    uint64_t parent,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
) noexcept nogil

# Removes every block that is held; *unknown becomes the number of those that are not.
cdef int tree_remove(
    Tree* tree, uint32_t worker, const uint64_t* ext, uint32_t n, uint32_t* unknown
) noexcept nogil

cdef void tree_clear(Tree* tree, uint32_t worker) noexcept nogil         # the worker stays
cdef void tree_drop_worker(Tree* tree, uint32_t worker) noexcept nogil   # its number is free again

# The number others know a worker by; UINT32_MAX: none.
cdef void tree_bind(Tree* tree, uint32_t worker, uint32_t number) noexcept nogil

# The overlaps of all workers that have one; false: no memory. With early_exit a single worker left
# may be given less than it holds. Free them either way.
cdef bint tree_match(
    const Tree* tree, const uint64_t* local, uint32_t n, bint early_exit, Hits* hits
) noexcept nogil
# Who the hits are, hits.count of them, for the caller to free; NULL: no memory.
cdef Name* tree_names(const Tree* tree, const Hits* hits) noexcept nogil
cdef void hits_free(Hits* hits) noexcept nogil

# Zeroes out[0:n_out], writes the overlap of every bound worker to out[number]; returns the longest,
# UINT32_MAX without memory.
cdef uint32_t tree_match_bound(
    const Tree* tree, const uint64_t* local, uint32_t n, uint32_t* out, uint32_t n_out
) noexcept nogil

# Lets reached[0:n_out], the leading blocks held elsewhere, grow by those held here from there on,
# and gained alike; by places[worker], or NULL: by the number it is bound to.
cdef void tree_match_continued(
    const Tree* tree,
    const uint64_t* local,
    uint32_t n,
    const uint32_t* places,
    uint32_t* reached,
    uint32_t* gained,
    uint32_t n_out,
) noexcept nogil
