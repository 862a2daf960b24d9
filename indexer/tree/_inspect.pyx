"""The tree's content read off its structure, for dumps. Slow; never on the path of a request."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ...base.native._table cimport NONE
from ._edge cimport edge_coverage, lowest64
from ._radix cimport RadixTree
from ._tree cimport ROOT, Aliases, Edge, Tree

from ...base.identity import WorkerWithDpRank


def read_edges(RadixTree tree not None):
    """Every edge, parents first: (edge, parent, first block, local hashes, external, coverage).

    The parent of the topmost edges is 0. Coverage is a list of (WorkerWithDpRank, leading blocks).
    """
    cdef Tree* t = tree.tree
    cdef const Edge* edge
    cdef uint32_t child
    found = []
    queue = [ROOT]
    for e in queue:
        edge = &t.edges[<uint32_t>e]
        if e != ROOT:
            blocks = range(edge.start, edge.start + edge.len)
            found.append(
                (
                    e,
                    edge.parent,
                    edge.start,
                    [t.blocks.local_hash[<uint32_t>block] for block in blocks],
                    [t.blocks.external_hash[<uint32_t>block] for block in blocks],
                    [(worker_of(t, w), edge_coverage(edge, w)) for w in holders(t, edge)],
                )
            )
        child = edge.first_child
        while child != NONE:
            queue.append(child)
            child = t.edges[child].next
    return found


def read_aliases(RadixTree tree not None):
    """What workers call blocks otherwise: {(WorkerWithDpRank, block): external hash}."""
    cdef Tree* t = tree.tree
    cdef const Aliases* aliases
    cdef uint32_t w, i
    found = {}
    for w in range(t.workers_used):
        aliases = t.workers[w].aliases
        for i in range(aliases.used if aliases != NULL else 0):
            found[worker_of(t, w), aliases.all[i].block] = aliases.all[i].external_hash
    return found


cdef object worker_of(const Tree* t, uint32_t w):
    return WorkerWithDpRank(t.workers[w].worker_id, t.workers[w].dp_rank)


cdef list holders(const Tree* t, const Edge* edge):
    cdef uint32_t w
    return [w for w in range(t.workers_used) if edge_coverage(edge, w) != 0]


# The heaviest edges ------------------------------------------------------------------------------

cdef inline void list_holder(
    const Tree* t, OverviewRow* row, uint32_t worker, uint32_t blocks
) noexcept nogil:
    cdef Holder* holder
    if row.listed == <uint32_t>LISTED_HOLDERS:
        return
    holder = &row.first[row.listed]
    holder.worker_id = t.workers[worker].worker_id
    holder.dp_rank = t.workers[worker].dp_rank
    holder.blocks = blocks
    row.listed += 1


cdef inline void list_holders_of(const Tree* t, const Edge* edge, OverviewRow* row) noexcept nogil:
    cdef uint64_t word
    cdef uint32_t i
    row.holders = edge.n_full + edge.n_partial
    if edge.n_words == 0:
        for i in range(edge.n_full):
            list_holder(t, row, edge.full.few[i], edge.len)
    else:
        for i in range(edge.n_words):
            word = edge.full.words[i]
            while word != 0 and row.listed < <uint32_t>LISTED_HOLDERS:
                list_holder(t, row, 64 * i + lowest64(word), edge.len)
                word &= word - 1
    for i in range(min(edge.n_partial, <uint32_t>LISTED_HOLDERS)):
        list_holder(t, row, edge.partial[i].worker, edge.partial[i].blocks)


cdef uint32_t read_overview(
    const Tree* tree, OverviewRow* rows, uint32_t most
) noexcept nogil:
    cdef const Edge* edge = &tree.edges[<uint32_t>ROOT]
    cdef OverviewRow* row
    cdef uint32_t child, looked_at, above = NONE, n = 0, expanded = 0
    cdef uint32_t limit = most // 2
    while True:
        child, looked_at = edge.first_child, 0
        while child != NONE and looked_at < limit and n < most:
            edge = &tree.edges[child]
            row = &rows[n]
            memset(row, 0, sizeof(OverviewRow))
            row.edge, row.parent, row.blocks = child, above, edge.len
            row.begin = 0 if above == NONE else rows[above].begin + rows[above].blocks
            row.local_hash = tree.blocks.local_hash[edge.start]
            list_holders_of(tree, edge, row)
            row.weight = <uint64_t>row.blocks * row.holders
            child = edge.next
            looked_at += 1
            n += 1
        if above != NONE:
            rows[above].more = child != NONE
        if expanded == n:
            break
        above, limit = expanded, CHILDREN_LOOKED_AT
        edge = &tree.edges[rows[above].edge]
        expanded += 1
    for child in range(n, 0, -1):
        row = &rows[child - 1]
        if row.parent != NONE:
            rows[row.parent].weight += row.weight
    return n


cdef list heaviest_rows(const OverviewRow* rows, uint32_t count, uint32_t limit):
    cdef const OverviewRow* row
    cdef uint32_t i, k
    # A parent weighs as much as its children together at least, and comes before them.
    by_weight = sorted(range(count), key=lambda i: -(<uint64_t>rows[<uint32_t>i].weight))
    chosen = sorted(by_weight[:limit])
    place = {i: at for at, i in enumerate(chosen)}
    found = []
    for number in chosen:
        i = number
        row = &rows[i]
        found.append(
            (
                None if row.parent == NONE else place[row.parent],
                row.begin,
                row.blocks,
                row.local_hash,
                row.holders,
                tuple([
                    (
                        WorkerWithDpRank(row.first[k].worker_id, row.first[k].dp_rank),
                        row.first[k].blocks,
                    )
                    for k in range(row.listed)
                ]),
                row.more,
            )
        )
    return found


def list_heaviest(RadixTree tree not None, uint32_t looked_at, uint32_t limit):
    """The `limit` heaviest of `looked_at` edges, the newest ones; see heaviest_rows."""
    cdef OverviewRow* rows = <OverviewRow*>malloc(
        (<size_t>looked_at + 1) * sizeof(OverviewRow)
    )
    if rows == NULL:
        raise MemoryError
    try:
        return heaviest_rows(rows, read_overview(tree.tree, rows, looked_at), limit)
    finally:
        free(rows)
