"""Items out of JSON, and decimal numbers, eight digits a step."""
from libc.stdint cimport UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ._reader cimport (
    DECODE_END, DECODE_MALFORMED, DECODE_OK, DECODE_TOO_DEEP, DECODE_TRUNCATED, ITEM_ARRAY,
    ITEM_BOOL, ITEM_FLOAT, ITEM_HUGE, ITEM_INT, ITEM_MAP, ITEM_NIL, ITEM_TEXT, Item, ByteReader,
    remaining,
)

cdef enum:
    JSON_MAX_DEPTH = 128     # of values that are passed over; those we read nest to 6


cdef inline bint eight_digits(const uint8_t* at, uint64_t* value) noexcept nogil:
    """The number that eight bytes spell; false if one of them is no digit.

    As a little-endian word, the first digit in the lowest byte: neighbours are joined to two, four
    and eight digits, each by one multiplication.
    """
    cdef uint64_t word, upper
    memcpy(&word, at, 8)
    # A digit is 0x30 to 0x39: its upper half is 3, and still is after adding 6.
    upper = word & 0xF0F0F0F0F0F0F0F0ULL
    upper |= ((word + 0x0606060606060606ULL) & 0xF0F0F0F0F0F0F0F0ULL) >> 4
    if upper != 0x3333333333333333ULL:
        return False
    word -= 0x3030303030303030ULL
    word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FFULL
    word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFFULL
    value[0] = <uint32_t>(word * 10000 + (word >> 32))
    return True


cdef inline const uint8_t* read_digits(
    const uint8_t* at, const uint8_t* end, uint64_t* value, bint* huge
) noexcept nogil:
    """Read all digits that stand here; returns where they end. `huge`: more than 64 bits."""
    cdef uint64_t number = 0, eight
    cdef uint8_t digit
    cdef int step
    huge[0] = False
    for step in range(2):  # sixteen digits always fit
        if end - at < 8 or not eight_digits(at, &eight):
            break
        number = number * 100000000 + eight
        at += 8
    while at < end and c'0' <= at[0] <= c'9':
        digit = at[0] - c'0'
        if number > UINT64_MAX // 10 or number * 10 > UINT64_MAX - digit:
            huge[0] = True
        number = number * 10 + digit
        at += 1
    value[0] = number
    return at


cdef inline void json_space(ByteReader* reader) noexcept nogil:
    while reader.at < reader.end and reader.at[0] in b" \n\r\t":
        reader.at += 1


cdef inline int json_char(ByteReader* reader, uint8_t wanted) noexcept nogil:
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


cdef inline int json_text(ByteReader* reader, Item* item) noexcept nogil:
    """The rest of a string, after its opening quote. UTF-8 is not checked: no text is kept."""
    cdef int i
    item.kind = ITEM_TEXT
    item.escaped = False
    item.text = reader.at
    while reader.at < reader.end:
        if reader.at[0] == c'"':
            item.value = <uint64_t>(reader.at - item.text)
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


cdef inline bint at_digit(const ByteReader* reader) noexcept nogil:
    return reader.at < reader.end and c'0' <= reader.at[0] <= c'9'


cdef inline int json_number(ByteReader* reader, Item* item) noexcept nogil:
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


cdef inline int json_fraction(ByteReader* reader, Item* item) noexcept nogil:
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


cdef inline int json_word(ByteReader* reader, const char* word, size_t size) noexcept nogil:
    if remaining(reader) < size:
        return DECODE_TRUNCATED
    if memcmp(reader.at, word, size) != 0:
        return DECODE_MALFORMED
    reader.at += size
    return DECODE_OK


cdef inline int json_value(ByteReader* reader, Item* item) noexcept nogil:
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


cdef inline int json_next(ByteReader* reader, Item* container) noexcept nogil:
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


cdef inline int json_key(ByteReader* reader, Item* key) noexcept nogil:
    """The key of an object's item, up to its value."""
    cdef int code = json_char(reader, c'"')
    if code == DECODE_OK:
        code = json_text(reader, key)
    if code == DECODE_OK:
        code = json_char(reader, c':')
    return code


cdef inline int json_skip(ByteReader* reader) noexcept nogil:
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
