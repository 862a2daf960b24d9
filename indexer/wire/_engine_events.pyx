"""Events of vLLM and SGLang (msgpack) into an EventBatch, in one pass over the bytes.

The face, engine_batches.py, states what is read and what is refused. Tolerant at the edge: fields
in any order, unknown ones passed over; a field of a wrong type damages the event that needs it. Of
a key that comes twice the last one counts.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from ...base.native._memory cimport vector_reserve
from .._hashing cimport BASE_SEED, hash_blocks, hash_bytes
from ._engine_frames cimport DECODED_HEAD, DecodedHead
from ._events cimport (
    EVENT_REMOVED, EVENT_STORED, Event, EventBatch, batch_append_cleared, batch_append_event,
    batch_reserve_blocks,
)
from ._grpc_block cimport EXTRA_KEY_SEED, adapter_hash
from ._msgpack_reader cimport bswap32, msgpack_skip, msgpack_value
from ._reader cimport (
    DECODE_END, DECODE_MISSING_FIELD, DECODE_NO_MEMORY, DECODE_OK,
    DECODE_OUT_OF_RANGE, DECODE_WRONG_TYPE, ITEM_ARRAY, ITEM_FLOAT, ITEM_INT, ITEM_MAP,
    ITEM_NIL, ITEM_POSITION, ITEM_TEXT, ByteReader, Item, as_hash, remaining,
)
from ._syntax cimport at_end, next_element, next_field, open_array, open_struct, text_is
from ._wire cimport batch_free, batch_init, batch_reset

cdef enum:
    ODD_BLOCKS = 8           # of another size, and none of ours: the engine's blocks have that size
    MAX_SALTED = 1 << 18     # blocks whose salt is kept
    NOGIL_BYTES = 1 << 16    # below this, decoding takes less than giving up the GIL may cost
    BIN_8 = 0xC4             # msgpack tags of bytes
    BIN_32 = 0xC6

cdef enum Refusal:           # beside the DecodeErrors
    REFUSED_PAIRS = 100
    REFUSED_EMPTY = 101
    REFUSED_SIZE = 102

cdef enum EngineEvent:
    OTHER = 0                # of something else than blocks
    STORED = 1
    REMOVED = 2
    CLEARED = 3

cdef enum FieldName:
    TYPE = 0
    HASHES = 1
    PARENT = 2
    TOKENS = 3
    SIZE = 4
    LORA_ID = 5
    MEDIUM = 6
    LORA_NAME = 7
    KEYS = 8
    SPEC_KIND = 9
    SALT = 10
    LOCALITY = 11
    UNKNOWN = 12

cdef FieldName[13] STORED_PLACES  # of an event that is an array, after its type
STORED_PLACES[:] = [
    TYPE, HASHES, PARENT, TOKENS, SIZE, LORA_ID, MEDIUM, LORA_NAME, KEYS, UNKNOWN, UNKNOWN,
    SPEC_KIND, UNKNOWN,
]

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


cdef bint same_text(const Item* item, const char* upper, size_t size) noexcept nogil:
    """Whether a text is this one, in whatever case."""
    cdef size_t at
    cdef uint8_t byte
    if item.value != size:
        return False
    for at in range(size):
        byte = item.text[at]
        if c'a' <= byte <= c'z':
            byte -= 32
        if byte != <uint8_t>upper[at]:
            return False
    return True


cdef uint8_t tier_of(const Item* medium) noexcept nogil:
    """Event.tier of a medium; what nobody knows is the device."""
    if same_text(medium, b"CPU", 3) or same_text(medium, b"CPU_PINNED", 10) or (
        same_text(medium, b"CPU_TIER1", 9)
    ):
        return 1
    if same_text(medium, b"CPU_TIER2", 9) or same_text(medium, b"DISK", 4) or (
        same_text(medium, b"NVME", 4) or same_text(medium, b"STORAGE", 7)
    ):
        return 2
    if same_text(medium, b"EXTERNAL", 8) or same_text(medium, b"NETWORK", 7) or (
        same_text(medium, b"REMOTE", 6) or same_text(medium, b"SHARED", 6)
    ):
        return 3
    return 0


cdef FieldName field_of(const Item* key, int kind) noexcept nogil:
    if key.kind == ITEM_POSITION:
        if kind == REMOVED:
            return HASHES if key.value == 1 else MEDIUM if key.value == 2 else UNKNOWN
        return STORED_PLACES[key.value] if key.value < 13 else UNKNOWN
    if key.kind != ITEM_TEXT:
        return UNKNOWN
    if text_is(key, b"type"):
        return TYPE
    if text_is(key, b"block_hashes"):
        return HASHES
    if text_is(key, b"parent_block_hash"):
        return PARENT
    if text_is(key, b"token_ids"):
        return TOKENS
    if text_is(key, b"block_size"):
        return SIZE
    if text_is(key, b"lora_id"):
        return LORA_ID
    if text_is(key, b"medium"):
        return MEDIUM
    if text_is(key, b"lora_name"):
        return LORA_NAME
    if text_is(key, b"extra_keys"):
        return KEYS
    if text_is(key, b"kv_cache_spec_kind"):
        return SPEC_KIND
    if text_is(key, b"cache_salt"):
        return SALT
    return LOCALITY if text_is(key, b"locality") else UNKNOWN


cdef inline int take_token(ByteReader* reader, uint32_t* out) noexcept nogil:
    """The next value, a token."""
    cdef Item value
    cdef uint8_t tag, width
    cdef uint32_t four
    cdef int code
    if remaining(reader) >= 5:
        tag = reader.at[0]
        width = tag - 0xCC  # uint 8, 16 or 32: which of them nobody foresees, so no branch
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


cdef int take_hash(ByteReader* reader, uint64_t* out, bint* is_nil) noexcept nogil:
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


cdef int take_text(ByteReader* reader, Item* out) noexcept nogil:
    """The next value, a text, or nothing."""
    cdef int code = msgpack_value(reader, out)
    if code == DECODE_OK and out.kind != ITEM_TEXT and out.kind != ITEM_NIL and (
        out.value or out.kind != ITEM_INT
    ):
        return DECODE_WRONG_TYPE
    if out.kind != ITEM_TEXT:
        out.value = 0
    return code


cdef int take_spec_kind(ByteReader* reader, Fields* fields) noexcept nogil:
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


cdef int take_keys(ByteReader* reader, Fields* fields) noexcept nogil:
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


cdef int take_type(ByteReader* reader, Fields* fields) noexcept nogil:
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


cdef int take_number(ByteReader* reader, uint64_t* out, bint optional) noexcept nogil:
    """The next value, a number, not below zero."""
    cdef Item value
    cdef int code = msgpack_value(reader, &value)
    if code != DECODE_OK:
        return code
    if value.kind != ITEM_INT and not (optional and value.kind == ITEM_NIL):
        return DECODE_WRONG_TYPE
    out[0] = 0 if value.kind == ITEM_NIL or value.negative else value.value
    return DECODE_OK


cdef int key_hash(ByteReader* reader, uint64_t* seed) noexcept nogil:
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


cdef int block_seed(ByteReader* keys, uint64_t* seed) noexcept nogil:
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


cdef Item salt_in_keys(const Fields* fields) noexcept nogil:
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
                and memcmp(key.text, fields.lora_name.text, key.value) == 0
            ):
                return key
            reader.at = begin
            if msgpack_skip(&reader) != DECODE_OK:
                break
    key.value = 0
    return key


@cython.final
cdef class EngineEventDecoder:
    """See engine_batches.py."""

    cdef EventBatch batch
    cdef uint32_t* tokens        # of the event at hand; owned
    cdef size_t tokens_capacity
    cdef uint32_t block_size
    cdef uint64_t other_size     # of blocks that are none of ours
    cdef uint64_t sizes_differ   # blocks of other sizes, until one of ours came
    cdef bint size_known
    cdef dict salts              # what a block's salt adds to its seed, by the block's hash
    cdef bint has_salts

    def __cinit__(self, uint32_t block_size):
        batch_init(&self.batch)
        self.block_size = block_size
        self.salts = {}

    def __dealloc__(self):
        batch_free(&self.batch)
        free(self.tokens)

    def forget(self):
        self.salts.clear()
        self.has_salts = False

    def decode(self, bytes payload not None):
        cdef ByteReader reader
        cdef int code
        reader.at = <const uint8_t*>PyBytes_AS_STRING(payload)
        reader.end = reader.at + PyBytes_GET_SIZE(payload)
        reader.json = False
        batch_reset(&self.batch)
        if PyBytes_GET_SIZE(payload) < NOGIL_BYTES:
            code = self.take_payload(&reader)
        else:
            with nogil:
                code = self.take_payload(&reader)
        if code == DECODE_OK:
            return self.batch.n_events, self.dump_batch()
        if code == REFUSED_PAIRS:
            raise ValueError(
                "it tells of pairs of tokens (speculative decoding), "
                "which no prompt can be looked up by"
            )
        if code == REFUSED_EMPTY:
            raise ValueError(
                "it tells of blocks of 0 tokens, which no prompt can be looked up by"
            )
        if code == REFUSED_SIZE:
            raise ValueError(f"blocks of {self.other_size} tokens, ours have {self.block_size}")
        if code == DECODE_NO_MEMORY:
            raise MemoryError
        return None

    cdef bytes dump_batch(self):
        """The batch as _engine_frames reads it."""
        cdef EventBatch* batch = &self.batch
        cdef size_t events = batch.n_events * sizeof(Event)
        cdef size_t hashes = batch.n_blocks * sizeof(uint64_t)
        cdef DecodedHead head = DecodedHead(batch.n_events, batch.n_blocks)
        cdef bytes made = PyBytes_FromStringAndSize(NULL, DECODED_HEAD + events + 2 * hashes)
        cdef char* at = PyBytes_AS_STRING(made)
        memcpy(at, &head, DECODED_HEAD)
        if events:
            memcpy(at + DECODED_HEAD, batch.events, events)
        if hashes:
            memcpy(at + DECODED_HEAD + events, batch.external_hashes, hashes)
            memcpy(at + DECODED_HEAD + events + hashes, batch.local_hashes, hashes)
        return made

    cdef int take_payload(self, ByteReader* reader) noexcept nogil:
        cdef Item payload, events
        cdef Fields fields
        cdef int code = open_array(reader, &payload)
        if code == DECODE_OK:
            code = DECODE_MISSING_FIELD if payload.value < 2 else msgpack_skip(reader)
        if code == DECODE_OK:
            code = open_array(reader, &events)
        while code == DECODE_OK:
            code = next_element(reader, &events)
            if code == DECODE_OK:
                code = self.read_event(reader, &fields)
            if code == DECODE_OK:
                code = self.append_event(&fields)
        if code != DECODE_END:
            return code
        payload.position = 2
        code = DECODE_OK
        while code == DECODE_OK:
            code = next_element(reader, &payload)
            if code == DECODE_OK:
                code = msgpack_skip(reader)
        return at_end(reader) if code == DECODE_END else code

    cdef int read_event(self, ByteReader* reader, Fields* fields) noexcept nogil:
        """The event's fields. Its hashes stay behind the batch's blocks, its tokens in `tokens`."""
        cdef Item event, key
        cdef ByteReader begin
        cdef FieldName name
        cdef uint32_t bit
        cdef int code = open_struct(reader, &event)
        memset(fields, 0, sizeof(Fields))
        while code == DECODE_OK:
            code = next_field(reader, &event, &key)
            if code != DECODE_OK:
                break
            name = field_of(&key, fields.kind)
            bit = <uint32_t>1 << name
            fields.seen |= bit
            fields.broken &= ~bit
            begin = reader[0]
            code = self.read_field(reader, name, fields)
            if code == DECODE_WRONG_TYPE or code == DECODE_OUT_OF_RANGE:
                fields.broken |= bit
                reader[0] = begin
                code = msgpack_skip(reader)
        return DECODE_OK if code == DECODE_END else code

    cdef int read_field(self, ByteReader* reader, FieldName name, Fields* fields) noexcept nogil:
        cdef Item value
        cdef bint is_nil = False
        cdef int code
        if name == HASHES:
            return self.read_hashes(reader, fields)
        if name == TOKENS:
            return self.read_tokens(reader, fields)
        if name == TYPE:
            return take_type(reader, fields)
        if name == PARENT:
            code = take_hash(reader, &fields.parent, &is_nil)
            fields.has_parent = not is_nil
            return code
        if name == SIZE:
            return take_number(reader, &fields.size, False)
        if name == LORA_ID:
            return take_number(reader, &fields.lora_id, True)
        if name == LORA_NAME:
            return take_text(reader, &fields.lora_name)
        if name == SALT:
            return take_text(reader, &fields.salt)
        if name == KEYS:
            return take_keys(reader, fields)
        if name == SPEC_KIND:
            return take_spec_kind(reader, fields)
        if name == UNKNOWN:
            return msgpack_skip(reader)
        code = msgpack_value(reader, &value)
        if code != DECODE_OK:
            return code
        if name == MEDIUM:
            fields.tier = tier_of(&value) if value.kind == ITEM_TEXT else 0
        else:
            fields.remote = value.kind == ITEM_TEXT and same_text(&value, b"REMOTE", 6)
        return DECODE_WRONG_TYPE if value.kind == ITEM_ARRAY or value.kind == ITEM_MAP else code

    cdef int read_hashes(self, ByteReader* reader, Fields* fields) noexcept nogil:
        cdef Item hashes
        cdef uint64_t* out
        cdef uint64_t i
        cdef bint is_nil = False
        cdef bint leading = True
        cdef int code = open_array(reader, &hashes)
        if code == DECODE_OK:
            code = batch_reserve_blocks(&self.batch, hashes.value)
        if code != DECODE_OK:
            return code
        fields.n_hashes = hashes.value
        fields.named = fields.leading = 0
        out = self.batch.external_hashes + self.batch.n_blocks
        for i in range(hashes.value):
            code = take_hash(reader, out + fields.named, &is_nil)
            if code != DECODE_OK:
                return code
            leading = leading and not is_nil
            fields.named += not is_nil
            fields.leading += leading
        return DECODE_OK

    cdef int read_tokens(self, ByteReader* reader, Fields* fields) noexcept nogil:
        cdef Item tokens
        cdef ByteReader first
        cdef uint64_t i
        cdef int code = open_array(reader, &tokens)
        fields.pairs = False
        if code != DECODE_OK:
            return code
        if not vector_reserve(
            &self.tokens, &self.tokens_capacity, tokens.value, sizeof(uint32_t)
        ):
            return DECODE_NO_MEMORY
        first = reader[0]
        fields.n_tokens = tokens.value
        for i in range(tokens.value):
            code = take_token(reader, self.tokens + i)
            if code != DECODE_OK:
                break
        if code == DECODE_WRONG_TYPE:
            fields.pairs = msgpack_value(&first, &tokens) == DECODE_OK and tokens.kind == ITEM_ARRAY
        return code

    cdef int append_event(self, const Fields* fields) noexcept nogil:
        """Append what an event says; one that says nothing to us is a removal of nothing, so that
        each counts."""
        cdef Event event
        cdef int code = DECODE_OK
        memset(&event, 0, sizeof(Event))
        event.kind = EVENT_REMOVED
        event.first = self.batch.n_blocks
        if not fields.seen & 1 << TYPE:
            return DECODE_MISSING_FIELD
        if fields.kind == CLEARED:
            self.has_salts = False
            return batch_append_cleared(&self.batch, &event)
        if fields.kind == STORED:
            code = self.append_stored(fields, &event)
        elif fields.kind == REMOVED:
            code = self.append_removed(fields, &event)
        return batch_append_event(&self.batch, &event) if code == DECODE_OK else code

    cdef int append_removed(self, const Fields* fields, Event* event) noexcept nogil:
        if not fields.seen & 1 << HASHES or fields.broken & 1 << HASHES:
            return DECODE_MISSING_FIELD
        if self.has_salts:
            self.drop_salts(fields.named)
        if not fields.remote:
            event.tier = fields.tier
            event.count = fields.named
            self.batch.n_blocks += fields.named
        return DECODE_OK

    cdef int append_stored(self, const Fields* fields, Event* event) noexcept nogil:
        cdef uint64_t seed
        cdef int code = self.check_stored(fields)
        if code != DECODE_OK or fields.foreign:
            return code
        seed = BASE_SEED
        if fields.lora_name.value:
            seed += hash_bytes(fields.lora_name.text, fields.lora_name.value, 0)
        elif fields.lora_id:
            seed += adapter_hash(fields.lora_id)
        seed += self.salt_of(fields)
        if fields.size == self.block_size and not fields.remote:
            # A block of fewer tokens is the end of a prompt, which is nobody's parent.
            event.count = <uint32_t>min(
                <uint64_t>fields.leading, fields.n_tokens // self.block_size
            )
        code = self.hash_stored(fields, seed, event.count)
        if event.count:
            event.kind = EVENT_STORED
            event.tier = fields.tier
            event.has_parent = fields.has_parent
            event.parent_hash = fields.parent
            self.batch.n_blocks += event.count
        return code

    cdef int check_stored(self, const Fields* fields) noexcept nogil:
        """Whether an event can be indexed: a DecodeError or a Refusal."""
        cdef uint32_t needed = 1 << SIZE | 1 << TOKENS | 1 << HASHES
        cdef uint32_t sound = (
            1 << TOKENS | 1 << PARENT | 1 << LORA_NAME | 1 << SALT | 1 << LORA_ID | 1 << KEYS
        )
        if fields.seen & needed != needed or fields.broken & 1 << SIZE:
            return DECODE_MISSING_FIELD
        if fields.size == 0:
            return REFUSED_EMPTY
        if fields.pairs:
            return REFUSED_PAIRS
        if fields.foreign:
            return DECODE_OK
        if fields.broken & 1 << HASHES:
            return DECODE_WRONG_TYPE
        if fields.size == self.block_size:
            self.size_known = True
        else:  # blocks smaller than ours may be ends of prompts, but not all of them
            self.other_size = fields.size
            self.sizes_differ += fields.n_hashes
            if fields.size > self.block_size or fields.leading > 1 or (
                not self.size_known and self.sizes_differ >= ODD_BLOCKS
            ):
                return REFUSED_SIZE
        return DECODE_WRONG_TYPE if fields.broken & sound else DECODE_OK

    cdef int hash_stored(self, const Fields* fields, uint64_t seed, uint32_t count) noexcept nogil:
        """The local hashes of so many blocks; the keys of all are looked at."""
        cdef uint64_t* out = self.batch.local_hashes + self.batch.n_blocks
        cdef uint32_t size = self.block_size
        cdef uint32_t keyed = <uint32_t>min(<uint64_t>fields.leading, fields.n_keys)
        cdef ByteReader keys = fields.keys
        cdef uint64_t own_seed
        cdef uint32_t place
        cdef int code
        for place in range(keyed):
            own_seed = seed
            code = block_seed(&keys, &own_seed)
            if code != DECODE_OK:
                return code
            if place < count:
                hash_blocks(self.tokens + place * size, 1, size, size, own_seed, out + place)
        if keyed < count:
            hash_blocks(
                self.tokens + keyed * size, count - keyed, size, size, seed, out + keyed
            )
        return DECODE_OK

    cdef uint64_t salt_of(self, const Fields* fields) noexcept nogil:
        """What the salt of an event's blocks adds to their seed; it is kept for those below them.
        The first block of a chain names the salt, the others inherit it."""
        cdef Item salt = fields.salt
        cdef uint64_t adds = 0
        if not salt.value and not fields.has_parent:
            salt = salt_in_keys(fields)
        if salt.value:
            adds = hash_bytes(salt.text, salt.value, 1)
        elif self.has_salts and fields.has_parent:
            adds = self.inherited_salt(fields.parent)
        if adds:
            self.keep_salts(fields.leading, adds)
        return adds

    cdef uint64_t inherited_salt(self, uint64_t parent) noexcept with gil:
        return self.salts.get(parent, 0)

    cdef void keep_salts(self, uint32_t count, uint64_t adds) noexcept with gil:
        cdef uint64_t* hashes = self.batch.external_hashes + self.batch.n_blocks
        cdef uint32_t i
        if not self.has_salts:
            self.salts.clear()
            self.has_salts = True
        for i in range(count):
            if len(self.salts) < MAX_SALTED:
                self.salts[hashes[i]] = adds

    cdef void drop_salts(self, uint32_t count) noexcept with gil:
        cdef uint64_t* hashes = self.batch.external_hashes + self.batch.n_blocks
        cdef uint32_t i
        for i in range(count):
            self.salts.pop(hashes[i], None)
        self.has_salts = bool(self.salts)
