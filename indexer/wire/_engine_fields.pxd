"""The fields of one event of vLLM or SGLang, out of msgpack. Each take_* reads the next value; of a
wrong type it returns DECODE_WRONG_TYPE, and may leave the value half read.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset, strlen

from .._hashing cimport hash_bytes
from ._grpc_block cimport EXTRA_KEY_SEED
from ._msgpack_reader cimport bswap32, msgpack_skip, msgpack_value
from ._reader cimport (
    DECODE_OK, DECODE_WRONG_TYPE, ITEM_ARRAY, ITEM_FLOAT, ITEM_INT, ITEM_MAP, ITEM_NIL,
    ITEM_POSITION, ITEM_TEXT, ByteReader, Item, as_hash, remaining,
)
from ._syntax cimport text_is

cdef extern from *:
    """
    #include <strings.h>
    static const char *const dr_field_names[] = {
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "block_mm_infos", "group_idx", "kv_cache_spec_kind",
        "cache_salt", "locality",
    };
    """
    const char** FIELD_TEXTS "dr_field_names"  # by FieldName
    int strncasecmp(const char* one, const char* other, size_t most) noexcept nogil

cdef enum:
    BIN_8 = 0xC4             # msgpack tags of bytes
    BIN_32 = 0xC6

cdef enum EngineEvent:
    OTHER = 0                # of something else than blocks
    STORED = 1
    REMOVED = 2
    CLEARED = 3

cdef enum FieldName:         # up to SPEC_KIND by the place in an event that is an array
    TYPE
    HASHES
    PARENT
    TOKENS
    SIZE
    LORA_ID
    MEDIUM
    LORA_NAME
    KEYS
    UNKNOWN
    GROUP
    SPEC_KIND
    SALT
    LOCALITY
    FIELD_COUNT

cdef struct Fields:          # of one event
    uint32_t seen            # a bit for each FieldName,
    uint32_t broken          # and of those seen that have a wrong type or value
    int kind                 # EngineEvent
    uint64_t n_hashes        # as the event has them
    uint32_t named           # of those, not nil: they stand behind the batch's blocks
    uint32_t leading         # of those, before the first nil
    uint64_t parent
    bint has_parent
    uint64_t n_tokens        # in EngineEventDecoder.tokens
    bint pairs               # of tokens
    uint64_t size            # tokens of a block
    uint64_t lora_id
    Item lora_name           # value 0: none
    Item salt
    ByteReader keys          # at the first block's
    uint64_t n_keys
    uint8_t tier             # Event.tier
    bint foreign             # of a group that has no blocks of prefixes
    bint remote              # in a pool that engines share


cdef inline bint same_text(const Item* item, const char* upper) noexcept nogil:
    """Whether a text is this one, in whatever case."""
    return (
        item.value == strlen(upper)
        and strncasecmp(<const char*>item.text, upper, item.value) == 0
    )


cdef inline uint8_t tier_of(const Item* medium) noexcept nogil:
    """Event.tier of a medium; an unknown one is the device."""
    if same_text(medium, b"CPU") or same_text(medium, b"CPU_PINNED") or (
        same_text(medium, b"CPU_TIER1")
    ):
        return 1
    if same_text(medium, b"CPU_TIER2") or same_text(medium, b"DISK") or (
        same_text(medium, b"NVME") or same_text(medium, b"STORAGE")
    ):
        return 2
    return 3 if same_text(medium, b"EXTERNAL") or same_text(medium, b"NETWORK") or (
        same_text(medium, b"REMOTE") or same_text(medium, b"SHARED")
    ) else 0


cdef inline int field_of(const Item* key, int kind) noexcept nogil:
    """The FieldName of a key; those with a place in an array stand in its order."""
    cdef int name
    if key.kind == ITEM_POSITION:
        if kind == REMOVED:
            return HASHES if key.value == 1 else MEDIUM if key.value == 2 else UNKNOWN
        return <int>key.value if key.value <= SPEC_KIND else UNKNOWN
    for name in range(FIELD_COUNT):
        if key.kind == ITEM_TEXT and text_is(key, FIELD_TEXTS[name]):
            return name
    return UNKNOWN


cdef inline int take_token(ByteReader* reader, uint32_t* out) noexcept nogil:
    """The next value, a token."""
    cdef Item value
    cdef uint8_t tag, width
    cdef uint32_t four
    cdef int code
    if remaining(reader) >= 5:
        tag = reader.at[0]
        width = tag - 0xCC  # uint 8, 16 or 32: unpredictable, so no branch
        if width <= 2:
            memcpy(&four, reader.at + 1, 4)
            width = 1 << width
            out[0] = bswap32(four) >> (32 - 8 * width)
            reader.at += 1 + width
            return DECODE_OK
        if tag < 0x80:
            out[0] = tag
            reader.at += 1
            return DECODE_OK
    code = msgpack_value(reader, &value)
    if code != DECODE_OK:
        return code
    if value.kind != ITEM_INT or value.negative or value.value > UINT32_MAX:
        return DECODE_WRONG_TYPE
    out[0] = <uint32_t>value.value
    return DECODE_OK


cdef inline int take_hash(ByteReader* reader, uint64_t* out, bint* is_nil) noexcept nogil:
    """The next value, a block's name: a number of 64 bits, or the last 64 bits of bytes."""
    cdef Item value
    cdef const uint8_t* begin = reader.at
    cdef uint64_t at
    cdef int code = msgpack_value(reader, &value)
    if code != DECODE_OK:
        return code
    is_nil[0] = value.kind == ITEM_NIL
    if is_nil[0]:
        return DECODE_OK
    if value.kind == ITEM_TEXT and BIN_8 <= begin[0] <= BIN_32:
        out[0] = 0
        for at in range(max(value.value, <uint64_t>8) - 8, value.value):
            out[0] = out[0] << 8 | value.text[at]
        return DECODE_OK
    return as_hash(&value, out)


cdef inline int take_text(ByteReader* reader, Item* out) noexcept nogil:
    """The next value, a text, or nothing."""
    cdef int code = msgpack_value(reader, out)
    if code == DECODE_OK and out.kind != ITEM_TEXT and out.kind != ITEM_NIL and (
        out.value or out.kind != ITEM_INT
    ):
        return DECODE_WRONG_TYPE
    if out.kind != ITEM_TEXT:
        out.value = 0
    return code


cdef inline int take_spec_kind(ByteReader* reader, Fields* fields) noexcept nogil:
    """Other groups of a hybrid model than full attention's name no blocks of prefixes."""
    cdef Item kind
    cdef int code = msgpack_value(reader, &kind)
    if code != DECODE_OK:
        return code
    if kind.kind == ITEM_TEXT:
        fields.foreign = kind.value and not (
            kind.value >= 4 and memcmp(kind.text, b"full", 4) == 0
        ) and not (kind.value >= 3 and memcmp(kind.text, b"mla", 3) == 0)
    else:
        fields.foreign = kind.kind != ITEM_NIL and (kind.kind != ITEM_INT or kind.value != 0)
    return DECODE_WRONG_TYPE if kind.kind == ITEM_ARRAY or kind.kind == ITEM_MAP else DECODE_OK


cdef inline int take_keys(ByteReader* reader, Fields* fields) noexcept nogil:
    """What went into the blocks' hashes beside their tokens; looked at later."""
    cdef Item keys
    cdef uint64_t left
    cdef int code = msgpack_value(reader, &keys)
    fields.n_keys = 0
    if code != DECODE_OK or keys.kind == ITEM_NIL:
        return code
    if keys.kind != ITEM_ARRAY:
        return DECODE_WRONG_TYPE
    fields.keys, fields.n_keys = reader[0], keys.value
    left = keys.value
    while left and code == DECODE_OK:
        left -= 1
        code = msgpack_skip(reader)
    return code


cdef inline int take_type(ByteReader* reader, Fields* fields) noexcept nogil:
    cdef Item kind
    cdef int code = msgpack_value(reader, &kind)
    fields.kind = OTHER
    if code != DECODE_OK:
        return code
    if kind.kind != ITEM_TEXT:
        return DECODE_WRONG_TYPE
    if text_is(&kind, b"BlockStored"):
        fields.kind = STORED
    elif text_is(&kind, b"BlockRemoved"):
        fields.kind = REMOVED
    elif text_is(&kind, b"AllBlocksCleared"):
        fields.kind = CLEARED
    return DECODE_OK


cdef inline int take_number(ByteReader* reader, uint64_t* out, bint optional) noexcept nogil:
    """The next value, a number, not below zero."""
    cdef Item value
    cdef int code = msgpack_value(reader, &value)
    if code != DECODE_OK:
        return code
    if value.kind != ITEM_INT and not (optional and value.kind == ITEM_NIL):
        return DECODE_WRONG_TYPE
    out[0] = 0 if value.kind == ITEM_NIL or value.negative else value.value
    return DECODE_OK


cdef inline int key_hash(ByteReader* reader, uint64_t* seed) noexcept nogil:
    """Add what a block's further key adds to its seed, so that no prompt of tokens alone matches
    it. Texts are an adapter's name or a salt, which the event is known by already."""
    cdef const uint8_t* begin = reader.at
    cdef ByteReader inside
    cdef Item key, offset
    cdef int code = msgpack_value(reader, &key)
    if code != DECODE_OK or (key.kind == ITEM_TEXT and not (BIN_8 <= begin[0] <= BIN_32)):
        return code
    inside = reader[0]
    if key.kind == ITEM_ARRAY and key.value == 2:  # an image's name and its place in the prompt
        code = msgpack_skip(&inside)
        if code == DECODE_OK:
            code = msgpack_value(&inside, &offset)
        if code == DECODE_OK and (
            offset.kind == ITEM_FLOAT or offset.kind == ITEM_TEXT or offset.kind == ITEM_NIL
        ):
            code = DECODE_WRONG_TYPE
    reader.at = begin
    if code == DECODE_OK:
        code = msgpack_skip(reader)
    if code == DECODE_OK:
        seed[0] += hash_bytes(begin, reader.at - begin, EXTRA_KEY_SEED)
    return code


cdef inline int block_seed(ByteReader* keys, uint64_t* seed) noexcept nogil:
    """Add what one block's further keys add; they are read."""
    cdef Item block
    cdef int code = msgpack_value(keys, &block)
    if code != DECODE_OK or block.kind == ITEM_NIL:
        return code
    if block.kind != ITEM_ARRAY:
        return DECODE_WRONG_TYPE
    while block.value and code == DECODE_OK:
        block.value -= 1
        code = key_hash(keys, seed)
    return code


cdef inline Item salt_in_keys(const Fields* fields) noexcept nogil:
    """The first block's key that is a text, and no adapter; value 0 if there is none."""
    cdef ByteReader reader = fields.keys
    cdef const uint8_t* begin
    cdef Item block, key
    cdef uint64_t left
    memset(&key, 0, sizeof(key))
    if fields.n_keys and msgpack_value(&reader, &block) == DECODE_OK and block.kind == ITEM_ARRAY:
        left = block.value
        while left:
            left -= 1
            begin = reader.at
            if msgpack_value(&reader, &key) != DECODE_OK:
                break
            if key.kind == ITEM_TEXT and not (BIN_8 <= begin[0] <= BIN_32) and not (
                key.value == fields.lora_name.value
                and (key.value == 0 or memcmp(key.text, fields.lora_name.text, key.value) == 0)
            ):
                return key
            reader.at = begin
            if msgpack_skip(&reader) != DECODE_OK:
                break
    key.value = 0
    return key
