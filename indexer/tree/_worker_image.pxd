"""What one worker holds, as runs of blocks that can be stored again, parents first."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from ...base.native._memory cimport grown_capacity, vector_reserve, vector_resize
from ...base.native._table cimport NONE
from ._edge cimport edge_coverage
from ._external_hashes cimport external_hash_of
from ._tree cimport ROOT, Edge, Tree

cdef struct ImageRun:
    uint64_t parent            # external hash of the block before it, if has_parent
    uint32_t count             # blocks
    uint32_t has_parent        # 0: the run begins a prompt

cdef struct WorkerImage:
    ImageRun* runs             # owned
    size_t n_runs
    size_t runs_capacity
    uint64_t* external_hashes  # of all runs' blocks, as the worker calls them; owned
    uint64_t* local_hashes     # aligned; owned
    size_t n_blocks
    size_t blocks_capacity     # of both arrays


cdef inline void worker_image_free(WorkerImage* image) noexcept nogil:
    free(image.runs)
    free(image.external_hashes)
    free(image.local_hashes)
    memset(image, 0, sizeof(WorkerImage))


cdef inline bint worker_image_reserve(WorkerImage* image, uint32_t blocks) noexcept nogil:
    """Capacity for one more run of `blocks` blocks; false without memory."""
    cdef uint64_t wanted
    if not vector_reserve(
        &image.runs, &image.runs_capacity, image.n_runs + 1, sizeof(ImageRun)
    ):
        return False
    if image.n_blocks + blocks > image.blocks_capacity:
        wanted = grown_capacity(image.blocks_capacity, image.n_blocks + blocks)
        if not (
            vector_resize(&image.external_hashes, wanted * sizeof(uint64_t))
            and vector_resize(&image.local_hashes, wanted * sizeof(uint64_t))
        ):
            return False
        image.blocks_capacity = wanted
    return True


cdef inline bint worker_image_add(
    WorkerImage* image, const Tree* tree, uint32_t worker, uint32_t e, uint32_t blocks
) noexcept nogil:
    """The leading blocks of an edge, of whose parent the worker holds everything."""
    cdef const Edge* edge = &tree.edges[e]
    cdef const Edge* above = &tree.edges[edge.parent]
    cdef ImageRun* run
    cdef uint32_t block
    if not worker_image_reserve(image, blocks):
        return False
    run = image.runs + image.n_runs
    run.count = blocks
    run.has_parent = edge.parent != ROOT
    run.parent = 0
    if run.has_parent:
        run.parent = external_hash_of(tree, worker, above.start + above.len - 1)
    image.n_runs += 1
    for block in range(edge.start, edge.start + blocks):
        image.external_hashes[image.n_blocks] = external_hash_of(tree, worker, block)
        image.local_hashes[image.n_blocks] = tree.blocks.local_hash[block]
        image.n_blocks += 1
    return True


cdef inline bint worker_image_read(
    WorkerImage* image, const Tree* tree, uint32_t worker
) noexcept nogil:
    """Walk down what the worker covers; false without memory."""
    cdef uint32_t e = tree.edges[ROOT].first_child
    cdef uint32_t covered, below
    while e != NONE:
        covered = edge_coverage(&tree.edges[e], worker)
        if covered and not worker_image_add(image, tree, worker, e, covered):
            return False
        below = tree.edges[e].first_child if covered == tree.edges[e].len else NONE
        while below == NONE and e != ROOT:
            below = tree.edges[e].next
            e = tree.edges[e].parent
        e = below
    return True
