"""How many leading blocks of a request each worker holds.

A match reads the tree and writes no more of it than marks of use (edge_mark, made for that); the
rest it writes is its caller's. Several may run at once.
"""
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._table cimport NONE, prefetch
from ._arena cimport common_run
from ._edge cimport MATCHED, edge_full_word, edge_mark, lowest64, popcount64
from ._shape cimport find_child
from ._tree cimport ROOT, Edge, Tree

cdef extern from "<stdint.h>" nogil:
    const uint64_t ALL "UINT64_MAX"

cdef struct Walk:
    # Given, the rest zeroed: a word for every 64 workers, and arrays for the results.
    uint64_t* active   # workers that held every block so far, a bitset
    uint32_t* worker   # results, unless bound: the tree's number of a worker
    uint32_t* blocks   # and its overlap
    uint32_t* bound    # or: overlaps by the workers' bound numbers, zeroed before
    uint32_t n_bound   # entries of `bound`
    # Kept.
    uint32_t hits      # results so far
    uint32_t longest   # of the bound ones
    uint32_t alive     # workers in `active`
    uint32_t low       # their words in the bitset: [low, high)
    uint32_t high


cdef inline uint32_t walk_words(const Tree* tree) noexcept nogil:
    """Words of a bitset of all workers."""
    return (tree.workers_used + 63) >> 6


cdef inline void walk_hit(
    const Tree* tree, Walk* walk, uint32_t worker, uint32_t blocks
) noexcept nogil:
    """A result."""
    cdef uint32_t number
    if walk.bound != NULL:
        number = tree.numbers[worker]
        if number < walk.n_bound:
            walk.bound[number] = blocks
            walk.longest = max(walk.longest, blocks)
    else:
        walk.worker[walk.hits] = worker
        walk.blocks[walk.hits] = blocks
        walk.hits += 1


cdef inline bint are_consecutive(const uint32_t* numbers, uint32_t end) noexcept nogil:
    """Whether 64 workers were given one number after another, all below `end`."""
    cdef uint32_t first = numbers[0]
    cdef uint32_t differs = 0
    cdef uint32_t i
    if end < 64 or first > end - 64:
        return False
    for i in range(64):
        differs |= numbers[i] ^ (first + i)
    return differs == 0


cdef inline void walk_hit_word(
    const Tree* tree, Walk* walk, uint32_t word_index, uint64_t word, uint32_t blocks
) noexcept nogil:
    """A result for every worker in one word of a bitset."""
    cdef const uint32_t* numbers = tree.numbers + 64 * word_index
    cdef uint32_t* bound = walk.bound
    cdef uint32_t n_bound = walk.n_bound
    cdef uint32_t number, longest = 0
    cdef int i
    if bound != NULL:
        if word == ALL and are_consecutive(numbers, n_bound):
            # Large fleets: a fill in place of 64 scattered writes.
            bound += numbers[0]
            for i in range(64):
                bound[i] = blocks
            walk.longest = max(walk.longest, blocks)
            return
        while word != 0:
            number = numbers[lowest64(word)]
            word &= word - 1
            if number < n_bound:
                bound[number] = blocks
                longest = blocks
        walk.longest = max(walk.longest, longest)
        return
    while word != 0:
        walk_hit(tree, walk, 64 * word_index + lowest64(word), blocks)
        word &= word - 1


cdef inline void walk_first_edge(
    const Tree* tree, Walk* walk, const Edge* edge, uint32_t matched
) noexcept nogil:
    """Begin with the workers of the first edge."""
    cdef uint32_t i
    walk.low = 0
    walk.high = walk_words(tree)
    for i in range(walk.high):
        walk.active[i] = edge_full_word(edge, i)
    walk.alive = edge.n_full
    for i in range(edge.n_partial):
        walk_hit(tree, walk, edge.partial[i].worker, min(edge.partial[i].blocks, matched))


cdef inline void walk_next_edge(
    const Tree* tree, Walk* walk, const Edge* edge, uint32_t matched, uint32_t depth
) noexcept nogil:
    """Go on below `depth` blocks with those of the active workers that cover the edge too."""
    cdef uint32_t i, worker
    cdef uint64_t bit, stay
    for i in range(edge.n_partial):
        worker = edge.partial[i].worker
        bit = <uint64_t>1 << (worker & 63)
        if walk.low <= worker >> 6 < walk.high and walk.active[worker >> 6] & bit:
            walk_hit(tree, walk, worker, depth + min(edge.partial[i].blocks, matched))
            walk.active[worker >> 6] &= ~bit
    walk.alive = 0
    for i in range(walk.low, walk.high):
        stay = walk.active[i] & edge_full_word(edge, i)
        walk_hit_word(tree, walk, i, walk.active[i] & ~stay, depth)
        walk.active[i] = stay
        walk.alive += popcount64(stay)
    while walk.low < walk.high and walk.active[walk.low] == 0:
        walk.low += 1
    while walk.low < walk.high and walk.active[walk.high - 1] == 0:
        walk.high -= 1


cdef inline void match_chain(
    const Tree* tree, Walk* walk, const uint64_t* local_hashes, uint32_t n, bint early_exit
) noexcept nogil:
    """Walk down a chain and note each worker's overlap, that is its contiguous prefix of it.

    With `early_exit` the walk ends once a single worker is left, which may hold more.
    """
    cdef Edge* edge
    cdef uint32_t e = ROOT
    cdef uint32_t depth = 0
    cdef uint32_t matched, i
    while depth < n:
        e = find_child(tree, e, local_hashes[depth])
        if e == NONE:
            break
        edge = &tree.edges[e]
        edge_mark(edge, MATCHED)
        if edge.first_child != NONE:
            prefetch(&tree.edges[edge.first_child])
        matched = common_run(
            tree.blocks.local_hash + edge.start, local_hashes + depth, min(edge.len, n - depth)
        )
        if depth == 0:
            walk_first_edge(tree, walk, edge, matched)
        else:
            walk_next_edge(tree, walk, edge, matched, depth)
        if walk.alive == 0:
            return
        depth += matched
        if matched < edge.len or (early_exit and walk.alive == 1):
            break
    if depth != 0:
        for i in range(walk.low, walk.high):
            walk_hit_word(tree, walk, i, walk.active[i], depth)
