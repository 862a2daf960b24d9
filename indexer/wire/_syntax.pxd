"""msgpack and JSON as one: what the grammar of events reads through. A struct may be written as a
map, or as an array of its fields in order.
"""
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, strlen

from ._json_reader cimport escaped_is, json_key, json_next, json_skip, json_space, json_value
from ._msgpack_reader cimport msgpack_skip, msgpack_value
from ._reader cimport (
    DECODE_END, DECODE_OK, DECODE_TRAILING, DECODE_WRONG_TYPE, ITEM_ARRAY, ITEM_MAP, ITEM_OTHER,
    ITEM_POSITION, ITEM_TEXT, Item, ByteReader, as_hash, as_uint,
)


cdef inline int read_value(ByteReader* reader, Item* item) noexcept nogil:
    return json_value(reader, item) if reader.json else msgpack_value(reader, item)


cdef inline int skip_value(ByteReader* reader) noexcept nogil:
    return json_skip(reader) if reader.json else msgpack_skip(reader)


cdef inline int next_element(ByteReader* reader, Item* container) noexcept nogil:
    """Go to the container's next item; DECODE_END behind the last."""
    if reader.json:
        return json_next(reader, container)
    if container.position == container.value:
        return DECODE_END
    container.position += 1
    return DECODE_OK


cdef inline int next_field(ByteReader* reader, Item* container, Item* key) noexcept nogil:
    """Read the key of the struct's next field: its name, or in an array its position."""
    cdef int code = next_element(reader, container)
    if code != DECODE_OK:
        return code
    if container.kind == ITEM_ARRAY:
        key.kind = ITEM_POSITION
        key.value = container.position - 1
        return DECODE_OK
    if reader.json:
        return json_key(reader, key)
    cdef const uint8_t* start = reader.at
    code = msgpack_value(reader, key)
    if code == DECODE_OK and (key.kind == ITEM_ARRAY or key.kind == ITEM_MAP):
        key.kind = ITEM_OTHER  # odd, and surely no field of ours
        reader.at = start
        code = msgpack_skip(reader)
    return code


cdef inline bint another_element(ByteReader* reader, Item* container, int* code) noexcept nogil:
    """Go to the container's next item, as long as *code is DECODE_OK. False behind the last one,
    with DECODE_OK, and after an error."""
    if code[0] == DECODE_OK:
        code[0] = next_element(reader, container)
        if code[0] == DECODE_OK:
            return True
        if code[0] == DECODE_END:
            code[0] = DECODE_OK
    return False


cdef inline bint another_field(
    ByteReader* reader, Item* container, Item* key, int* code
) noexcept nogil:
    """As another_element, for a struct: the key of the field is read."""
    if code[0] == DECODE_OK:
        code[0] = next_field(reader, container, key)
        if code[0] == DECODE_OK:
            return True
        if code[0] == DECODE_END:
            code[0] = DECODE_OK
    return False


cdef inline bint text_is(const Item* item, const char* name) noexcept nogil:
    if item.escaped:
        return escaped_is(item, name, strlen(name))
    return item.value == strlen(name) and memcmp(item.text, name, item.value) == 0


cdef inline bint field_is(const Item* key, const char* name, uint64_t position) noexcept nogil:
    """Whether this is the field of that name, or of that position where a struct is an array."""
    if key.kind == ITEM_TEXT:
        return text_is(key, name)
    return key.kind == ITEM_POSITION and key.value == position


cdef inline int read_hash(ByteReader* reader, uint64_t* out) noexcept nogil:
    cdef Item item
    cdef int code = read_value(reader, &item)
    return as_hash(&item, out) if code == DECODE_OK else code


cdef inline int read_uint(ByteReader* reader, uint64_t limit, uint64_t* out) noexcept nogil:
    cdef Item item
    cdef int code = read_value(reader, &item)
    return as_uint(&item, limit, out) if code == DECODE_OK else code


cdef inline int open_struct(ByteReader* reader, Item* item) noexcept nogil:
    cdef int code = read_value(reader, item)
    if code == DECODE_OK and item.kind != ITEM_MAP and item.kind != ITEM_ARRAY:
        return DECODE_WRONG_TYPE
    return code


cdef inline int open_array(ByteReader* reader, Item* item) noexcept nogil:
    cdef int code = read_value(reader, item)
    if code == DECODE_OK and item.kind != ITEM_ARRAY:
        return DECODE_WRONG_TYPE
    return code


cdef inline int at_end(ByteReader* reader) noexcept nogil:
    if reader.json:
        json_space(reader)
    return DECODE_OK if reader.at == reader.end else DECODE_TRAILING


cdef inline bint looks_like_json(const ByteReader* reader) noexcept nogil:
    """An object or array of JSON begins. The same bytes are ints in msgpack, which begin no message."""
    cdef ByteReader ahead = reader[0]
    json_space(&ahead)
    return ahead.at < ahead.end and ahead.at[0] in b"{["
