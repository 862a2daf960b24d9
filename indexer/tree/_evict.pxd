"""What is dropped when the tree is full: the branches that were of use longest ago.

A clock. Every edge carries a mark: set when a worker stores into it, higher when a request walks
it. A hand goes round the edges; it lowers the mark of each by one, and cuts those without a mark
that have no children, then their parents if the same holds for them. So a prefix always outlives
what continues it, a prompt that was asked for outlives one that was only stored, and no edge is
looked at more often than it was of use, plus once. Lists in the order of use would cost eight
bytes an edge and writes to three edges a use; on a conversation trace they hit 0 to 3 % more.

What a worker loses is counted in `missing`: as long as that is not 0, blocks and parents which
the tree does not know are no sign of lost events. It is an upper estimate, except that removals
of blocks that were never stored lower it; a clear ends it. Until then the worker is `lossy`: what
it says of blocks below an unknown parent, the tree no longer claims elsewhere.
"""
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._table cimport NONE
from ...base.native._yield_points cimport yield_after
from ._arena cimport arena_release
from ._canonical_hashes cimport forget_blocks
from ._edge cimport (
    FRESH,
    edge_mark,
    edge_reserve_truncation,
    edge_truncate,
    edge_uncover_all,
    lowest64,
    mark_store,
)
from ._external_hashes cimport forget_alias, has_aliases, trim_aliases
from ._shape cimport settle_edge
from ._tree cimport ROOT, Edge, Tree
from ._workers cimport trim_list

cdef enum:
    BATCH = 4096   # blocks dropped at once, at most a sixteenth of the budget


cdef inline uint64_t charged_blocks(const Tree* tree) noexcept nogil:
    """What counts for the budget: blocks, and aliases, which take as much memory."""
    return tree.n_blocks + tree.n_aliases


cdef inline void lose_blocks(
    Tree* tree, uint32_t worker, uint32_t first, uint32_t end
) noexcept nogil:
    """Book that blocks [first, end), which the worker holds, are dropped."""
    cdef uint32_t block
    tree.workers[worker].blocks -= end - first
    tree.workers[worker].missing += end - first
    tree.workers[worker].lossy = True
    if has_aliases(tree, worker):
        for block in range(first, end):
            forget_alias(tree, worker, block)
            yield_after(&tree.memory.yield_points, 1)
        trim_aliases(tree, worker)
    trim_list(tree, worker)


cdef inline uint32_t cut_edge(Tree* tree, uint32_t e, uint32_t keep) noexcept nogil:
    """Drop the blocks of a childless edge from `keep` on; returns the lowest edge that is left.

    Without memory to keep some of them all are dropped.
    """
    cdef Edge* edge = &tree.edges[e]
    cdef uint32_t first, i
    cdef uint64_t word
    if keep != 0 and not edge_reserve_truncation(edge, &tree.memory, keep):
        keep = 0
    first = edge.start + keep
    for i in range(edge.n_partial):
        if edge.partial[i].blocks > keep:
            lose_blocks(tree, edge.partial[i].worker, first, edge.start + edge.partial[i].blocks)
    if edge.n_words == 0:
        for i in range(edge.n_full):
            lose_blocks(tree, edge.full.few[i], first, edge.start + edge.len)
    for i in range(edge.n_words):
        word = edge.full.words[i]
        while word != 0:
            lose_blocks(tree, 64 * i + lowest64(word), first, edge.start + edge.len)
            word &= word - 1
            yield_after(&tree.memory.yield_points, 1)
    if keep == 0:
        edge_uncover_all(edge, &tree.memory)
    else:
        forget_blocks(tree, edge, first, edge.len - keep)
        arena_release(&tree.blocks, first, edge.cap - keep)
        edge.cap = keep
        edge_truncate(edge, &tree.memory, keep)
    return settle_edge(tree, e)


cdef inline void cut_branch(Tree* tree, uint32_t e, uint64_t target) noexcept nogil:
    """Drop a childless edge and those above it that nothing keeps, until `target` blocks are left.

    Of the last edge only as much as need be, from its end.
    """
    cdef uint64_t before = tree.n_blocks
    cdef uint64_t over
    cdef uint32_t keep
    while True:
        over = charged_blocks(tree) - target
        if tree.n_aliases != 0:
            # As many blocks as go with those aliases, on the average; rounded up.
            over = min(over, over * tree.n_blocks // charged_blocks(tree) + 1)
        keep = tree.edges[e].len - <uint32_t>over if over < tree.edges[e].len else 0
        e = cut_edge(tree, e, keep)
        if (
            charged_blocks(tree) <= target
            or e == ROOT
            or tree.edges[e].first_child != NONE
            or tree.edges[e].mark != 0
        ):
            break
    tree.evicted += before - tree.n_blocks
    tree.evictions += 1


cdef inline void keep_budget(Tree* tree) noexcept nogil:
    """After an event: cut branches until the tree is within its budget again, and a little below.

    What the event stored goes last.
    """
    cdef uint64_t target
    cdef Edge* edge
    cdef uint32_t fresh = tree.fresh
    tree.fresh = NONE
    if charged_blocks(tree) <= tree.max_blocks:
        return
    target = tree.max_blocks - min(tree.max_blocks >> 4, <uint64_t>BATCH)
    if fresh != NONE:
        edge_mark(&tree.edges[tree.blocks.owner[fresh]], FRESH)
    while charged_blocks(tree) > target:
        yield_after(&tree.memory.yield_points, tree.hand & 1)  # a look is less than storing a block
        tree.hand += 1
        if tree.hand >= tree.edges_used:
            tree.hand = ROOT + 1
        edge = &tree.edges[tree.hand]
        if edge.len == 0:
            continue
        if edge.mark != 0:
            mark_store(&edge.mark, edge.mark - 1)
        elif edge.first_child == NONE:
            cut_branch(tree, tree.hand, target)
