# _journal.pxd: what happened in a virtual engine's cache, until somebody collects it, and a while
# longer, for whoever missed it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

cdef enum EntryKind:
    ENTRY_STORED = 0
    ENTRY_REMOVED = 1
    ENTRY_CLEARED = 2

cdef enum:
    NO_REQUEST = 0xFFFFFFFF

cdef struct Entry:
    double time          # when it was published
    uint64_t parent      # stored: the block before the first one, if has_parent
    uint64_t first       # of its blocks in the journal's columns
    uint32_t count
    uint32_t request     # stored: whose blocks they are; NO_REQUEST: they were here before
    uint32_t first_block # stored: of the first one among that request's blocks
    uint32_t message     # entries of one message are lost together
    uint8_t kind
    uint8_t tier         # 0: the device
    uint8_t has_parent

cdef struct Journal:
    Entry* entries
    size_t tail          # the first one kept
    size_t head          # the first one not collected
    size_t length        # entries, collected ones included
    size_t capacity
    uint64_t* sequence_hashes
    uint64_t* local_hashes   # aligned with sequence_hashes; of no meaning for removed blocks
    size_t blocks
    size_t blocks_capacity
    uint32_t messages    # numbers given out
    bint on              # off: nothing is kept


cdef inline void journal_free(Journal* journal) noexcept nogil:
    free(journal.entries)
    free(journal.sequence_hashes)
    free(journal.local_hashes)
    journal.entries = NULL
    journal.sequence_hashes = journal.local_hashes = NULL


cdef inline Entry* journal_open(Journal* journal, EntryKind kind, uint32_t blocks) noexcept nogil:
    """A new entry without blocks, with room for some; NULL if there is no memory."""
    cdef size_t size
    cdef void* grown
    if journal.length == journal.capacity:
        size = journal.capacity * 2 + 16
        grown = realloc(journal.entries, size * sizeof(Entry))
        if grown == NULL:
            return NULL
        journal.entries = <Entry*>grown
        journal.capacity = size
    if journal.blocks + blocks > journal.blocks_capacity:
        size = (journal.blocks + blocks) * 2
        grown = realloc(journal.sequence_hashes, size * sizeof(uint64_t))
        if grown == NULL:
            return NULL
        journal.sequence_hashes = <uint64_t*>grown
        grown = realloc(journal.local_hashes, size * sizeof(uint64_t))
        if grown == NULL:
            return NULL
        journal.local_hashes = <uint64_t*>grown
        journal.blocks_capacity = size
    cdef Entry* entry = &journal.entries[journal.length]
    journal.length += 1
    entry.first = journal.blocks
    entry.count = 0
    entry.kind = kind
    entry.tier = 0
    entry.request = NO_REQUEST
    entry.has_parent = 0
    entry.parent = 0
    entry.message = journal.messages
    return entry


cdef inline void journal_put(
    Journal* journal, Entry* entry, uint64_t sequence_hash, uint64_t local_hash
) noexcept nogil:
    """Append a block to the entry that was opened last, for which there is room."""
    journal.sequence_hashes[journal.blocks] = sequence_hash
    journal.local_hashes[journal.blocks] = local_hash
    journal.blocks += 1
    entry.count += 1


cdef inline void journal_compact(Journal* journal, size_t keep_blocks) noexcept nogil:
    """Forget what was collected long ago, if it is most of what is here.

    The newest of it are kept, as long as they have no more blocks than that, each counting for one.
    """
    cdef size_t i, shift, size
    while journal.tail < journal.head and (
        journal.blocks - journal.entries[journal.tail].first + journal.length - journal.tail
        > keep_blocks
    ):
        journal.tail += 1
    if journal.tail == journal.length:
        journal.tail = journal.head = journal.length = journal.blocks = 0
    elif journal.tail * 2 > journal.length:
        shift = journal.entries[journal.tail].first
        journal.blocks -= shift
        journal.length -= journal.tail
        size = journal.blocks * sizeof(uint64_t)
        memmove(journal.sequence_hashes, journal.sequence_hashes + shift, size)
        memmove(journal.local_hashes, journal.local_hashes + shift, size)
        memmove(journal.entries, journal.entries + journal.tail, journal.length * sizeof(Entry))
        for i in range(journal.length):
            journal.entries[i].first -= shift
        journal.head -= journal.tail
        journal.tail = 0
