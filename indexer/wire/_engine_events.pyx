"""Events of vLLM and SGLang (msgpack) into an EventBatch, in one pass over the bytes.

The face, engine_batches.py, states what is read and what is refused. Tolerant at the edge: fields
in any order, unknown ones passed over; a field of a wrong type damages the event that needs it. Of
a key that comes twice the last one counts.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from ...base.native._memory cimport vector_reserve
from .._hashing cimport BASE_SEED, hash_blocks, hash_bytes
from ._engine_fields cimport (
    CLEARED, HASHES, KEYS, LOCALITY, LORA_ID, LORA_NAME, MEDIUM, PARENT, REMOVED, SALT, SIZE,
    SPEC_KIND, STORED, TOKENS, TYPE, Fields, block_seed, field_of, salt_in_keys, same_text,
    take_hash, take_keys, take_number, take_spec_kind, take_text, take_token, take_type, tier_of,
)
from ._engine_frames cimport DECODED_HEAD, DecodedHead
from ._events cimport (
    EVENT_REMOVED, EVENT_STORED, Event, EventBatch, batch_append_cleared, batch_append_event,
    batch_reserve_blocks,
)
from ._grpc_block cimport adapter_hash
from ._msgpack_reader cimport msgpack_skip, msgpack_value
from ._reader cimport (
    DECODE_MISSING_FIELD, DECODE_NO_MEMORY, DECODE_OK, DECODE_OUT_OF_RANGE,
    DECODE_WRONG_TYPE, ITEM_ARRAY, ITEM_MAP, ITEM_TEXT, ByteReader, Item,
)
from ._syntax cimport another_element, another_field, at_end, open_array, open_struct
from ._wire cimport batch_free, batch_init, batch_reset

cdef enum:
    ODD_BLOCKS = 8           # of another size, and none of ours: the engine's blocks have that size
    MAX_SALTED = 1 << 18     # blocks whose salt is kept
    NOGIL_BYTES = 1 << 16    # below this, decoding takes less than giving up the GIL may cost

cdef enum Refusal:           # beside the DecodeErrors
    REFUSED_PAIRS = 100
    REFUSED_EMPTY = 101
    REFUSED_SIZE = 102


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
        if code >= REFUSED_PAIRS:
            raise ValueError(self.refusal(code))
        if code == DECODE_NO_MEMORY:
            raise MemoryError
        return None

    cdef str refusal(self, int code):
        if code == REFUSED_SIZE:
            return f"blocks of {self.other_size} tokens, the router's have {self.block_size}"
        pairs = code == REFUSED_PAIRS
        what = "pairs of tokens (speculative decoding)" if pairs else "blocks of 0 tokens"
        return f"its events have {what}, which no prompt can be looked up by"

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
        while another_element(reader, &events, &code):
            code = self.read_event(reader, &fields)
            if code == DECODE_OK:
                code = self.append_event(&fields)
        payload.position = 2
        while another_element(reader, &payload, &code):
            code = msgpack_skip(reader)
        return at_end(reader) if code == DECODE_OK else code

    cdef int read_event(self, ByteReader* reader, Fields* fields) noexcept nogil:
        """The event's fields. Its hashes stay behind the batch's blocks, its tokens in `tokens`."""
        cdef Item event, key
        cdef ByteReader begin
        cdef int name
        cdef uint32_t bit
        cdef int code = open_struct(reader, &event)
        memset(fields, 0, sizeof(Fields))
        while another_field(reader, &event, &key, &code):
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
        return code

    cdef int read_field(self, ByteReader* reader, int name, Fields* fields) noexcept nogil:
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
        if name != MEDIUM and name != LOCALITY:
            return msgpack_skip(reader)
        code = msgpack_value(reader, &value)
        if code != DECODE_OK:
            return code
        if name == MEDIUM:
            fields.tier = tier_of(&value) if value.kind == ITEM_TEXT else 0
        else:
            fields.remote = value.kind == ITEM_TEXT and same_text(&value, b"REMOTE")
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
            # A block of fewer tokens is the end of a prompt, which is no block's parent.
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
        """The local hashes of `count` blocks; the keys of all are looked at."""
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
