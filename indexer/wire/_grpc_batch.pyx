"""KvEventBatch (smg.grpc.common) into an EventBatch.

Each event becomes one of the index's, a cleared one four, for it concerns all tiers; those that do
not speak of blocks that a prompt can have, and those without a full block, become a removal of
nothing, so that the numbering goes on.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from ...base.native._protobuf cimport (
    DELIMITED,
    VARINT,
    ByteReader,
    Field,
    count_numbers,
    read_field,
    read_varint,
)
from .._hashing cimport BASE_SEED, hash_bytes
from ._grpc_block cimport Stored, append_block
from ._grpc_fields cimport (
    BLOCK_CACHE_LEVEL,
    BLOCK_HASHES,
    BLOCKS,
    CLEARED,
    EVENTS,
    PARENT_BLOCK_HASH,
    REMOVED,
    REMOVED_CACHE_LEVEL,
    REMOVED_LOCALITY,
    REMOVED_TIER,
    STORED,
    STORED_CACHE_SALT,
    STORED_LOCALITY,
    STORED_LORA_NAME,
    STORED_SPEC_KIND,
    STORED_TIER,
    inside,
)
from ._events cimport (
    BATCH_TIERS,
    EVENT_REMOVED,
    EVENT_STORED,
    Event,
    EventBatch,
    batch_append_cleared,
    batch_append_event,
    batch_reserve_blocks,
)
from ._reader cimport DECODE_MALFORMED, DECODE_NO_MEMORY, DECODE_OK

cdef enum:
    REMOTE = 2           # KvCacheLocality: a pool that several engines share


cdef inline bint text_is(const Field* field, const char* text, size_t size) noexcept nogil:
    return field.value >= size and memcmp(field.start, text, size) == 0


cdef inline uint8_t index_tier(uint64_t tier, uint64_t cache_level) noexcept nogil:
    """Event.tier of a KvCacheTier, or of an older engine's cache level."""
    cdef uint64_t found = tier - 1 if tier else cache_level
    return <uint8_t>min(found, <uint64_t>(BATCH_TIERS - 1))


cdef int read_stored(ByteReader reader, Stored* stored, uint64_t* blocks) noexcept nogil:
    """What it says of all its blocks, and how many there are."""
    cdef Field field
    memset(stored, 0, sizeof(Stored))
    stored.seed = BASE_SEED
    blocks[0] = 0
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return DECODE_MALFORMED
        if field.number == BLOCKS and field.wire == DELIMITED:
            blocks[0] += 1
        elif field.number == PARENT_BLOCK_HASH and field.wire == VARINT:
            stored.parent_hash = field.value
            stored.has_parent = True
        elif field.number == STORED_TIER and field.wire == VARINT:
            stored.tier = field.value
        elif field.number == STORED_LOCALITY and field.wire == VARINT:
            if field.value == REMOTE:
                stored.foreign = True
        elif field.number == STORED_SPEC_KIND and field.wire == DELIMITED:
            # Other groups of a hybrid model name things that are no prefix's blocks.
            if field.value and not text_is(&field, "full", 4) and not text_is(&field, "mla", 3):
                stored.foreign = True
        elif field.number == STORED_LORA_NAME and field.wire == DELIMITED and field.value:
            stored.seed += hash_bytes(field.start, field.value, 0)
            stored.has_adapter = True
        elif field.number == STORED_CACHE_SALT and field.wire == DELIMITED and field.value:
            stored.seed += hash_bytes(field.start, field.value, 1)
    return DECODE_OK


cdef uint64_t cache_level_of(ByteReader reader) noexcept nogil:
    """Of a block."""
    cdef Field field
    while reader.at < reader.end and read_field(&reader, &field):
        if field.number == BLOCK_CACHE_LEVEL and field.wire == VARINT:
            return field.value
    return 0


cdef int append_stored(
    EventBatch* batch, ByteReader reader, Event* event, uint32_t* tokens, uint32_t block_size
) noexcept nogil:
    """Fill the event in, and append its blocks up to one that is not whole."""
    cdef Stored stored
    cdef Field field
    cdef uint64_t blocks
    cdef uint8_t tier = 0
    cdef bint whole = True
    cdef int code = read_stored(reader, &stored, &blocks)
    if code == DECODE_OK and not stored.foreign:
        code = batch_reserve_blocks(batch, blocks)
    if code != DECODE_OK or stored.foreign:
        return code
    while reader.at < reader.end and whole:
        read_field(&reader, &field)
        if field.number != BLOCKS or field.wire != DELIMITED:
            continue
        if event.first == batch.n_blocks:
            tier = index_tier(stored.tier, cache_level_of(inside(&field)))
        code = append_block(batch, inside(&field), &stored, tokens, block_size, &whole)
        if code != DECODE_OK:
            return code
    event.count = batch.n_blocks - event.first
    if event.count:
        event.kind = EVENT_STORED
        event.tier = tier
        event.has_parent = stored.has_parent
        event.parent_hash = stored.parent_hash
    return DECODE_OK


cdef int append_removed(EventBatch* batch, ByteReader reader, Event* event) noexcept nogil:
    """Fill the event in, and append the hashes."""
    cdef ByteReader all = reader
    cdef ByteReader packed
    cdef Field field
    cdef uint64_t count = 0
    cdef uint64_t other = 0
    cdef uint64_t tier = 0
    cdef uint64_t level = 0
    cdef uint64_t value
    cdef int code
    if not count_numbers(reader, BLOCK_HASHES, &count, &other):
        return DECODE_MALFORMED
    code = batch_reserve_blocks(batch, count)
    if code != DECODE_OK:
        return code
    while all.at < all.end:
        read_field(&all, &field)
        if field.number == BLOCK_HASHES and field.wire == VARINT:
            batch.external_hashes[batch.n_blocks] = field.value
            batch.n_blocks += 1
        elif field.number == BLOCK_HASHES and field.wire == DELIMITED:
            packed = inside(&field)
            while packed.at < packed.end:
                if not read_varint(&packed, &value):
                    return DECODE_MALFORMED
                batch.external_hashes[batch.n_blocks] = value
                batch.n_blocks += 1
        elif field.number == REMOVED_TIER and field.wire == VARINT:
            tier = field.value
        elif field.number == REMOVED_CACHE_LEVEL and field.wire == VARINT:
            level = field.value
        elif field.number == REMOVED_LOCALITY and field.wire == VARINT and field.value == REMOTE:
            batch.n_blocks = event.first
            return DECODE_OK
    event.count = batch.n_blocks - event.first
    event.tier = index_tier(tier, level)
    return DECODE_OK


cdef int append_event(
    EventBatch* batch, ByteReader reader, Event* event, uint32_t* tokens, uint32_t block_size
) noexcept nogil:
    """One KvCacheEvent; `event` has its worker and number, and gets the next one."""
    cdef Field field, data
    cdef Event made = event[0]
    cdef int code = DECODE_OK
    made.kind = EVENT_REMOVED
    made.first = batch.n_blocks
    data.number = 0
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return DECODE_MALFORMED
        if field.wire == DELIMITED and STORED <= field.number <= CLEARED:
            data = field  # of several the last one counts
    if data.number == CLEARED:
        event.event_id += BATCH_TIERS
        return batch_append_cleared(batch, &made)
    if data.number == STORED:
        code = append_stored(batch, inside(&data), &made, tokens, block_size)
    elif data.number == REMOVED:
        code = append_removed(batch, inside(&data), &made)
    if code == DECODE_OK:
        code = batch_append_event(batch, &made)
    event.event_id += 1
    return code


cdef int append_events(
    EventBatch* batch, Event* event, ByteReader reader, uint32_t* tokens, uint32_t block_size
) noexcept nogil:
    cdef Field field
    cdef int code = DECODE_OK
    while reader.at < reader.end and code == DECODE_OK:
        if not read_field(&reader, &field):
            return DECODE_MALFORMED
        if field.number == EVENTS and field.wire == DELIMITED:
            code = append_event(batch, inside(&field), event, tokens, block_size)
    return code


cdef int append_grpc_batch(
    EventBatch* batch, Event* event, const uint8_t* data, size_t size, uint32_t block_size
) noexcept nogil:
    cdef ByteReader reader
    cdef uint32_t* tokens
    cdef int code
    # No block has more tokens than its message has bytes.
    block_size = min(block_size, <uint32_t>size)
    tokens = <uint32_t*>malloc((<size_t>block_size + 1) * sizeof(uint32_t))
    if tokens == NULL:
        return DECODE_NO_MEMORY
    reader.at = data
    reader.end = data + size
    code = append_events(batch, event, reader, tokens, block_size)
    free(tokens)
    return code
