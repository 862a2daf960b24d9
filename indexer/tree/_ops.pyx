# cython: language_level=3
"""_kernel.pyx: the tree's operations, whole: each keeps the budget and gives memory back."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ._evict cimport keep_budget
from ._cross_tier cimport graft_chain, match_continued
from ._lifetime cimport free_tree, make_tree
from ._match cimport Walk, active_words, match_bound, match_chain
from ._remove cimport clear_worker, remove_blocks
from ._store cimport store_chain
from ._compact cimport tidy_up
from ._tree cimport Tree
from ._workers cimport find_worker, forget_worker, intern_worker


cdef Tree* tree_open() noexcept nogil:
    return make_tree()


cdef void tree_close(Tree* tree) noexcept nogil:
    free_tree(tree)


cdef inline void shrink_to_budget(Tree* tree) noexcept nogil:
    cdef uint64_t before = tree.n_blocks
    keep_budget(tree)
    tidy_up(tree, before - tree.n_blocks)


cdef void tree_limit(Tree* tree, uint64_t max_blocks) noexcept nogil:
    tree.max_blocks = max_blocks
    shrink_to_budget(tree)


cdef uint32_t tree_worker(Tree* tree, uint64_t worker_id, uint32_t dp_rank) noexcept nogil:
    return intern_worker(tree, worker_id, dp_rank)


cdef uint32_t tree_find_worker(
    const Tree* tree, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    return find_worker(tree, worker_id, dp_rank)


cdef int tree_store(
    Tree* tree,
    uint32_t worker,
    bint has_parent,
    uint64_t parent,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
) noexcept nogil:
    cdef int status = store_chain(tree, worker, has_parent, parent, ext, local, n)
    shrink_to_budget(tree)
    return status


cdef int tree_store_below(
    Tree* tree,
    uint32_t worker,
    const Tree* upper,
    uint32_t upper_worker,
    uint64_t parent,
    const uint64_t* ext,
    const uint64_t* local,
    uint32_t n,
) noexcept nogil:
    cdef int status = graft_chain(tree, worker, upper, upper_worker, parent, ext, local, n)
    shrink_to_budget(tree)
    return status


cdef int tree_remove(
    Tree* tree, uint32_t worker, const uint64_t* ext, uint32_t n, uint32_t* unknown
) noexcept nogil:
    cdef uint64_t before = tree.n_blocks
    cdef int status = remove_blocks(tree, worker, ext, n, unknown)
    tidy_up(tree, before - tree.n_blocks)
    return status


cdef void tree_clear(Tree* tree, uint32_t worker) noexcept nogil:
    cdef uint64_t before = tree.n_blocks
    clear_worker(tree, worker)
    tidy_up(tree, before - tree.n_blocks)


cdef void tree_drop_worker(Tree* tree, uint32_t worker) noexcept nogil:
    tree_clear(tree, worker)
    forget_worker(tree, worker)


cdef void tree_bind(Tree* tree, uint32_t worker, uint32_t number) noexcept nogil:
    tree.numbers[worker] = number


cdef bint tree_match(
    const Tree* tree, const uint64_t* local, uint32_t n, bint early_exit, Hits* hits
) noexcept nogil:
    cdef Walk walk
    cdef size_t words = active_words(tree)
    memset(&walk, 0, sizeof(Walk))
    memset(hits, 0, sizeof(Hits))
    # A bitset, and two numbers for each of 64 workers a word.
    hits.memory = walk.active = <uint64_t*>malloc((words + 64 * words) * sizeof(uint64_t) + 1)
    if hits.memory == NULL:
        return False
    hits.worker = walk.worker = <uint32_t*>(walk.active + words)
    hits.blocks = walk.blocks = hits.worker + 64 * words
    match_chain(tree, &walk, local, n, early_exit)
    hits.count = walk.hits
    return True


cdef Name* tree_names(const Tree* tree, const Hits* hits) noexcept nogil:
    cdef Name* names = <Name*>malloc((hits.count + 1) * sizeof(Name))
    cdef uint32_t i
    if names == NULL or hits.memory == NULL:
        free(names)
        return NULL
    for i in range(hits.count):
        names[i].worker_id = tree.workers[hits.worker[i]].worker_id
        names[i].dp_rank = tree.workers[hits.worker[i]].dp_rank
    return names


cdef void hits_free(Hits* hits) noexcept nogil:
    free(hits.memory)


cdef uint32_t tree_match_bound(
    const Tree* tree, const uint64_t* local, uint32_t n, uint32_t* out, uint32_t n_out
) noexcept nogil:
    return match_bound(tree, local, n, out, n_out)


cdef void tree_match_continued(
    const Tree* tree,
    const uint64_t* local,
    uint32_t n,
    const uint32_t* places,
    uint32_t* reached,
    uint32_t* gained,
    uint32_t n_out,
) noexcept nogil:
    match_continued(tree, local, n, places, reached, gained, n_out)
