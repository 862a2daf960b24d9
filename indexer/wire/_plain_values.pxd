"""What plain events of vLLM and SGLang say beside blocks: values that mean nothing, or one thing.

Whatever a decoder of all msgpack might refuse, or read in another way, is none of these.
"""
from libc.stdint cimport uint8_t, uint64_t

from ._reader cimport (
    DECODE_OK, ITEM_ARRAY, ITEM_FLOAT, ITEM_INT, ITEM_NIL, ITEM_TEXT, ByteReader, Item,
)
from ._syntax cimport read_value, text_is


cdef enum:
    BIN_8 = 0xC4                # tags of bytes
    BIN_32 = 0xC6


cdef inline bint is_device(ByteReader* reader) noexcept nogil:
    """The next value, a medium, is the device."""
    cdef Item value
    if read_value(reader, &value) != DECODE_OK:
        return False
    return value.kind == ITEM_NIL or (value.kind == ITEM_TEXT and text_is(&value, b"GPU"))


cdef inline bint is_single(ByteReader* reader) noexcept nogil:
    """The next value, which is passed over, can be read, and holds no others."""
    cdef Item value
    cdef const uint8_t* begin = reader.at
    if read_value(reader, &value) != DECODE_OK:
        return False
    if value.kind == ITEM_TEXT:
        return is_name(begin, &value)
    return value.kind <= ITEM_INT or value.kind == ITEM_FLOAT


cdef inline bint is_name(const uint8_t* begin, const Item* item) noexcept nogil:
    """The value that begins there is a text, not bytes, of ASCII."""
    cdef uint64_t at
    cdef uint8_t seen = 0
    if item.kind != ITEM_TEXT or (BIN_8 <= begin[0] <= BIN_32):
        return False
    for at in range(item.value):
        seen |= item.text[at]
    return seen < 0x80


cdef inline bint is_nothing(ByteReader* reader, bint arrays) noexcept nogil:
    """The next value says nothing: it is nil, 0, an empty text or, of `arrays`, one of nils."""
    cdef Item value
    cdef uint64_t left
    if read_value(reader, &value) != DECODE_OK:
        return False
    if value.kind == ITEM_NIL:
        return True
    if value.kind == ITEM_INT or value.kind == ITEM_TEXT:
        return value.value == 0
    if value.kind != ITEM_ARRAY or not arrays:
        return False
    left = value.value
    while left:
        left -= 1
        if read_value(reader, &value) != DECODE_OK or value.kind != ITEM_NIL:
            return False
    return True


cdef inline bint begins(const Item* item, const char* text, size_t size) noexcept nogil:
    cdef size_t at
    if item.value < size:
        return False
    for at in range(size):
        if item.text[at] != <uint8_t>text[at]:
            return False
    return True
