"""The tree's parts: what each array and each number of it means. The bodies are in the files named
below; all code outside this folder goes through `_ops.pxd`.

A path-compressed radix tree over local hashes. An edge stands for a run of blocks, a worker covers
a prefix of an edge, and blocks, edges and workers are 32-bit positions in arrays, not pointers.

Invariants (held by tests/instruments/tree_check.pyx):
- Edge 0 is the root: no blocks, covered by every worker. Every other live edge has at least one.
- The first local hash of an edge is unique among its siblings.
- The canonical external hash of a block is in `by_external_hash` unless another block has the same
  one; such blocks are counted in `shadowed`, their edges are flagged, and their holders have aliases.
- Every other entry there is one of `stale` that name a block which left the tree (_hashes.pxd).
- A worker's list has every edge that it covers a part of, unless it is `unlisted`
  (_workers.pxd).
- A worker with an alias for a block covers that block, and the alias is its only hash for it.
- The last block of an edge without children is covered by some worker.
- After every event n_blocks and n_aliases come to max_blocks at most (_evict.pxd).
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from ...base.native._memory cimport Memory
from ...base.native._table cimport Table

cdef enum:
    ROOT = 0             # the edge above all others
    AHEAD = 24           # table slots fetched ahead of their use
    ARENA_BINS = 128     # size classes of free ranges

cdef enum TreeStatus:
    TREE_OK = 0
    TREE_PARENT_NOT_FOUND = 1   # the event was dropped
    TREE_BLOCK_NOT_FOUND = 2    # a removal named blocks that are not held; the others are removed
    TREE_INVALID_SEQUENCE = 3   # the chain runs into itself; the blocks before that are stored
    TREE_NO_MEMORY = 4          # a prefix of the event is applied, the tree is consistent
    TREE_PARENT_EVICTED = 5     # the event was dropped: so was its parent, to keep the budget

# Blocks (_arena.pxd). A block's id is its position.
cdef struct Arena:
    uint64_t* local_hash     # of each block
    uint64_t* external_hash  # of each block: its canonical one
    uint32_t* owner          # its edge; NONE at the ends of a free range
    uint32_t used            # positions in use or in free lists; the rest was never touched
    uint32_t capacity        # positions that all three arrays have
    uint32_t touched         # positions with pages, if the arrays are large; at least `used`
    uint32_t capacities[3]   # positions of each: more than capacity after a failure in between
    uint32_t free_blocks     # positions in free lists
    uint64_t filled[2]       # bit b: bins[b] is not empty
    uint32_t bins[128]       # first free range of each size class

# Edges (_edge.pxd), and which worker covers how much of one.
cdef struct Span:
    uint32_t worker
    uint32_t blocks          # how many leading blocks of the edge it covers, not all of them

cdef union FullSet:
    uint32_t few[4]          # when n_words is 0: the workers themselves
    uint64_t* words          # n_words of them, bit w: worker w

cdef enum EdgeFlags:
    SHADOWS = 1              # some of its blocks may be shadowed
    ON_PATH = 2              # above the chain being stored; only while that is
    LISTED = 4               # met in the list being compacted; only while that is

cdef struct Edge:
    uint32_t start           # first block in the arena
    uint32_t len             # blocks; 0: the root, or not in use
    uint32_t cap             # positions it owns from start; more than len: to grow into
    uint32_t parent          # edge it hangs below
    uint32_t first_child     # newest of those below it, or NONE
    uint32_t next            # sibling, or neighbour in the list of edges not in use
    uint32_t prev            # the same, the other way
    uint32_t n_full          # workers in the full set
    FullSet full             # the workers that cover all of it
    uint16_t n_words         # of the full set's bitset; 0: it is a list
    uint8_t mark             # how recently it was of use; written with edge_mark
    uint8_t flags            # EdgeFlags; the writer's own
    uint32_t n_partial       # workers that cover a part of it
    Span* partial            # unordered; span_capacity(n_partial) of them

# A worker's external hashes that are not a block's canonical one (_external_hashes.pxd).
cdef struct Alias:
    uint64_t external_hash   # what the worker calls the block
    uint32_t block

cdef struct Aliases:
    Alias* all               # without gaps: the last one moves to where one is dropped
    uint32_t used            # aliases there are
    uint32_t capacity        # of `all`
    Table by_external_hash   # external hash -> alias
    Table by_block           # block -> alias

# Workers (_ops.pyx). The tree numbers them itself, from 0, and uses numbers again.
cdef struct Worker:
    uint64_t worker_id
    uint64_t blocks          # how many it holds
    uint64_t missing         # how many more it reported, dropped to keep the budget
    Aliases* aliases         # its external hashes that are not canonical; NULL: there are none
    uint32_t* edges          # those it covers a part of, and more (_workers.pxd)
    uint32_t edges_used      # entries of that list
    uint32_t edges_capacity
    uint32_t dp_rank
    bint lossy               # whether any of it was dropped for the budget since it held nothing
    bint unlisted            # whether edges are missing in the list, for want of memory
    uint32_t next_vacant     # of a vacant number: the next one, or NONE
    uint32_t prev_vacant     # the same, the other way
    bint live                # whether the number is in use

cdef struct Tree:
    Memory memory            # of all arrays; carries the yield points of long work
    Arena blocks
    Table by_external_hash   # canonical external hash -> block
    Table children           # (parent edge, first local hash) -> edge
    uint64_t n_aliases       # of all workers
    uint64_t shadowed        # blocks whose canonical hash is another block's in by_external_hash
    uint64_t stale           # entries of by_external_hash whose block left the tree
    bint leaving_stale       # whether the blocks that leave now leave theirs behind
    Edge* edges
    uint32_t edges_used      # edges ever in use
    uint32_t edges_capacity  # of `edges`
    uint32_t edges_touched   # of those, with pages, if the array is large
    uint32_t edges_free      # first edge not in use, or NONE
    uint64_t credit          # blocks that compaction may move, earned by those that left
    bint compacting_blocks   # whether blocks of the arena are being moved
    bint compacting_edges    # whether edges are being moved
    uint32_t n_edges         # in use, root included
    uint64_t n_blocks        # in edges, holes included
    uint64_t max_blocks      # the most of them, aliases included, that stay after an event
    uint32_t hand            # edge that the clock of eviction looked at last
    uint32_t fresh           # last block of the last stored event, or NONE
    uint64_t evicted         # blocks dropped to keep the budget, since the tree was made
    uint64_t evictions       # branches cut for that
    Worker* workers          # by the tree's number
    uint32_t* numbers        # the registry's number of each; NONE: unbound. A match reads many
    uint32_t workers_used    # one above the highest number in use
    uint32_t workers_capacity
    uint32_t numbers_capacity  # more than workers_capacity after a failure in between
    uint32_t workers_free    # first vacant number, or NONE
    uint32_t n_workers       # live ones
    uint64_t workers_version # grows when a worker comes or goes
    Table by_worker_id       # (worker id, rank) -> worker
