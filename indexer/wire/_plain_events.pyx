"""What vLLM and SGLang publish over ZMQ as a KvEventBatch, if it is plain.

Plain are full blocks of our size on the device, named by numbers, without an adapter, a salt or
other keys; their removal; and a clear. The face, grpc_batch.py, says what becomes of all else.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove, memset

from ...base.native._memory cimport vector_reserve
from ...base.native._protobuf cimport (
    DELIMITED, VARINT, delimited_size, number_size, put_delimited, put_number, put_varint,
    varint_size,
)
from ._grpc_fields cimport (
    BLOCK_HASH, BLOCK_HASHES, BLOCK_SIZE, BLOCKS, CLEARED, EVENTS, PARENT_BLOCK_HASH, REMOVED,
    REMOVED_TIER, SEQUENCE_NUMBER, STORED, STORED_SPEC_KIND, STORED_TIER, TOKEN_IDS,
)
from ._msgpack_reader cimport bswap32
from ._plain_values cimport begins, is_device, is_name, is_nothing, is_single
from ._reader cimport (
    DECODE_OK, ITEM_INT, ITEM_NIL, ITEM_POSITION, ITEM_TEXT, Item, ByteReader, remaining,
)
from ._syntax cimport (
    at_end, field_is, next_element, next_field, open_array, open_struct, read_value,
    text_is,
)

cdef extern from *:
    int clz "__builtin_clz"(unsigned int) noexcept nogil

cdef enum:
    DEVICE = 1                  # KvCacheTier
    HEADS_BYTES = 16            # most that the tags and lengths around an event take
    EVENT_BYTES = 128           # most the rest of an event takes beside its blocks, and 8 to spare
    BLOCK_BYTES = 40            # and of a block beside its tokens
    TOKEN_BYTES = 5             # and one of those
    MOST_KIND = 64              # bytes of a name that is copied
    NOWHERE = 99                # position of a field that an array has no place for

cdef struct Event:
    int field                   # STORED, REMOVED or CLEARED; 0: another one
    ByteReader hashes           # where its first hash stands
    uint64_t n_hashes
    bint has_hashes
    ByteReader tokens
    uint64_t n_tokens
    bint has_tokens
    bint has_parent
    uint64_t parent
    uint64_t block_size
    const uint8_t* kind         # of its layers; NULL: it does not say
    uint64_t kind_bytes

cdef struct Output:
    uint8_t* data
    size_t size
    size_t capacity


def plain_batch(bytes payload not None, uint64_t sequence, uint32_t block_size):
    cdef ByteReader reader
    cdef Item batch, events
    cdef Event event
    cdef Output out
    cdef size_t more
    memset(&out, 0, sizeof(Output))
    reader.at = <const uint8_t*>PyBytes_AS_STRING(payload)
    reader.end = reader.at + PyBytes_GET_SIZE(payload)
    reader.json = False
    try:
        if open_array(&reader, &batch) != DECODE_OK or batch.value < 2:
            return None
        if not is_single(&reader) or open_array(&reader, &events) != DECODE_OK:
            return None
        reserve(&out, EVENT_BYTES)
        out.size = put_number(out.data, SEQUENCE_NUMBER, sequence) - out.data
        while next_element(&reader, &events) == DECODE_OK:
            if not read_event(&reader, &event) or not is_plain(&event, block_size):
                return None
            more = event.n_hashes * BLOCK_BYTES + event.n_tokens * TOKEN_BYTES
            reserve(&out, EVENT_BYTES + more)
            write_event(&out, &event, block_size)
        batch.position = 2
        while next_element(&reader, &batch) == DECODE_OK:
            if not is_single(&reader):
                return None
        if at_end(&reader) != DECODE_OK:
            return None
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        free(out.data)


cdef int reserve(Output* out, size_t more) except -1:
    if not vector_reserve(&out.data, &out.capacity, out.size + more, 1):
        raise MemoryError
    return 0


cdef bint read_event(ByteReader* reader, Event* event) noexcept nogil:
    """Read what an event says, and leave its hashes and tokens where they are. False: not plain."""
    cdef Item fields, key, value
    cdef const uint8_t* begin
    memset(event, 0, sizeof(Event))
    if open_struct(reader, &fields) != DECODE_OK:
        return False
    # Its type stands first, in an array as in a map as engines write it.
    begin = reader.at
    if next_field(reader, &fields, &key) != DECODE_OK or not field_is(&key, b"type", 0):
        return False
    if key.kind != ITEM_POSITION and not is_name(begin, &key):
        return False
    begin = reader.at
    if read_value(reader, &value) != DECODE_OK or not is_name(begin, &value):
        return False
    if text_is(&value, b"BlockStored"):
        event.field = STORED
    elif text_is(&value, b"BlockRemoved"):
        event.field = REMOVED
    elif text_is(&value, b"AllBlocksCleared"):
        event.field = CLEARED
    else:
        return False
    while fields.position < fields.value:
        begin = reader.at
        if next_field(reader, &fields, &key) != DECODE_OK:
            return False
        if key.kind != ITEM_POSITION and (not is_name(begin, &key) or text_is(&key, b"type")):
            return False
        if event.field == STORED:
            if not read_stored(reader, &key, event):
                return False
        elif event.field == REMOVED:
            if not read_removed(reader, &key, event):
                return False
        elif not is_single(reader):
            return False
    return True


cdef bint read_stored(ByteReader* reader, Item* key, Event* event) noexcept nogil:
    cdef Item value
    cdef uint64_t left
    cdef uint32_t token = 0
    cdef const uint8_t* begin
    cdef bint single
    if field_is(key, b"block_hashes", 1):
        return read_hashes(reader, event)
    if field_is(key, b"token_ids", 3):
        if open_array(reader, &value) != DECODE_OK:
            return False
        event.tokens, event.n_tokens, event.has_tokens = reader[0], value.value, True
        left = value.value
        while left:
            left -= 1
            if not take_token(reader, &token):
                return False
        return True
    if field_is(key, b"parent_block_hash", 2):
        if read_value(reader, &value) != DECODE_OK:
            return False
        event.has_parent, event.parent = value.kind == ITEM_INT, value.value
        return value.kind == ITEM_INT or value.kind == ITEM_NIL
    if field_is(key, b"block_size", 4):
        if read_value(reader, &value) != DECODE_OK or value.kind != ITEM_INT or value.negative:
            return False
        event.block_size = value.value
        return True
    if field_is(key, b"medium", 6):
        return is_device(reader)
    if field_is(key, b"group_idx", 10) or field_is(key, b"kv_cache_spec_sliding_window", 12):
        return is_single(reader)
    if field_is(key, b"kv_cache_spec_kind", 11):
        begin = reader.at
        if read_value(reader, &value) != DECODE_OK:
            return False
        event.kind, event.kind_bytes = NULL, 0
        if value.kind == ITEM_TEXT and value.value:
            event.kind, event.kind_bytes = value.text, value.value
            if value.value > MOST_KIND or not is_name(begin, &value):
                return False
            return begins(&value, b"full", 4) or begins(&value, b"mla", 3)
        return value.kind == ITEM_NIL or value.kind == ITEM_TEXT
    # Adapter, salt, keys, place; or what nobody knows here.
    single = field_is(key, b"lora_id", 5) or field_is(key, b"lora_name", 7)
    return is_nothing(reader, not single and not field_is(key, b"cache_salt", NOWHERE))


cdef bint read_removed(ByteReader* reader, Item* key, Event* event) noexcept nogil:
    if field_is(key, b"block_hashes", 1):
        return read_hashes(reader, event)
    if field_is(key, b"medium", 2):
        return is_device(reader)
    if field_is(key, b"group_idx", 3):
        return is_single(reader)
    return is_nothing(reader, True)


cdef inline bint take_token(ByteReader* reader, uint32_t* out) noexcept nogil:
    """The next value, a token. False if it is none."""
    cdef Item value
    cdef uint8_t tag, of_number
    cdef uint32_t four
    if remaining(reader) >= 5:
        tag = reader.at[0]
        of_number = tag - 0xCC  # uint 8, 16 or 32: which of them nobody foresees, so no branch
        if of_number <= 2:
            memcpy(&four, reader.at + 1, 4)
            of_number = 1 << of_number
            out[0] = bswap32(four) >> (32 - 8 * of_number)
            reader.at += 1 + of_number
            return True
        if tag < 0x80:
            out[0] = tag
            reader.at += 1
            return True
    if read_value(reader, &value) != DECODE_OK or value.kind != ITEM_INT:
        return False
    out[0] = <uint32_t>value.value
    return not value.negative and value.value <= UINT32_MAX


cdef bint read_hashes(ByteReader* reader, Event* event) noexcept nogil:
    cdef Item value
    cdef uint64_t left
    if open_array(reader, &value) != DECODE_OK:
        return False
    event.hashes, event.n_hashes, event.has_hashes = reader[0], value.value, True
    left = value.value
    while left:
        left -= 1
        if read_value(reader, &value) != DECODE_OK or value.kind != ITEM_INT:
            return False
    return True


cdef bint is_plain(const Event* event, uint32_t block_size) noexcept nogil:
    """It has what its type needs."""
    if event.field == STORED:
        return event.has_hashes and event.has_tokens and event.block_size == block_size
    return event.has_hashes or event.field == CLEARED


cdef void write_event(Output* out, Event* event, uint32_t block_size) noexcept nogil:
    """Append it, for which there is room."""
    cdef uint8_t heads[HEADS_BYTES]
    cdef uint8_t* begin = out.data + out.size
    cdef uint8_t* body = begin + HEADS_BYTES
    cdef uint8_t* at = body
    cdef uint8_t* head
    cdef uint8_t inner[HEADS_BYTES]
    cdef size_t inner_bytes, heads_bytes
    if event.field == STORED:
        at = write_stored(at, event, block_size)
    elif event.field == REMOVED:
        at = write_removed(at, event)
    head = put_tag(inner, event.field, DELIMITED)
    inner_bytes = put_varint(head, at - body) - inner
    head = put_tag(heads, EVENTS, DELIMITED)
    heads_bytes = put_varint(head, inner_bytes + (at - body)) - heads
    memmove(begin + heads_bytes + inner_bytes, body, at - body)
    memcpy(begin, heads, heads_bytes)
    memcpy(begin + heads_bytes, inner, inner_bytes)
    out.size += heads_bytes + inner_bytes + (at - body)


cdef uint8_t* write_stored(uint8_t* at, Event* event, uint32_t block_size) noexcept nogil:
    cdef Item item
    cdef uint32_t token = 0
    cdef uint8_t* tokens
    cdef uint8_t* end
    cdef uint64_t block, hash, left = event.n_tokens, count, n
    cdef size_t token_bytes, size
    for block in range(event.n_hashes):
        read_value(&event.hashes, &item)
        hash = item.value
        count = min(left, <uint64_t>block_size)
        left -= count
        # Where they stand if lengths take one byte each; else they are moved.
        tokens = end = at + 4 + number_size(hash)
        for n in range(count):
            take_token(&event.tokens, &token)
            end = put_token(end, token)
        token_bytes = end - tokens
        size = number_size(hash) + delimited_size(token_bytes) + number_size(block_size)
        if size >= 0x80:
            end = at + 2 + varint_size(size) + number_size(hash) + varint_size(token_bytes)
            memmove(end, tokens, token_bytes)
        at = put_varint(put_tag(at, BLOCKS, DELIMITED), size)
        at = put_number(at, BLOCK_HASH, hash)
        if token_bytes:
            at = put_varint(put_tag(at, TOKEN_IDS, DELIMITED), token_bytes)
            at += token_bytes
        at = put_number(at, BLOCK_SIZE, block_size)
    if event.has_parent:
        at = put_varint(put_tag(at, PARENT_BLOCK_HASH, VARINT), event.parent)  # also if it is 0
    at = put_number(at, STORED_TIER, DEVICE)
    if event.kind == NULL:
        return put_delimited(at, STORED_SPEC_KIND, <const char*>b"full", 4)
    return put_delimited(at, STORED_SPEC_KIND, event.kind, event.kind_bytes)


cdef uint8_t* write_removed(uint8_t* at, Event* event) noexcept nogil:
    cdef Item item
    cdef ByteReader ahead = event.hashes
    cdef size_t size = 0
    cdef uint64_t n
    for n in range(event.n_hashes):
        read_value(&ahead, &item)
        size += varint_size(item.value)
    if size:
        at = put_varint(put_tag(at, BLOCK_HASHES, DELIMITED), size)
        for n in range(event.n_hashes):
            read_value(&event.hashes, &item)
            at = put_varint(at, item.value)
    return put_number(at, REMOVED_TIER, DEVICE)


cdef inline size_t token_varint_bytes(uint32_t token) noexcept nogil:
    return <size_t>(38 - clz(token | 1)) // 7


cdef inline uint8_t* put_token(uint8_t* at, uint32_t token) noexcept nogil:
    """Its varint, without a branch. Writes 8 bytes, of which up to 5 count."""
    cdef uint64_t wide = token
    cdef size_t size = token_varint_bytes(token)
    wide = (
        (wide & 0x7F) | (wide & 0x3F80) << 1 | (wide & 0x1FC000) << 2
        | (wide & 0xFE00000) << 3 | (wide & 0xF0000000ULL) << 4
    )
    wide |= 0x80808080ULL & ((<uint64_t>1 << 8 * (size - 1)) - 1)
    memcpy(at, &wide, 8)
    return at + size


cdef inline uint8_t* put_tag(uint8_t* at, int field, int kind) noexcept nogil:
    at[0] = <uint8_t>(field << 3 | kind)
    return at + 1
