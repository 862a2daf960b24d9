"""Inline functions that read protobuf's wire format, for kernels that take a few fields of a message
and leave the rest as it is; and that write numbers and heads of fields.

Of a scalar that comes twice the last one counts, submessages merge, a repeated number may come
packed or not. Groups are no message: they were given up before our protocols were made.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum WireType:
    VARINT = 0
    FIXED64 = 1
    DELIMITED = 2
    FIXED32 = 5

cdef struct ByteReader:
    const uint8_t* at     # next byte to read
    const uint8_t* end    # one past the last

cdef struct Field:
    uint64_t value        # of a varint; the length of a delimited one
    const uint8_t* start  # of a delimited one's bytes
    uint32_t number
    uint32_t wire

cdef inline bint read_varint(ByteReader* reader, uint64_t* value) noexcept nogil:
    """False if the bytes end inside it, or it is longer than any number."""
    cdef uint64_t result = 0
    cdef uint32_t shift = 0
    cdef uint8_t byte
    while reader.at < reader.end and shift < 70:
        byte = reader.at[0]
        reader.at += 1
        if shift < 64:
            result |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return True
        shift += 7
    return False


cdef inline bint read_short_varint(ByteReader* reader, uint64_t* value) noexcept nogil:
    """As read_varint, quick where it is of one to three bytes, as most token ids are."""
    cdef const uint8_t* at = reader.at
    if reader.end - at >= 3:
        if at[0] < 0x80:
            value[0] = at[0]
            reader.at = at + 1
            return True
        if at[1] < 0x80:
            value[0] = (at[0] & 0x7F) | <uint64_t>at[1] << 7
            reader.at = at + 2
            return True
        if at[2] < 0x80:
            value[0] = (at[0] & 0x7F) | <uint64_t>(at[1] & 0x7F) << 7 | <uint64_t>at[2] << 14
            reader.at = at + 3
            return True
    return read_varint(reader, value)


cdef inline bint read_field(ByteReader* reader, Field* field) noexcept nogil:
    """The next field; false if the bytes are no message."""
    cdef uint64_t tag
    if not read_varint(reader, &tag) or tag >> 32 or tag >> 3 == 0:
        return False
    field.number = <uint32_t>(tag >> 3)
    field.wire = <uint32_t>(tag & 7)
    if field.wire == VARINT:
        return read_varint(reader, &field.value)
    if field.wire == DELIMITED:
        if not read_varint(reader, &field.value):
            return False
    elif field.wire == FIXED64:
        field.value = 8
    elif field.wire == FIXED32:
        field.value = 4
    else:  # groups were given up before this protocol was made
        return False
    if field.value > <uint64_t>(reader.end - reader.at):
        return False
    field.start = reader.at
    reader.at += field.value
    return True


cdef inline bint count_numbers(
    ByteReader reader, uint32_t number, uint64_t* count, uint64_t* other
) noexcept nogil:
    """Add how many numbers the field `number` of a message has to `count`, and the bytes of its
    other fields to `other`; false if the bytes are no message."""
    cdef Field field
    cdef const uint8_t* begin
    cdef uint64_t i, ends
    while reader.at < reader.end:
        begin = reader.at
        if not read_field(&reader, &field):
            return False
        if field.number == number and field.wire == VARINT:
            count[0] += 1
        elif field.number == number and field.wire == DELIMITED:
            ends = 0
            for i in range(field.value):  # a number ends where its high bit is clear
                ends += field.start[i] < 0x80
            if field.value and field.start[field.value - 1] >= 0x80:
                return False
            count[0] += ends
        else:
            other[0] += <uint64_t>(reader.at - begin)
    return True


cdef inline bint copy_numbers(
    ByteReader reader, uint32_t number, uint32_t** out, uint32_t* largest, uint8_t** other
) noexcept nogil:
    """Write the numbers of a message that was counted, and move `out` past them; unless it is NULL,
    write the other fields to `other` in the same way. False: a number longer than any."""
    cdef Field field
    cdef const uint8_t* begin
    cdef ByteReader packed
    cdef uint64_t value = 0
    cdef uint32_t* at = out[0]
    cdef uint32_t most = largest[0]
    while reader.at < reader.end:
        begin = reader.at
        read_field(&reader, &field)
        if field.number != number or field.wire not in (VARINT, DELIMITED):
            if other != NULL:
                memcpy(other[0], begin, <size_t>(reader.at - begin))
                other[0] += reader.at - begin
            continue
        if field.wire == VARINT:
            packed.at = packed.end = reader.at
            at[0] = <uint32_t>field.value  # a longer number is cut to its low bits, as protobuf does
            most = max(most, at[0])
            at += 1
        else:
            packed.at = field.start
            packed.end = field.start + field.value
        while packed.at < packed.end:
            if not read_short_varint(&packed, &value):
                return False
            at[0] = <uint32_t>value
            most = max(most, at[0])
            at += 1
    out[0] = at
    largest[0] = most
    return True


cdef inline size_t varint_size(uint64_t value) noexcept nogil:
    """Bytes that a varint takes."""
    cdef size_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t* put_varint(uint8_t* out, uint64_t value) noexcept nogil:
    """Where the next byte goes."""
    while value >= 0x80:
        out[0] = <uint8_t>(value | 0x80)
        value >>= 7
        out += 1
    out[0] = <uint8_t>value
    return out + 1


cdef inline size_t number_size(uint64_t value) noexcept nogil:
    """Bytes of a number's field with a tag of one byte; 0 is what is not written."""
    return 1 + varint_size(value) if value else 0


cdef inline uint8_t* put_number(uint8_t* out, uint32_t number, uint64_t value) noexcept nogil:
    """A field below 16, unless it is 0."""
    if value == 0:
        return out
    out[0] = <uint8_t>(number << 3 | VARINT)
    return put_varint(out + 1, value)


cdef inline size_t delimited_size(size_t size) noexcept nogil:
    """Bytes of a string's or packed numbers' field with a tag of one byte; empty ones are not
    written."""
    return 1 + varint_size(size) + size if size else 0


cdef inline uint8_t* put_delimited(
    uint8_t* out, uint32_t number, const void* data, size_t size
) noexcept nogil:
    """A field below 16, unless it is empty."""
    if size == 0:
        return out
    out[0] = <uint8_t>(number << 3 | DELIMITED)
    out = put_varint(out + 1, size)
    memcpy(out, data, size)
    return out + size
