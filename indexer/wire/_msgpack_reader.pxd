"""Items out of msgpack. No recursion, so no message can nest too deep for it."""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ._reader cimport (
    DECODE_MALFORMED, DECODE_OK, DECODE_TRUNCATED, ITEM_ARRAY, ITEM_BOOL, ITEM_FLOAT, ITEM_INT,
    ITEM_MAP, ITEM_NIL, ITEM_OTHER, ITEM_TEXT, Item, ByteReader, remaining,
)

cdef extern from *:
    uint16_t bswap16 "__builtin_bswap16"(uint16_t) noexcept nogil
    uint32_t bswap32 "__builtin_bswap32"(uint32_t) noexcept nogil
    uint64_t bswap64 "__builtin_bswap64"(uint64_t) noexcept nogil


cdef inline uint64_t big_endian_64(const uint8_t* data) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, data, 8)
    return bswap64(value)


cdef inline int take_uint(ByteReader* reader, int log2_width, uint64_t* out) noexcept nogil:
    """A big-endian unsigned number of 1, 2, 4 or 8 bytes."""
    cdef uint16_t two
    cdef uint32_t four
    if remaining(reader) < <size_t>1 << log2_width:
        return DECODE_TRUNCATED
    if log2_width == 0:
        out[0] = reader.at[0]
    elif log2_width == 1:
        memcpy(&two, reader.at, 2)
        out[0] = bswap16(two)
    elif log2_width == 2:
        memcpy(&four, reader.at, 4)
        out[0] = bswap32(four)
    else:
        out[0] = big_endian_64(reader.at)
    reader.at += <size_t>1 << log2_width
    return DECODE_OK


cdef inline int take_bytes(ByteReader* reader, uint64_t size, Item* item) noexcept nogil:
    if remaining(reader) < size:
        return DECODE_TRUNCATED
    item.value = size
    item.text = reader.at
    reader.at += size
    return DECODE_OK


cdef inline int open_container(
    ByteReader* reader, int kind, uint64_t count, Item* item
) noexcept nogil:
    # An item takes a byte at least: a count beyond that is a lie, found before any allocation.
    if remaining(reader) < (count * 2 if kind == ITEM_MAP else count):
        return DECODE_TRUNCATED
    item.kind = kind
    item.value = count
    return DECODE_OK


cdef inline int msgpack_value(ByteReader* reader, Item* item) noexcept nogil:
    """The next value; of an array or a map only its head."""
    if reader.at == reader.end:
        return DECODE_TRUNCATED
    cdef uint8_t tag = reader.at[0]
    cdef uint64_t number = 0
    cdef int code
    reader.at += 1
    item.negative = False
    item.escaped = False
    item.position = 0
    if tag < 0x80:
        item.kind = ITEM_INT
        item.value = tag
    elif tag < 0x90:
        return open_container(reader, ITEM_MAP, tag & 0x0F, item)
    elif tag < 0xA0:
        return open_container(reader, ITEM_ARRAY, tag & 0x0F, item)
    elif tag < 0xC0:
        item.kind = ITEM_TEXT
        return take_bytes(reader, tag & 0x1F, item)
    elif tag >= 0xE0:
        item.kind = ITEM_INT
        item.negative = True
        item.value = <uint64_t><int64_t><int8_t>tag
    elif tag >= 0xCC and tag <= 0xCF:  # uint 8 to 64
        item.kind = ITEM_INT
        return take_uint(reader, tag - 0xCC, &item.value)
    elif tag == 0xC0:
        item.kind = ITEM_NIL
    elif tag == 0xC1:
        return DECODE_MALFORMED
    elif tag <= 0xC3:
        item.kind = ITEM_BOOL
    elif tag <= 0xC9:  # bin 8 to 32, ext 8 to 32
        code = take_uint(reader, (tag - 0xC4) % 3, &number)
        if code != DECODE_OK:
            return code
        if tag <= 0xC6:
            item.kind = ITEM_TEXT
        else:
            item.kind = ITEM_OTHER
            number += 1  # the ext's type
        return take_bytes(reader, number, item)
    elif tag <= 0xCB:  # float 32, 64
        item.kind = ITEM_FLOAT
        return take_bytes(reader, 4 if tag == 0xCA else 8, item)
    elif tag <= 0xD3:  # int 8 to 64
        code = take_uint(reader, tag - 0xD0, &number)
        if code != DECODE_OK:
            return code
        if tag == 0xD0:
            number = <uint64_t><int64_t><int8_t>number
        elif tag == 0xD1:
            number = <uint64_t><int64_t><int16_t>number
        elif tag == 0xD2:
            number = <uint64_t><int64_t><int32_t>number
        item.kind = ITEM_INT
        item.value = number
        item.negative = <int64_t>number < 0
    elif tag <= 0xD8:  # fixext 1 to 16, after one byte of type
        item.kind = ITEM_OTHER
        return take_bytes(reader, (<uint64_t>1 << (tag - 0xD4)) + 1, item)
    elif tag <= 0xDB:  # str 8 to 32
        code = take_uint(reader, tag - 0xD9, &number)
        if code != DECODE_OK:
            return code
        item.kind = ITEM_TEXT
        return take_bytes(reader, number, item)
    else:  # array 16, 32, map 16, 32
        code = take_uint(reader, 1 + (tag & 1), &number)
        if code != DECODE_OK:
            return code
        return open_container(reader, ITEM_ARRAY if tag <= 0xDD else ITEM_MAP, number, item)
    return DECODE_OK


cdef inline int msgpack_skip(ByteReader* reader) noexcept nogil:
    """Pass over one value with all it contains."""
    cdef uint64_t pending = 1
    cdef Item item
    cdef int code
    while pending:
        code = msgpack_value(reader, &item)
        if code != DECODE_OK:
            return code
        pending -= 1
        if item.kind == ITEM_ARRAY:
            pending += item.value
        elif item.kind == ITEM_MAP:
            pending += item.value * 2
        if pending > remaining(reader):
            return DECODE_TRUNCATED
    return DECODE_OK
