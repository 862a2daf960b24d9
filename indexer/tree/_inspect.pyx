"""The tree's content read off its structure, for dumps. Slow; never on the path of a request."""
from libc.stdint cimport uint32_t

from ...runtime.native._table cimport NONE
from ._edge cimport edge_coverage
from ._radix cimport RadixTree
from ._tree cimport ROOT, Aliases, Edge, Tree

from ...runtime.identity import WorkerWithDpRank


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
