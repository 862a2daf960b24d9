# _section.pxd: what one worker holds, as runs of blocks that can be stored again, parents first.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from ..tree._aliases cimport alias_by_block
from ..tree._edge cimport Edge, edge_coverage
from ..tree._ops cimport TREE_OK, Tree, tree_store
from ...runtime.native._table cimport NONE
from ..tree._tree cimport ROOT


cdef struct Run:
    uint64_t parent        # external hash of the block before it, if has_parent
    uint32_t count         # blocks
    uint32_t has_parent


cdef struct Section:       # owned arrays
    Run* runs
    size_t n_runs, runs_room
    uint64_t* ext          # of all runs' blocks
    uint64_t* local        # aligned
    size_t n_blocks, blocks_room


cdef inline void section_free(Section* section) noexcept nogil:
    free(section.runs)
    free(section.ext)
    free(section.local)
    memset(section, 0, sizeof(Section))


cdef inline uint64_t key_of(const Tree* tree, uint32_t worker, uint32_t block) noexcept nogil:
    """What a worker calls a block that it holds."""
    cdef uint32_t alias = NONE
    if tree.workers[worker].aliases != 0:
        alias = alias_by_block(&tree.aliases, worker, block)
    return tree.blocks.ext[block] if alias == NONE else tree.aliases.all[alias].ext


cdef inline bint section_reserve(Section* section, uint32_t blocks) noexcept nogil:
    """Room for one more run of so many blocks; false without memory."""
    cdef size_t room
    cdef void* grown
    if section.n_runs == section.runs_room:
        room = section.runs_room * 2 + 64
        grown = realloc(section.runs, room * sizeof(Run))
        if grown == NULL:
            return False
        section.runs = <Run*>grown
        section.runs_room = room
    if section.n_blocks + blocks > section.blocks_room:
        room = (section.n_blocks + blocks) * 2
        grown = realloc(section.ext, room * sizeof(uint64_t))
        if grown == NULL:
            return False
        section.ext = <uint64_t*>grown
        grown = realloc(section.local, room * sizeof(uint64_t))
        if grown == NULL:
            return False
        section.local = <uint64_t*>grown
        section.blocks_room = room
    return True


cdef inline bint section_add(
    Section* section, const Tree* tree, uint32_t worker, uint32_t e, uint32_t blocks
) noexcept nogil:
    """The leading blocks of an edge, of whose parent the worker holds everything."""
    cdef const Edge* edge = &tree.edges[e]
    cdef const Edge* above = &tree.edges[edge.parent]
    cdef uint32_t block
    if not section_reserve(section, blocks):
        return False
    cdef Run* run = section.runs + section.n_runs
    run.count = blocks
    run.has_parent = edge.parent != ROOT
    run.parent = key_of(tree, worker, above.start + above.len - 1) if run.has_parent else 0
    section.n_runs += 1
    for block in range(edge.start, edge.start + blocks):
        section.ext[section.n_blocks] = key_of(tree, worker, block)
        section.local[section.n_blocks] = tree.blocks.local[block]
        section.n_blocks += 1
    return True


cdef inline bint section_gather(
    Section* section, const Tree* tree, uint32_t worker
) noexcept nogil:
    """All that a worker holds and that a match can see; false without memory.

    Blocks below one that it does not hold are left out: n_blocks is then less than it holds.
    """
    cdef uint32_t e = tree.edges[ROOT].first_child
    cdef uint32_t covered, next
    while e != NONE:
        covered = edge_coverage(&tree.edges[e], worker)
        if covered and not section_add(section, tree, worker, e, covered):
            return False
        next = tree.edges[e].first_child if covered == tree.edges[e].len else NONE
        while next == NONE and e != ROOT:
            next = tree.edges[e].next
            e = tree.edges[e].parent
        e = next
    return True


cdef inline int section_store(
    Tree* tree, uint32_t worker, const Run* runs, size_t n_runs, const uint64_t* ext,
    const uint64_t* local, size_t n_blocks
) noexcept nogil:
    """Let a worker hold what was gathered; the tree's status, or -1 if the runs do not add up."""
    cdef size_t i, at = 0
    cdef int status
    for i in range(n_runs):
        if runs[i].count > n_blocks - at:
            return -1
        status = tree_store(
            tree, worker, runs[i].has_parent != 0, runs[i].parent, ext + at, local + at,
            runs[i].count,
        )
        if status != TREE_OK:
            return status
        at += runs[i].count
    return TREE_OK if at == n_blocks else -1
