"""A tree's heaviest edges, for a picture of it."""
from libc.stdint cimport uint32_t, uint64_t

from ._tree cimport Tree

cdef enum:
    LISTED_HOLDERS = 6     # of an edge, by name
    CHILDREN_LOOKED_AT = 64  # of an edge; of the root half of all rows

cdef struct Holder:
    uint64_t worker_id
    uint32_t dp_rank
    uint32_t blocks        # leading blocks of the edge that it holds

cdef struct OverviewRow:
    uint32_t edge
    uint32_t parent        # row of the edge that it hangs below; NONE: it begins a prompt
    uint32_t begin         # blocks above it
    uint32_t blocks
    uint32_t holders       # workers that hold some of it
    uint32_t listed        # of those, in `first`
    bint more              # whether it has children that were not looked at
    uint64_t local_hash    # of its first block
    uint64_t weight        # blocks times holders, of it and of all below it that were looked at
    Holder first[6]

# Rows for at most `most` edges, parents first, of each edge the newest children; how many. Bounded
# work: the caller needs the tree unchanged meanwhile, but no readers kept out.
cdef uint32_t read_overview(
    const Tree* tree, OverviewRow* rows, uint32_t most
) noexcept nogil

# The `limit` heaviest of them as tuples, parents first: (index of the parent in this list or None,
# begin, blocks, local hash, holders, ((worker, blocks), ...) of some, more).
cdef list heaviest_rows(const OverviewRow* rows, uint32_t count, uint32_t limit)
