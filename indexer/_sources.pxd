# _sources.pxd: what is known of every source of events, copied out of the index for a look.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memset

from ._cursor cimport Cursor
from ._tree cimport Tree, Worker

cdef struct Source:
    uint64_t worker_id
    uint32_t dp_rank
    uint64_t blocks      # that it holds
    Cursor cursor        # zeroed if nothing was heard of it


cdef inline Source* copy_sources(
    const Tree* tree, const Cursor* cursors, uint32_t n_cursors, uint32_t* count
) noexcept nogil:
    """One for every worker the tree knows; NULL without memory. The caller frees them."""
    cdef Source* found = <Source*>malloc((tree.n_workers + 1) * sizeof(Source))
    cdef const Worker* worker
    cdef Source* source
    cdef uint32_t w
    count[0] = 0
    if found == NULL:
        return NULL
    for w in range(tree.workers_used):
        worker = &tree.workers[w]
        if not worker.live:
            continue
        source = &found[count[0]]
        count[0] += 1
        source.worker_id = worker.worker_id
        source.dp_rank = worker.dp_rank
        source.blocks = worker.blocks
        if w < n_cursors:
            source.cursor = cursors[w]
        else:
            memset(&source.cursor, 0, sizeof(Cursor))
    return found
