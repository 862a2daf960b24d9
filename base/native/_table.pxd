"""An open-addressing hash table from a 32-bit hash to ids; used for every look-up.

A slot is the hash in its upper half and id + 1 in its lower; 0 is empty. A slot's home is given
by the top bits of its hash, so growth and deletion never look at the keys, and growth reads and
writes both tables in order. Keys live with the caller, who compares them: walk the candidates of
a hash with table_seek.
"""
from libc.stdint cimport uint32_t, uint64_t

from ._memory cimport Memory, array_give_back, array_release, array_zeroed
from ._mix cimport hash_key, hash_pair
from ._yield_points cimport exclude_readers, admit_readers

cdef extern from "<stdint.h>" nogil:
    const uint32_t NONE "UINT32_MAX"  # no id

cdef extern from * nogil:
    void prefetch "__builtin_prefetch" (const void*)

cdef enum:
    LEAST_BITS = 4  # of the capacity of a table in use
    QUICK_SLOTS = 4096  # that are moved to a larger table in a few us

cdef struct Table:
    uint64_t* slots   # capacity of them
    uint64_t mask     # capacity - 1; capacity is a power of two
    uint32_t shift    # 32 - log2(capacity)
    uint32_t count    # slots in use
    uint64_t multiplier  # of its hashes; odd


cdef inline void table_init(Table* table, uint64_t multiplier) noexcept nogil:
    """Of a zeroed struct. An unpredictable multiplier keeps keys that are crafted to collide
    from doing so."""
    table.multiplier = multiplier


cdef inline uint32_t table_hash(const Table* table, uint64_t key) noexcept nogil:
    """The hash of a key in this table."""
    return hash_key(table.multiplier, key)


cdef inline uint32_t table_hash_pair(
    const Table* table, uint64_t key, uint32_t other
) noexcept nogil:
    """The hash of a pair in this table."""
    return hash_pair(table.multiplier, key, other)


cdef inline uint32_t table_bits(uint64_t count, uint32_t fifths) noexcept nogil:
    """Of the smallest capacity that `count` entries fill by `fifths` fifths at most."""
    cdef uint32_t bits = LEAST_BITS
    while count * 5 > (<uint64_t>1 << bits) * fifths:
        bits += 1
    return bits


cdef inline bint table_open(Table* table, Memory* memory, uint32_t bits) noexcept nogil:
    """Make an empty table of 2**bits slots; false if there is no memory, or there are too many."""
    if bits > 32:
        return False
    table.slots = <uint64_t*>array_zeroed(memory, (<size_t>1 << bits) * sizeof(uint64_t))
    table.mask = (<uint64_t>1 << bits) - 1
    table.shift = 32 - bits
    table.count = 0
    return table.slots != NULL


cdef inline void table_replace(Table* table, const Table* new, Memory* memory) noexcept nogil:
    """Let a new table take the place of one whose entries it has."""
    cdef uint64_t* old = table.slots
    cdef size_t size = (table.mask + 1) * sizeof(uint64_t)
    table.slots = new.slots
    table.mask = new.mask
    table.shift = new.shift
    table.count = new.count
    if old != NULL:
        array_give_back(memory, old, size)


cdef inline bint table_resize(Table* table, Memory* memory, uint32_t bits) noexcept nogil:
    """Move to a new table; false, and nothing changed, without memory.

    The old slots are whole, and in use by readers, until the new ones take their place.
    """
    cdef Table new
    cdef bint quick = bits <= 12 and table.mask < QUICK_SLOTS
    cdef uint64_t i, at
    if not table_open(&new, memory, bits):
        return False
    new.count = table.count
    if not quick:
        admit_readers(&memory.yield_points)
    if table.slots != NULL:
        for i in range(table.mask + 1):
            if table.slots[i] != 0:
                at = table.slots[i] >> 32 >> new.shift
                while new.slots[at] != 0:
                    at = (at + 1) & new.mask
                new.slots[at] = table.slots[i]
    if not quick:
        exclude_readers(&memory.yield_points)
    table_replace(table, &new, memory)
    return True


cdef inline bint table_has_capacity(const Table* table, uint64_t more) noexcept nogil:
    """Whether `more` additions leave it four fifths full at most."""
    return table.slots != NULL and (table.count + more) * 5 <= (table.mask + 1) * 4


cdef inline bint table_reserve(Table* table, Memory* memory, uint64_t more) noexcept nogil:
    """Capacity for `more` additions, at most four fifths full; false if there is no memory."""
    cdef uint32_t bits
    if table_has_capacity(table, more):
        return True
    bits = table_bits(table.count + more, 4)
    if table.slots != NULL:
        bits = max(bits, 33 - table.shift)
    return table_resize(table, memory, bits)


cdef inline void table_trim(Table* table, Memory* memory) noexcept nogil:
    """Give memory back if the table is an eighth full at most, and there is memory to do so."""
    cdef uint32_t bits
    if table.slots == NULL or <uint64_t>table.count * 8 > table.mask:
        return
    bits = table_bits(table.count, 2)
    if bits < 32 - table.shift:
        table_resize(table, memory, bits)


cdef inline void table_add(Table* table, uint32_t hashed, uint32_t id) noexcept nogil:
    """Enter an id that is not there. Capacity must have been reserved."""
    cdef uint64_t at = hashed >> table.shift
    while table.slots[at] != 0:
        at = (at + 1) & table.mask
    table.slots[at] = (<uint64_t>hashed << 32) | (<uint64_t>id + 1)
    table.count += 1


cdef inline uint64_t* table_find(
    const Table* table, uint32_t hashed, uint32_t id
) noexcept nogil:
    """The slot of an entry, NULL if it is not there."""
    cdef uint64_t wanted = (<uint64_t>hashed << 32) | (<uint64_t>id + 1)
    cdef uint64_t at
    if table.slots == NULL:
        return NULL
    at = hashed >> table.shift
    while table.slots[at] != wanted:
        if table.slots[at] == 0:
            return NULL
        at = (at + 1) & table.mask
    return &table.slots[at]


cdef inline void table_rename(
    Table* table, uint32_t hashed, uint32_t old, uint32_t new
) noexcept nogil:
    """Let an entry, if it is there, stand for another id."""
    cdef uint64_t* slot = table_find(table, hashed, old)
    if slot != NULL:
        slot[0] = (<uint64_t>hashed << 32) | (<uint64_t>new + 1)


cdef inline bint table_remove(Table* table, uint32_t hashed, uint32_t id) noexcept nogil:
    """Take an id out; false if it is not there."""
    cdef uint64_t* slot = table_find(table, hashed, id)
    cdef uint64_t hole, at, home
    if slot == NULL:
        return False
    hole = slot - table.slots
    # Close the gap: move back what probed past it.
    at = hole
    while True:
        at = (at + 1) & table.mask
        if table.slots[at] == 0:
            break
        home = table.slots[at] >> 32 >> table.shift
        if ((at - home) & table.mask) >= ((at - hole) & table.mask):
            table.slots[hole] = table.slots[at]
            hole = at
    table.slots[hole] = 0
    table.count -= 1
    return True


cdef inline uint32_t table_seek(
    const Table* table, uint32_t hashed, uint64_t* step
) noexcept nogil:
    """The next id entered under a hash, NONE after the last. *step starts at 0."""
    cdef uint64_t at, slot
    if table.slots == NULL:
        return NONE
    while True:
        at = ((hashed >> table.shift) + step[0]) & table.mask
        step[0] += 1
        slot = table.slots[at]
        if slot == 0:
            return NONE
        if <uint32_t>(slot >> 32) == hashed:
            return <uint32_t>slot - 1


cdef inline void table_put(
    Table* table, uint32_t hashed, uint64_t step, uint32_t id
) noexcept nogil:
    """Enter an id where table_seek just found its hash to end. Capacity must have been reserved."""
    table.slots[((hashed >> table.shift) + step - 1) & table.mask] = (
        <uint64_t>hashed << 32
    ) | (<uint64_t>id + 1)
    table.count += 1


cdef inline void table_prefetch(const Table* table, uint32_t hashed) noexcept nogil:
    if table.slots != NULL:
        prefetch(&table.slots[hashed >> table.shift])


cdef inline void table_free(Table* table, Memory* memory) noexcept nogil:
    if table.slots != NULL:
        array_release(memory, table.slots, (table.mask + 1) * sizeof(uint64_t))
        table.slots = NULL
    table.count = 0


cdef inline void table_give_back(Table* table, Memory* memory) noexcept nogil:
    """As table_free, of a table that no reader finds any more, while readers come in."""
    if table.slots != NULL:
        array_give_back(memory, table.slots, (table.mask + 1) * sizeof(uint64_t))
        table.slots = NULL
    table.count = 0
