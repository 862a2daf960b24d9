"""A KvBlock (smg.grpc.common) into the two hashes that the index knows it by."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ...base.native._protobuf cimport (
    DELIMITED,
    VARINT,
    ByteReader,
    Field,
    read_field,
    read_varint,
)
from .._hashing cimport hash_blocks, hash_bytes
from ._events cimport EventBatch
from ._grpc_fields cimport (
    BLOCK_EXTRA_KEYS,
    BLOCK_HASH,
    BLOCK_LORA_ID,
    EXTRA_KEY_TEXT,
    TOKEN_IDS,
    inside,
)
from ._reader cimport DECODE_MALFORMED, DECODE_OK

cdef extern from *:
    int lowest_bit "__builtin_ctz"(uint32_t word) noexcept nogil  # of a word that is not 0

cdef enum:
    EXTRA_KEY_SEED = 2   # of what else went into a block's hash; 0 and 1 are an adapter's and a salt's
    LONGEST_NUMBER = 20  # decimal digits of an int64 and a sign

cdef struct Stored:          # what a stored event says of all its blocks
    uint64_t parent_hash
    uint64_t tier            # KvCacheTier; 0: not given
    uint64_t seed            # of their local hashes
    bint has_parent
    bint has_adapter
    bint foreign             # not of a tree of prefixes


cdef inline uint32_t read_tokens(const Field* field, uint32_t* out, uint32_t most) noexcept nogil:
    """Packed token ids; how many, most + 1 if there are more or the bytes are none."""
    cdef const uint8_t* at = field.start
    cdef const uint8_t* end = at + field.value
    cdef ByteReader reader
    cdef uint64_t value
    cdef uint32_t word, stops
    cdef uint32_t count = 0
    while at < end:
        if count == most:
            return most + 1
        stops = 0
        if end - at >= 4:
            memcpy(&word, at, 4)
            stops = ~word & <uint32_t>0x80808080  # the high bit of each byte that ends a number
        if stops:  # without a branch on how long it is, which no processor can foresee
            word &= stops ^ (stops - 1)
            out[count] = (
                (word & 0x7F) | (word >> 1 & 0x3F80) | (word >> 2 & 0x1FC000)
                | (word >> 3 & 0xFE00000)
            )
            at += (lowest_bit(stops) >> 3) + 1
        else:
            reader.at = at
            reader.end = end
            if not read_varint(&reader, &value):
                return most + 1
            out[count] = <uint32_t>value
            at = reader.at
        count += 1
    return count


cdef inline uint64_t adapter_hash(uint64_t lora_id) noexcept nogil:
    """What an adapter that has but a number adds to the seed: it is named by its digits."""
    cdef char[20] digits
    cdef size_t at = LONGEST_NUMBER
    while True:
        at -= 1
        digits[at] = <char>(c'0' + lora_id % 10)
        lora_id //= 10
        if lora_id == 0 or at == 0:
            return hash_bytes(&digits[at], LONGEST_NUMBER - at, 0)


cdef inline uint64_t extra_key_hash(const Field* field) noexcept nogil:
    """What a block's further key adds to the seed, so that no prompt of tokens alone matches it.
    Text is an adapter's name or a salt, which the event says by itself."""
    cdef ByteReader reader = inside(field)
    cdef Field key
    if reader.at < reader.end and read_field(&reader, &key) and key.number == EXTRA_KEY_TEXT:
        return 0
    return hash_bytes(field.start, field.value, EXTRA_KEY_SEED)


cdef inline int append_block(
    EventBatch* batch, ByteReader reader, const Stored* stored, uint32_t* tokens, uint32_t block_size,
    bint* whole,
) noexcept nogil:
    """A block's two hashes; `whole` comes back false, and nothing is appended, if it has another
    number of tokens than ours: an engine may keep the end of a prompt, which is no block's parent."""
    cdef Field field
    cdef uint64_t block_hash = 0
    cdef uint64_t seed = stored.seed
    cdef uint32_t count = 0
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return DECODE_MALFORMED
        if field.number == BLOCK_HASH and field.wire == VARINT:
            block_hash = field.value
        elif field.number == TOKEN_IDS and field.wire == DELIMITED:
            # Packed numbers may come in parts.
            count += read_tokens(&field, tokens + count, block_size - count)
            if count > block_size:
                break
        elif field.number == TOKEN_IDS and field.wire == VARINT:
            if count == block_size:
                count += 1
                break
            tokens[count] = <uint32_t>field.value
            count += 1
        elif field.number == BLOCK_LORA_ID and field.wire == VARINT:
            if field.value and not stored.has_adapter:
                seed += adapter_hash(field.value)
        elif field.number == BLOCK_EXTRA_KEYS and field.wire == DELIMITED:
            seed += extra_key_hash(&field)
    whole[0] = count == block_size
    if whole[0]:
        batch.external_hashes[batch.n_blocks] = block_hash
        hash_blocks(tokens, 1, block_size, block_size, seed, batch.local_hashes + batch.n_blocks)
        batch.n_blocks += 1
    return DECODE_OK
