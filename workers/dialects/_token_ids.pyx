"""Kernel: requests into protobuf, and tokens out of it, without an object for each token."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ...base.native._protobuf cimport (
    DELIMITED,
    ByteReader,
    Field,
    copy_numbers,
    count_numbers,
    delimited_size,
    number_size,
    put_delimited,
    put_number,
    put_varint,
    read_field,
    read_short_varint,
    varint_size,
)

cdef enum:
    REQUEST_ID = 1         # of GenerateRequest
    TOKENIZED = 2
    MAX_TOKENS = 5
    INPUT_TOKEN_IDS = 2    # of TokenizedInput
    MOST_BYTES = 5         # of a token, or of an array's head, in msgpack


cdef inline uint8_t* put_big_endian(uint8_t* out, uint8_t mark, uint32_t value) noexcept nogil:
    out[0] = mark
    out[1], out[2] = <uint8_t>(value >> 24), <uint8_t>(value >> 16)
    out[3], out[4] = <uint8_t>(value >> 8), <uint8_t>value
    return out + 5


cdef inline uint8_t* put_token(uint8_t* out, uint32_t token) noexcept nogil:
    """The shortest form of msgpack that holds it."""
    if token < 0x80:
        out[0] = <uint8_t>token
        return out + 1
    if token < 0x100:
        out[0], out[1] = 0xCC, <uint8_t>token
        return out + 2
    if token < 0x10000:
        out[0], out[1], out[2] = 0xCD, <uint8_t>(token >> 8), <uint8_t>token
        return out + 3
    return put_big_endian(out, 0xCE, token)


cdef inline uint8_t* put_head(uint8_t* out, uint32_t count) noexcept nogil:
    """Of an array."""
    if count < 16:
        out[0] = <uint8_t>(0x90 | count)
        return out + 1
    if count < 0x10000:
        out[0], out[1], out[2] = 0xDC, <uint8_t>(count >> 8), <uint8_t>count
        return out + 3
    return put_big_endian(out, 0xDD, count)


cdef bint measure(
    ByteReader reader, uint64_t* count, uint64_t* rest, uint64_t* present
) noexcept nogil:
    """How many tokens there are, the bytes beside them, and a bit for each field that is there and
    whose number is below 64; false if the bytes are no message."""
    cdef Field field
    cdef ByteReader inside
    cdef const uint8_t* begin
    cdef uint64_t ignored = 0
    while reader.at < reader.end:
        begin = reader.at
        if not read_field(&reader, &field):
            return False
        if field.number < 64:
            present[0] |= <uint64_t>1 << field.number
        if field.number == TOKENIZED and field.wire == DELIMITED:
            inside.at = field.start
            inside.end = field.start + field.value
            if not count_numbers(inside, INPUT_TOKEN_IDS, count, &ignored):
                return False
        else:
            rest[0] += <uint64_t>(reader.at - begin)
    return True


cdef bint take_apart(ByteReader reader, uint32_t* tokens, uint8_t* rest) noexcept nogil:
    """Copy both of a message that was measured; false if a token is longer than any number."""
    cdef Field field
    cdef ByteReader inside
    cdef const uint8_t* begin
    cdef uint32_t largest = 0
    while reader.at < reader.end:
        begin = reader.at
        read_field(&reader, &field)
        if field.number == TOKENIZED and field.wire == DELIMITED:
            inside.at = field.start
            inside.end = field.start + field.value
            if not copy_numbers(inside, INPUT_TOKEN_IDS, &tokens, &largest, NULL):
                return False
        else:
            memcpy(rest, begin, <size_t>(reader.at - begin))
            rest += reader.at - begin
    return True


def split_tokens(bytes request not None):
    """(the request without its tokens, the tokens as an array of msgpack, how many they are, the
    fields that are there: 1 << number for each of a number below 64).

    ValueError: it is no GenerateRequest, or has more tokens than an array can have.
    """
    cdef ByteReader reader
    cdef uint64_t count = 0
    cdef uint64_t size = 0
    cdef uint64_t present = 0
    cdef uint64_t number
    cdef uint32_t* tokens
    cdef uint8_t* out
    cdef uint8_t* at
    reader.at = <const uint8_t*><const char*>request
    reader.end = reader.at + len(request)
    if not measure(reader, &count, &size, &present) or count >= 1 << 32:
        raise ValueError("not a GenerateRequest")
    tokens = <uint32_t*>malloc(<size_t>(4 * count + MOST_BYTES * (count + 1) + size + 1))
    if tokens == NULL:
        raise MemoryError
    try:
        out = at = <uint8_t*>(tokens + count)
        if not take_apart(reader, tokens, at + MOST_BYTES * (count + 1)):
            raise ValueError("not a GenerateRequest")
        at = put_head(at, <uint32_t>count)
        for number in range(count):
            at = put_token(at, tokens[number])
        rest = (<const char*>(out + MOST_BYTES * (count + 1)))[:size]
        return rest, (<const char*>out)[: at - out], count, present
    finally:
        free(tokens)


def encode_generate(
    str request_id not None,
    uint32_t max_tokens,
    bytes settings not None,
    const uint32_t[::1] tokens not None,
    packed=(),
):
    """(A serialized GenerateRequest, the largest of `tokens`). `settings` are its other fields,
    serialized; `packed` has what comes before the tokens, as `pack_tokens` makes it.

    ValueError for more tokens than a message can have.
    """
    cdef bytes name = request_id.encode()
    cdef bytes part
    cdef size_t name_size = len(name)
    cdef size_t settings_size = len(settings)
    cdef uint32_t largest = 0
    cdef size_t ids = packed_size(tokens, &largest)
    cdef size_t inside, size
    cdef uint8_t* at
    cdef bytes out
    for part in packed:
        ids += <size_t>len(part)
    inside = delimited_size(ids)
    size = delimited_size(name_size) + number_size(max_tokens) + settings_size
    size += delimited_size(inside)
    if size >= 1 << 31:
        raise ValueError("too many tokens for a message")
    out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    at = <uint8_t*><char*>out
    at = put_delimited(at, REQUEST_ID, <const char*>name, name_size)
    at = put_number(at, MAX_TOKENS, max_tokens)
    memcpy(at, <const char*>settings, settings_size)
    at += settings_size
    if ids:
        at[0] = TOKENIZED << 3 | DELIMITED
        at = put_varint(at + 1, inside)
        at[0] = INPUT_TOKEN_IDS << 3 | DELIMITED
        at = put_varint(at + 1, ids)
        for part in packed:
            memcpy(at, <const char*>part, <size_t>len(part))
            at += len(part)
        put_tokens(at, tokens)
    return out, largest


def pack_tokens(const uint32_t[::1] tokens not None):
    """(Token ids as a message has them, the largest of them)."""
    cdef uint32_t largest = 0
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>packed_size(tokens, &largest))
    put_tokens(<uint8_t*><char*>out, tokens)
    return out, largest


def unpack_tokens(bytes packed not None, Py_ssize_t begin, Py_ssize_t end):
    """Token ids, as numbers of 32 bits, of what `pack_tokens` made: of its bytes from `begin` to
    `end`, which are whole numbers. ValueError if they are not."""
    cdef ByteReader reader
    cdef Py_ssize_t at
    cdef Py_ssize_t count = 0
    cdef uint64_t token = 0
    cdef const uint8_t* start = <const uint8_t*><const char*>packed
    cdef uint32_t* made
    cdef bytes out
    if not 0 <= begin <= end <= len(packed):
        raise ValueError("not of these bytes")
    for at in range(begin, end):
        count += start[at] < 0x80
    out = PyBytes_FromStringAndSize(NULL, 4 * count)
    made = <uint32_t*><char*>out
    reader.at, reader.end = start + begin, start + end
    for at in range(count):
        read_short_varint(&reader, &token)
        made[at] = <uint32_t>token
    if reader.at != reader.end:
        raise ValueError("not whole numbers")
    return out


cdef size_t packed_size(const uint32_t[::1] tokens, uint32_t* largest) noexcept nogil:
    cdef size_t size = 0
    cdef Py_ssize_t number
    for number in range(tokens.shape[0]):
        size += varint_size(tokens[number])
        largest[0] = max(largest[0], tokens[number])
    return size


cdef void put_tokens(uint8_t* at, const uint32_t[::1] tokens) noexcept nogil:
    cdef Py_ssize_t number
    for number in range(tokens.shape[0]):
        at = put_varint(at, tokens[number])
