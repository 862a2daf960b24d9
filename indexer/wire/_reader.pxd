"""Pulling values out of bytes, whatever the syntax: _msgpack_reader and _json_reader give the same
items, so that the grammar of events is written once.

Every function returns DECODE_OK, a DecodeError, or DECODE_END; nothing reads at or past `end`.
"""
from libc.stdint cimport uint8_t, uint64_t


cdef enum DecodeError:       # codec.py has the text of each
    DECODE_END = -1          # no error: the container has no further item
    DECODE_OK = 0
    DECODE_TRUNCATED = 1
    DECODE_MALFORMED = 2
    DECODE_TRAILING = 3
    DECODE_WRONG_TYPE = 4
    DECODE_OUT_OF_RANGE = 5
    DECODE_MISSING_FIELD = 6
    DECODE_UNKNOWN_EVENT = 7
    DECODE_TOO_DEEP = 8
    DECODE_TOO_LARGE = 9
    DECODE_NO_MEMORY = 10


cdef enum ItemKind:
    ITEM_NIL
    ITEM_BOOL
    ITEM_INT
    ITEM_HUGE                # an integer beyond 64 bits
    ITEM_FLOAT
    ITEM_TEXT                # string, or msgpack bin
    ITEM_ARRAY
    ITEM_MAP
    ITEM_OTHER               # msgpack ext
    ITEM_POSITION            # as a key: the field's index in a struct that is written as an array


cdef struct ByteReader:
    const uint8_t* at        # next byte
    const uint8_t* end       # behind the last byte
    bint json                # else msgpack


cdef struct Item:
    uint64_t value           # int: two's complement; text: bytes; msgpack array, map: items
    uint64_t position        # array, map: items begun so far
    const uint8_t* text      # text: its first byte, inside the message
    uint8_t kind             # ItemKind
    bint negative            # int: below zero
    bint escaped             # JSON text with backslashes: not comparable byte by byte


cdef inline size_t remaining(const ByteReader* reader) noexcept nogil:
    """Bytes that are not read yet."""
    return <size_t>(reader.end - reader.at)


cdef inline int as_hash(const Item* item, uint64_t* out) noexcept nogil:
    """A 64-bit hash; engines write it signed or unsigned."""
    if item.kind != ITEM_INT:
        return DECODE_OUT_OF_RANGE if item.kind == ITEM_HUGE else DECODE_WRONG_TYPE
    out[0] = item.value
    return DECODE_OK


cdef inline int as_uint(const Item* item, uint64_t limit, uint64_t* out) noexcept nogil:
    """A number from 0 to limit."""
    cdef int code = as_hash(item, out)
    if code == DECODE_OK and (item.negative or item.value > limit):
        return DECODE_OUT_OF_RANGE
    return code
