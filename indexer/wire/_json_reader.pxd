# _json_reader.pxd: items out of JSON, the form of the seed generation's events.
from libc.stdint cimport uint8_t, uint64_t

from ._digits cimport read_digits
from ._reader cimport (
    DECODE_END, DECODE_MALFORMED, DECODE_OK, DECODE_TOO_DEEP, DECODE_TRUNCATED, ITEM_ARRAY,
    ITEM_BOOL, ITEM_FLOAT, ITEM_HUGE, ITEM_INT, ITEM_MAP, ITEM_NIL, ITEM_TEXT, Item, Reader,
    remaining,
)
from libc.string cimport memcmp

cdef enum:
    JSON_MAX_DEPTH = 128     # of values that are passed over; those we read nest to 6


cdef inline void json_space(Reader* reader) noexcept nogil:
    while reader.at < reader.end and reader.at[0] in b" \n\r\t":
        reader.at += 1


cdef inline int json_char(Reader* reader, uint8_t wanted) noexcept nogil:
    """Space, then this character."""
    json_space(reader)
    if reader.at == reader.end:
        return DECODE_TRUNCATED
    if reader.at[0] != wanted:
        return DECODE_MALFORMED
    reader.at += 1
    return DECODE_OK


cdef inline int hex_digit(uint8_t char) noexcept nogil:
    if c'0' <= char <= c'9':
        return char - c'0'
    if c'a' <= (char | 0x20) <= c'f':
        return (char | 0x20) - c'a' + 10
    return -1


cdef inline int json_text(Reader* reader, Item* item) noexcept nogil:
    """The rest of a string, after its opening quote. UTF-8 is not checked: no text is kept."""
    cdef int i
    item.kind = ITEM_TEXT
    item.escaped = False
    item.text = reader.at
    while reader.at < reader.end:
        if reader.at[0] == c'"':
            item.value = reader.at - item.text
            reader.at += 1
            return DECODE_OK
        if reader.at[0] < 0x20:
            return DECODE_MALFORMED
        if reader.at[0] == c'\\':
            item.escaped = True
            reader.at += 1
            if reader.at == reader.end:
                return DECODE_TRUNCATED
            if reader.at[0] == c'u':
                if remaining(reader) < 5:
                    return DECODE_TRUNCATED
                for i in range(1, 5):
                    if hex_digit(reader.at[i]) < 0:
                        return DECODE_MALFORMED
                reader.at += 4
            elif reader.at[0] not in b'"\\/bfnrt':
                return DECODE_MALFORMED
        reader.at += 1
    return DECODE_TRUNCATED


cdef inline bint escaped_is(const Item* item, const char* name, size_t size) noexcept nogil:
    """Whether a checked text with escapes spells this ASCII name, which needs none."""
    cdef const uint8_t* at = item.text
    cdef const uint8_t* end = item.text + item.value
    cdef uint64_t code
    cdef size_t i
    for i in range(size):
        if at == end:
            return False
        code = at[0]
        at += 1
        if code == c'\\':
            if at[0] != c'u':  # all the short escapes stand for characters that no name has
                return False
            code = (
                hex_digit(at[1]) << 12 | hex_digit(at[2]) << 8
                | hex_digit(at[3]) << 4 | hex_digit(at[4])
            )
            at += 5
        if code != <uint8_t>name[i]:
            return False
    return at == end


cdef inline bint at_digit(const Reader* reader) noexcept nogil:
    return reader.at < reader.end and c'0' <= reader.at[0] <= c'9'


cdef inline int json_number(Reader* reader, Item* item) noexcept nogil:
    cdef bint minus = reader.at[0] == c'-'
    cdef uint64_t value = 0
    cdef bint huge
    item.kind = ITEM_INT
    if minus:
        reader.at += 1
    if not at_digit(reader):
        return DECODE_TRUNCATED if reader.at == reader.end else DECODE_MALFORMED
    if reader.at[0] == c'0':
        reader.at += 1
        if at_digit(reader):
            return DECODE_MALFORMED
    reader.at = read_digits(reader.at, reader.end, &value, &huge)
    if huge:
        item.kind = ITEM_HUGE
    if reader.at < reader.end and reader.at[0] in b".eE":
        return json_fraction(reader, item)
    if minus and value > <uint64_t>1 << 63:
        item.kind = ITEM_HUGE
    item.negative = minus and value != 0
    item.value = 0 - value if minus else value
    return DECODE_OK


cdef inline int json_fraction(Reader* reader, Item* item) noexcept nogil:
    """The rest of a number that is no integer: only its form matters."""
    cdef bint point = reader.at[0] == c'.'
    item.kind = ITEM_FLOAT
    reader.at += 1
    if not point and reader.at < reader.end and reader.at[0] in b"+-":
        reader.at += 1
    if not at_digit(reader):
        return DECODE_TRUNCATED if reader.at == reader.end else DECODE_MALFORMED
    while at_digit(reader):
        reader.at += 1
    if point and reader.at < reader.end and reader.at[0] in b"eE":
        return json_fraction(reader, item)
    return DECODE_OK


cdef inline int json_word(Reader* reader, const char* word, size_t size) noexcept nogil:
    if remaining(reader) < size:
        return DECODE_TRUNCATED
    if memcmp(reader.at, word, size) != 0:
        return DECODE_MALFORMED
    reader.at += size
    return DECODE_OK


cdef inline int json_value(Reader* reader, Item* item) noexcept nogil:
    """The next value; of an array or an object only its opening bracket."""
    json_space(reader)
    if reader.at == reader.end:
        return DECODE_TRUNCATED
    cdef uint8_t char = reader.at[0]
    item.negative = False
    item.escaped = False
    item.position = 0
    item.value = 0
    if char == c'"':
        reader.at += 1
        return json_text(reader, item)
    if char == c'{' or char == c'[':
        reader.at += 1
        item.kind = ITEM_MAP if char == c'{' else ITEM_ARRAY
        return DECODE_OK
    if char == c'n':
        item.kind = ITEM_NIL
        return json_word(reader, "null", 4)
    item.kind = ITEM_BOOL
    if char == c't':
        return json_word(reader, "true", 4)
    if char == c'f':
        return json_word(reader, "false", 5)
    if char == c'-' or c'0' <= char <= c'9':
        return json_number(reader, item)
    return DECODE_MALFORMED


cdef inline int json_next(Reader* reader, Item* container) noexcept nogil:
    """Go to the container's next item, or past its closing bracket: DECODE_END."""
    json_space(reader)
    if reader.at == reader.end:
        return DECODE_TRUNCATED
    if reader.at[0] == (c'}' if container.kind == ITEM_MAP else c']'):
        reader.at += 1
        return DECODE_END
    cdef int code = DECODE_OK
    if container.position:
        code = json_char(reader, c',')
        json_space(reader)
        # A comma promises an item: json_value and json_key refuse a bracket here.
    container.position += 1
    return code


cdef inline int json_key(Reader* reader, Item* key) noexcept nogil:
    """The key of an object's item, up to its value."""
    cdef int code = json_char(reader, c'"')
    if code == DECODE_OK:
        code = json_text(reader, key)
    if code == DECODE_OK:
        code = json_char(reader, c':')
    return code


cdef inline int json_skip(Reader* reader) noexcept nogil:
    """Pass over one value with all it contains."""
    cdef Item[JSON_MAX_DEPTH] open
    cdef Item item
    cdef int depth = 0
    cdef int code
    while True:
        code = json_value(reader, &item)
        if code != DECODE_OK:
            return code
        if item.kind == ITEM_ARRAY or item.kind == ITEM_MAP:
            if depth == JSON_MAX_DEPTH:
                return DECODE_TOO_DEEP
            open[depth] = item
            depth += 1
        while True:  # to the next value, through what closes before it
            if depth == 0:
                return DECODE_OK
            code = json_next(reader, &open[depth - 1])
            if code == DECODE_END:
                depth -= 1
                continue
            if code == DECODE_OK and open[depth - 1].kind == ITEM_MAP:
                code = json_key(reader, &item)
            if code != DECODE_OK:
                return code
            break
