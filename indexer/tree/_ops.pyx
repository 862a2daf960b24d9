"""The tree's operations, whole: each keeps the budget and gives memory back."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from ...base.native._memory cimport array_release, memory_init
from ...base.native._mix cimport random_multiplier
from ...base.native._table cimport NONE, table_free, table_init
from ._arena cimport arena_close, arena_init, common_run
from ._compact cimport compact_tree
from ._cross_tier cimport store_cross_tier
from ._edge cimport edge_coverage, edge_uncover_all
from ._evict cimport keep_budget
from ._external_hashes cimport drop_aliases, find_held, trim_aliases
from ._match cimport Walk, match_chain, walk_words
from ._remove cimport clear_worker, remove_blocks
from ._shape cimport find_child, new_edge, reserve_edge
from ._store cimport refuse_orphans, store_chain
from ._tree cimport ROOT, Edge, Worker
from ._worker_image cimport worker_image_read
from ._workers cimport (
    find_worker,
    intern_worker,
    trim_list,
    unlist_worker,
    vacate_worker,
)

cdef enum:
    STACK_WORDS = 256       # of a match's bitset of workers; more of them are allocated


# Made and freed ----------------------------------------------------------------------------------

cdef Tree* tree_open() noexcept nogil:
    cdef Tree* tree = <Tree*>calloc(1, sizeof(Tree))
    cdef uint64_t multiplier
    if tree == NULL:
        return NULL
    memory_init(&tree.memory)
    tree.max_blocks = <uint64_t>-1
    tree.fresh = NONE
    tree.edges_free = tree.workers_free = NONE
    arena_init(&tree.blocks)
    multiplier = random_multiplier()
    table_init(&tree.by_external_hash, multiplier)
    table_init(&tree.children, multiplier)
    table_init(&tree.by_worker_id, multiplier)
    if not reserve_edge(tree):
        tree_close(tree)
        return NULL
    new_edge(tree)  # ROOT
    return tree


cdef void tree_close(Tree* tree) noexcept nogil:
    cdef uint32_t e, w
    if tree == NULL:
        return
    tree.memory.yield_points.yield_to_readers = NULL  # there is no reader any more
    for w in range(tree.workers_used):
        drop_aliases(tree, w)
        unlist_worker(tree, w)
    for e in range(tree.edges_used):
        edge_uncover_all(&tree.edges[e], &tree.memory)
    array_release(&tree.memory, tree.edges, tree.edges_capacity * sizeof(Edge))
    array_release(&tree.memory, tree.workers, tree.workers_capacity * sizeof(Worker))
    array_release(&tree.memory, tree.numbers, tree.numbers_capacity * sizeof(uint32_t))
    arena_close(&tree.blocks, &tree.memory)
    table_free(&tree.by_external_hash, &tree.memory)
    table_free(&tree.children, &tree.memory)
    table_free(&tree.by_worker_id, &tree.memory)
    free(tree)


cdef inline void shrink_to_budget(Tree* tree) noexcept nogil:
    cdef uint64_t before = tree.n_blocks
    keep_budget(tree)
    compact_tree(tree, before - tree.n_blocks)


cdef void tree_limit(Tree* tree, uint64_t max_blocks) noexcept nogil:
    tree.max_blocks = max_blocks
    shrink_to_budget(tree)


cdef void tree_set_yield_points(Tree* tree, YieldPoints points) noexcept nogil:
    tree.memory.yield_points = points


cdef TreeTotals tree_totals(const Tree* tree) noexcept nogil:
    cdef TreeTotals totals
    totals.blocks = tree.n_blocks
    totals.aliases = tree.n_aliases
    totals.max_blocks = tree.max_blocks
    totals.bytes = tree.memory.bytes + sizeof(Tree)
    totals.evicted = tree.evicted
    totals.evictions = tree.evictions
    return totals


# Workers -----------------------------------------------------------------------------------------

cdef uint32_t tree_find_worker(
    const Tree* tree, uint64_t worker_id, uint32_t dp_rank
) noexcept nogil:
    return find_worker(tree, worker_id, dp_rank)


cdef uint32_t tree_intern_worker(Tree* tree, uint64_t worker_id, uint32_t dp_rank) noexcept nogil:
    return intern_worker(tree, worker_id, dp_rank)


cdef uint32_t tree_workers_end(const Tree* tree) noexcept nogil:
    return tree.workers_used


cdef uint32_t tree_worker_count(const Tree* tree) noexcept nogil:
    return tree.n_workers


cdef uint64_t tree_workers_version(const Tree* tree) noexcept nogil:
    return tree.workers_version


cdef WorkerInfo tree_worker_info(const Tree* tree, uint32_t worker) noexcept nogil:
    cdef const Worker* known = &tree.workers[worker]
    cdef WorkerInfo info
    info.key.worker_id = known.worker_id
    info.key.dp_rank = known.dp_rank
    info.blocks = known.blocks
    info.missing = known.missing
    info.lossy = known.lossy
    info.number = tree.numbers[worker]
    info.live = known.live
    return info


cdef void tree_bind(Tree* tree, uint32_t worker, uint32_t number) noexcept nogil:
    tree.numbers[worker] = number


cdef void tree_clear(Tree* tree, uint32_t worker) noexcept nogil:
    cdef uint64_t before = tree.n_blocks
    clear_worker(tree, worker)
    compact_tree(tree, before - tree.n_blocks)


cdef void tree_drop_worker(Tree* tree, uint32_t worker) noexcept nogil:
    tree_clear(tree, worker)
    vacate_worker(tree, worker)


# Events ------------------------------------------------------------------------------------------

cdef int tree_store(
    Tree* tree,
    uint32_t worker,
    bint has_parent,
    uint64_t parent,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    cdef int status = store_chain(
        tree, worker, has_parent, parent, external_hashes, local_hashes, n
    )
    shrink_to_budget(tree)
    return status


cdef int tree_store_cross_tier(
    Tree* tree,
    uint32_t worker,
    const Tree* upper,
    uint32_t upper_worker,
    uint64_t parent,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    uint32_t n,
) noexcept nogil:
    cdef int status = store_cross_tier(
        tree, worker, upper, upper_worker, parent, external_hashes, local_hashes, n
    )
    shrink_to_budget(tree)
    return status


cdef int tree_refuse_orphans(
    Tree* tree, uint32_t worker, const uint64_t* hashes, uint32_t n, bint lossy, bint missing
) noexcept nogil:
    cdef uint64_t before = tree.n_blocks
    cdef int status = refuse_orphans(tree, worker, hashes, n, lossy, missing)
    compact_tree(tree, before - tree.n_blocks)
    return status


cdef bint tree_holds(const Tree* tree, uint32_t worker, uint64_t external_hash) noexcept nogil:
    return find_held(tree, worker, external_hash) != NONE


cdef int tree_remove(
    Tree* tree, uint32_t worker, const uint64_t* external_hashes, uint32_t n, uint32_t* unknown
) noexcept nogil:
    cdef uint64_t before = tree.n_blocks
    cdef int status = remove_blocks(tree, worker, external_hashes, n, unknown)
    trim_aliases(tree, worker)
    trim_list(tree, worker)
    compact_tree(tree, before - tree.n_blocks)
    return status


# Matches -----------------------------------------------------------------------------------------

cdef bint tree_match(
    const Tree* tree, const uint64_t* local_hashes, uint32_t n, bint early_exit, Hits* hits
) noexcept nogil:
    cdef Walk walk
    cdef size_t words = walk_words(tree)
    memset(&walk, 0, sizeof(Walk))
    memset(hits, 0, sizeof(Hits))
    # A bitset, and two numbers for each of 64 workers a word.
    hits.memory = walk.active = <uint64_t*>malloc((words + 64 * words) * sizeof(uint64_t) + 1)
    if hits.memory == NULL:
        return False
    hits.worker = walk.worker = <uint32_t*>(walk.active + words)
    hits.blocks = walk.blocks = hits.worker + 64 * words
    match_chain(tree, &walk, local_hashes, n, early_exit)
    hits.count = walk.hits
    return True


cdef WorkerKey* tree_match_workers(const Tree* tree, const Hits* hits) noexcept nogil:
    cdef WorkerKey* keys = <WorkerKey*>malloc((hits.count + 1) * sizeof(WorkerKey))
    cdef uint32_t i
    if keys == NULL or hits.memory == NULL:
        free(keys)
        return NULL
    for i in range(hits.count):
        keys[i].worker_id = tree.workers[hits.worker[i]].worker_id
        keys[i].dp_rank = tree.workers[hits.worker[i]].dp_rank
    return keys


cdef void hits_free(Hits* hits) noexcept nogil:
    free(hits.memory)


cdef uint32_t tree_match_bound(
    const Tree* tree, const uint64_t* local_hashes, uint32_t n, uint32_t* out, uint32_t n_out
) noexcept nogil:
    cdef uint64_t stack[STACK_WORDS]
    cdef uint32_t words = walk_words(tree)
    cdef Walk walk
    memset(&walk, 0, sizeof(Walk))
    memset(out, 0, n_out * sizeof(uint32_t))
    walk.bound = out
    walk.n_bound = n_out
    walk.active = stack
    if words > STACK_WORDS:
        walk.active = <uint64_t*>malloc(words * sizeof(uint64_t))
        if walk.active == NULL:
            return NONE
    match_chain(tree, &walk, local_hashes, n, False)
    if walk.active != stack:
        free(walk.active)
    return walk.longest


cdef void tree_match_continued(
    const Tree* tree,
    const uint64_t* local_hashes,
    uint32_t n,
    const uint32_t* indices,
    uint32_t* reached,
    uint32_t* gained,
    uint32_t n_out,
) noexcept nogil:
    cdef uint32_t e = ROOT
    cdef uint32_t depth = 0
    cdef uint32_t w, at, matched, covered
    cdef const Edge* edge
    cdef bint going = True
    while depth < n and going:
        e = find_child(tree, e, local_hashes[depth])
        if e == NONE:
            return
        edge = &tree.edges[e]
        matched = common_run(
            tree.blocks.local_hash + edge.start, local_hashes + depth, min(edge.len, n - depth)
        )
        going = False
        for w in range(tree.workers_used):
            at = indices[w] if indices != NULL else tree.numbers[w]
            if at >= n_out or tree.workers[w].blocks == 0 or reached[at] < depth:
                continue  # unknown, empty, or stopped above this edge
            covered = depth + min(edge_coverage(edge, w), matched)
            if covered > reached[at]:
                gained[at] += covered - reached[at]
                reached[at] = covered
            if reached[at] >= depth + matched:
                going = True
        depth += matched
        if matched < edge.len:
            return


# Images ------------------------------------------------------------------------------------------

cdef bint tree_read_image(const Tree* tree, uint32_t worker, WorkerImage* image) noexcept nogil:
    return worker_image_read(image, tree, worker)


cdef int tree_store_image(
    Tree* tree,
    uint32_t worker,
    const ImageRun* runs,
    size_t n_runs,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    size_t n_blocks,
    uint64_t missing,
) noexcept nogil:
    cdef size_t i, at = 0
    cdef int status
    tree.workers[worker].missing += missing
    tree.workers[worker].lossy = True  # perhaps: blocks may have been dropped before it was read
    for i in range(n_runs):
        if runs[i].count > n_blocks - at:
            return -1
        status = tree_store(
            tree,
            worker,
            runs[i].has_parent != 0,
            runs[i].parent,
            external_hashes + at,
            local_hashes + at,
            runs[i].count,
        )
        if status != TREE_OK and status != TREE_PARENT_EVICTED:
            return status
        at += runs[i].count
    return TREE_OK if at == n_blocks else -1
