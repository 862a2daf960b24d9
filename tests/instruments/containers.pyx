"""The containers under the kernels looked at from inside, for tests.

Built by tests/instruments/build.py over the kernels' own declarations; no part of the package.
"""
from dynamo_router.indexer.tree._radix cimport RadixTree
from dynamo_router.indexer.tree._tree cimport Tree
from dynamo_router.base.native._memory cimport enlarged_capacity, shrunk_capacity
from dynamo_router.base.native._table cimport Table, table_seek
from libc.stdint cimport uint32_t, uint64_t


def enlarged(items, least):
    return enlarged_capacity(items, least)


def shrunk(items, least):
    return shrunk_capacity(items, least)


cdef uint64_t longest_probe(const Table* table) noexcept nogil:
    cdef uint64_t at, step, slot, longest = 0
    for at in range(table.mask + 1 if table.slots != NULL else 0):
        slot = table.slots[at]
        if slot != 0:
            step = (at - (slot >> 32 >> table.shift)) & table.mask
            longest = max(longest, step + 1)
    return longest


def longest_probes(RadixTree tree not None):
    """Slots looked at to find the entry that takes longest: of blocks by hash, and of children."""
    cdef const Tree* t = tree.tree
    return longest_probe(&t.by_external_hash), longest_probe(&t.children)
