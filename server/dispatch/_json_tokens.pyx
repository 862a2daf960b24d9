"""Kernel: takes the token ids out of a JSON object, so that a long prompt never is a list of Python
ints. What else the object has is left as it is, unchecked, for a decoder.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

import numpy as np

cdef enum:
    MOST = 0xFFFFFFFF  # largest token id

cdef enum Found:
    ABSENT     # there is no such key, or the bytes are no object
    TAKEN      # its list was found
    TWICE      # there are several
    NO_TOKENS  # its value is no list

_NO_TOKENS = "it is no list of token ids, or one is out of range: 0 to 4294967295"


cdef struct TokenList:
    const uint8_t* begin  # its opening bracket
    const uint8_t* end    # one past the closing one
    uint64_t count        # as many as its commas say


cdef inline const uint8_t* skip_space(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end and at[0] in (32, 9, 10, 13):
        at += 1
    return at


cdef inline const uint8_t* skip_string(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """One past the closing quote of the string that begins here: the first one that no backslash
    escapes, which an even number of them before it does not."""
    cdef const uint8_t* begin = at + 1
    cdef const uint8_t* before
    at = begin
    while at < end:
        at = <const uint8_t*>memchr(at, 34, end - at)
        if at == NULL:
            return end
        before = at
        while before > begin and before[-1] == 92:
            before -= 1
        at += 1
        if (at - 1 - before) % 2 == 0:
            return at
    return end


cdef const uint8_t* skip_brackets(
    const uint8_t* at, const uint8_t* end, uint64_t* steps
) noexcept nogil:
    """One past the closing bracket of the list or object that begins here; NULL if that takes more
    steps, or there is none. A step is a byte, or a string however long."""
    cdef int64_t depth = 0
    while at < end and steps[0]:
        steps[0] -= 1
        if at[0] == 34:
            at = skip_string(at, end)
            continue
        if at[0] in (91, 123):  # [ {
            depth += 1
        elif at[0] in (93, 125):  # ] }
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return NULL


cdef const uint8_t* skip_value(
    const uint8_t* at, const uint8_t* end, uint64_t* steps
) noexcept nogil:
    """The comma or bracket behind the value that begins here; the end if that takes more steps, or
    there is none."""
    while at < end and at[0] not in (44, 93, 125):  # , ] }
        if not steps[0]:
            return end
        if at[0] in (91, 123):  # [ {
            at = skip_brackets(at, end, steps)
            if at == NULL:
                return end
        else:
            steps[0] -= 1
            at = skip_string(at, end) if at[0] == 34 else at + 1
    return at


cdef bint find_list(TokenList* list, const uint8_t* end) noexcept nogil:
    """Find the end of a list of numbers, and count them; false if it is no list, or is cut short.
    What stands between the commas is for `read_numbers` to check."""
    cdef const uint8_t* at = list.begin
    cdef uint64_t commas = 0
    if at >= end or at[0] != 91:
        return False
    list.end = <const uint8_t*>memchr(at, 93, end - at)
    if list.end == NULL:
        return False
    while at < list.end:
        commas += at[0] == 44
        at += 1
    list.count = 0 if skip_space(list.begin + 1, list.end) == list.end else commas + 1
    list.end += 1
    return True


cdef bint read_numbers(const TokenList* list, uint32_t* out) noexcept nogil:
    """Write the numbers of a list that was found; false if it has something else."""
    cdef const uint8_t* at = list.begin + 1
    cdef const uint8_t* end = list.end - 1
    cdef const uint8_t* digits
    cdef uint64_t value
    cdef uint64_t place
    cdef unsigned int digit
    for place in range(list.count):
        while at < end and at[0] in (32, 9, 10, 13):
            at += 1
        digits = at
        value = 0
        while at < end:
            digit = <unsigned int>at[0] - 48
            if digit > 9 or value > MOST:
                break
            value = 10 * value + digit
            at += 1
        if at == digits or value > MOST or (digits[0] == 48 and at > digits + 1):
            return False
        out[place] = <uint32_t>value
        if at < end and at[0] != 44:
            at = skip_space(at, end)
        if at >= end:
            return place + 1 == list.count
        if at[0] != 44:
            return False
        at += 1
    return at >= end


cdef Found find_tokens(
    const uint8_t* at, const uint8_t* end, const uint8_t* key, size_t size, TokenList* list
) noexcept nogil:
    """Find and count the numbers under a key of the object."""
    cdef Found found = ABSENT
    cdef const uint8_t* name
    cdef uint64_t steps = end - at  # enough: one for each byte
    cdef bint wanted
    at = skip_space(at, end)
    if at >= end or at[0] != 123:
        return ABSENT
    at = skip_space(at + 1, end)
    while at < end and at[0] == 34:
        name = at + 1
        at = skip_string(at, end)
        wanted = <size_t>(at - name) == size + 1 and memcmp(name, key, size) == 0
        at = skip_space(at, end)
        if at >= end or at[0] != 58:  # a colon
            return found
        at = skip_space(at + 1, end)
        if wanted:
            if found == TAKEN:
                return TWICE
            list.begin = at
            if not find_list(list, end):
                return NO_TOKENS
            found, at = TAKEN, list.end
        at = skip_value(at, end, &steps)
        if at >= end or at[0] != 44:
            return found
        at = skip_space(at + 1, end)
    return found


cdef struct Block:
    Py_ssize_t marks  # of these, how many cuts there were before it
    int types         # keys "type" whose value names a kind of block that may have a mark
    bint odd          # it has something else that its marks may depend on


cdef inline const uint8_t* skip_word(
    const uint8_t* at, const uint8_t* end, const char* word, size_t size
) noexcept nogil:
    """What is behind this word and white space; NULL: it does not stand here."""
    if at == NULL or <size_t>(end - at) < size or memcmp(at, word, size) != 0:
        return NULL
    return skip_space(at + size, end)


cdef const uint8_t* skip_mark(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """One past the value of a mark that begins here; NULL: it is not one of those that are known to
    be right: {"type": "ephemeral"}, and behind that a "ttl" of "5m" or "1h"."""
    cdef const uint8_t* other
    at = skip_word(at, end, b"{", 1)
    at = skip_word(at, end, b'"type"', 6)
    at = skip_word(at, end, b":", 1)
    at = skip_word(at, end, b'"ephemeral"', 11)
    if at == NULL or at >= end:
        return NULL
    if at[0] == 44:
        at = skip_word(at, end, b",", 1)
        at = skip_word(at, end, b'"ttl"', 5)
        at = skip_word(at, end, b":", 1)
        other = skip_word(at, end, b'"5m"', 4)
        at = other if other != NULL else skip_word(at, end, b'"1h"', 4)
    if at == NULL or at >= end or at[0] != 125:
        return NULL
    return at + 1


cdef const uint8_t* skip_item(
    const uint8_t* begin, const uint8_t* at, const uint8_t* end, uint64_t* steps, list cuts
):
    """As `skip_brackets`, of an object; note where its blocks have marks: with the comma before
    them. A block is an object in a list that is a value of the object.

    A mark counts as one only where a block without it is as good as with it, and is the same
    but for it: it is of a kind that may have one, named once, and all marks in it are right.
    """
    cdef int64_t depth = 0
    cdef uint8_t kind = 0  # the bracket at depth 2
    cdef bint is_block = False
    cdef bint is_key = False  # a string would be a key of the block
    cdef const uint8_t* comma = NULL  # before this key
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef const uint8_t* behind
    cdef Block block
    block.marks, block.types, block.odd = 0, 0, False
    while at < end and steps[0]:
        steps[0] -= 1
        if at[0] == 34:
            name = at
            at = skip_string(at, end)
            if not (is_block and depth == 3 and is_key):
                continue
            is_key = False
            if memchr(name, 92, at - name) != NULL:
                block.odd = True
                continue
            value = skip_word(skip_space(at, end), end, b":", 1)
            if at - name == 6 and memcmp(name, b'"type"', 6) == 0:
                if (
                    skip_word(value, end, b'"text"', 6) != NULL
                    or skip_word(value, end, b'"tool_use"', 10) != NULL
                    or skip_word(value, end, b'"tool_result"', 13) != NULL
                ):
                    block.types += 1
                else:
                    block.odd = True
            elif at - name == 15 and memcmp(name, b'"cache_control"', 15) == 0:
                behind = skip_mark(value, end) if value != NULL else NULL
                if comma == NULL or skip_space(comma + 1, end) != name or behind == NULL:
                    block.odd = True
                    continue
                value = skip_space(behind, end)
                if value >= end or value[0] not in (44, 125):
                    block.odd = True
                    continue
                cuts.append((comma - begin, behind - begin))
            continue
        if at[0] in (91, 123):  # [ {
            depth += 1
            if depth == 2:
                kind = at[0]
            elif depth == 3:
                is_block = is_key = kind == 91 and at[0] == 123
                comma = NULL
                block.marks, block.types, block.odd = len(cuts), 0, False
        elif at[0] in (93, 125):  # ] }
            if depth == 3 and (block.odd or block.types != 1):
                del cuts[block.marks :]
            depth -= 1
            if depth == 0:
                return at + 1
        elif at[0] == 44 and depth == 3:
            is_key, comma = is_block, at
        at += 1
    return NULL


def cut_items(
    bytes body not None, bytes key not None, Py_ssize_t most, uint64_t steps, bint unmarked
):
    """(The body with an empty list in place of its items; the body, where the first of them begins
    in it, and where each ends) of a JSON object with one list of objects under this key, without
    an escape. `unmarked`: in that second body they are without the marks of their blocks.

    None: that is not what it is, or there are more than `most` of them, or it takes more `steps` to
    say so (a byte, or a string however long, is one). What the objects and the rest of the body are
    is not looked at: that they are JSON is for a decoder to say.
    """
    cdef const uint8_t* begin = <const uint8_t*><const char*>body
    cdef const uint8_t* end = begin + len(body)
    cdef const uint8_t* at = skip_space(begin, end)
    cdef const uint8_t* name
    cdef const uint8_t* behind
    cdef const uint8_t* opening = NULL  # the list's brackets
    cdef const uint8_t* closing = NULL
    cdef const uint8_t* first = NULL
    cdef const char* wanted = key
    cdef Py_ssize_t size = len(key)
    cdef Py_ssize_t n_cuts = 0
    cdef Py_ssize_t left_out = 0  # bytes
    cdef list ends = []
    cdef list cuts = []
    if at >= end or at[0] != 123:
        return None
    at = skip_space(at + 1, end)
    while at < end and at[0] == 34:
        name = at + 1
        at = skip_string(at, end)
        if memchr(name, 92, at - name) != NULL:
            return None  # a key that is written in another way
        behind = at
        at = skip_space(at, end)
        if at >= end or at[0] != 58:  # a colon
            return None
        at = skip_space(at + 1, end)
        if behind - name != size + 1 or memcmp(name, wanted, size) != 0:
            at = skip_value(at, end, &steps)
        elif opening != NULL or at >= end or at[0] != 91:
            return None
        else:
            opening = at
            first = at = skip_space(at + 1, end)
            while True:
                if at >= end or at[0] != 123 or len(ends) >= most:
                    return None
                if unmarked:
                    at = skip_item(begin, at, end, &steps, cuts)
                    for cut in cuts[n_cuts:]:
                        left_out += cut[1] - cut[0]
                    n_cuts = len(cuts)
                else:
                    at = skip_brackets(at, end, &steps)
                if at == NULL:
                    return None
                ends.append(at - begin - left_out)
                at = skip_space(at, end)
                if at >= end or at[0] not in (44, 93):
                    return None
                if at[0] == 93:
                    break
                at = skip_space(at + 1, end)
            closing = at
            at = skip_space(at + 1, end)
        if at >= end or at[0] != 44:
            break
        at = skip_space(at + 1, end)
    if closing == NULL or at >= end or at[0] != 125:
        return None
    rest = body[: opening + 1 - begin] + body[closing - begin :]
    return rest, without(body, cuts), first - begin, ends


cdef bytes without(bytes body, list cuts):
    """The same without what is between these places."""
    if not cuts:
        return body
    kept = []
    place = 0
    for begin, end in cuts:
        kept.append(body[place:begin])
        place = end
    kept.append(body[place:])
    return b"".join(kept)


def count_parts(const uint8_t[::1] body not None):
    """(strings, lists and objects; commas between values) of a JSON text: what it costs a decoder,
    long strings aside. Of what is no JSON, some numbers. Works outside the GIL."""
    cdef uint64_t parts = 0
    cdef uint64_t commas = 0
    cdef const uint8_t* at = &body[0] if body.shape[0] else NULL
    cdef const uint8_t* end = at + body.shape[0]
    with nogil:
        while at < end:
            if at[0] == 34:
                parts += 1
                at = skip_string(at, end)
                continue
            parts += at[0] in (91, 123)  # [ {
            commas += at[0] == 44
            at += 1
    return parts, commas


def outline_of(const uint8_t[::1] body not None, Py_ssize_t longest):
    """A JSON text with empty strings in place of those of more than `longest` bytes. Works outside
    the GIL."""
    cdef const uint8_t* begin = &body[0] if body.shape[0] else NULL
    cdef const uint8_t* at = begin
    cdef const uint8_t* kept = begin  # what was not copied yet begins here
    cdef const uint8_t* end = begin + body.shape[0]
    cdef const uint8_t* quote
    parts = []
    while at < end:
        with nogil:
            while at < end:
                quote = at
                if at[0] != 34:
                    at += 1
                    continue
                at = skip_string(at, end)
                if at - quote - 2 > longest:
                    break
            else:
                quote = NULL
        if quote != NULL:
            parts.append(bytes(body[kept - begin : quote + 1 - begin]))
            kept = max(quote + 1, at - 1)  # its closing quote, if it has one
    parts.append(bytes(body[kept - begin : end - begin]))
    return b"".join(parts)


def cut_tokens(
    const uint8_t[::1] body not None,
    const uint8_t[::1] key not None,
    uint64_t max_tokens,
    uint64_t max_rest,
):
    """(token_ids, the object with an empty list in their place) of a JSON object.

    (None, the body) if it has no such key or is no object: for a decoder to say. ValueError if the
    key is there twice, or is no list of u32. OverflowError(limit, found) if there are more tokens,
    or more bytes of other things. Works outside the GIL.
    """
    cdef TokenList list
    cdef Found found = ABSENT
    cdef uint32_t[::1] view
    cdef bint read
    cdef uint64_t n_rest = body.shape[0]
    cdef const uint8_t* begin = &body[0] if body.shape[0] else NULL
    cdef const uint8_t* end = begin + body.shape[0]
    if body.shape[0]:
        with nogil:
            found = find_tokens(begin, end, &key[0], key.shape[0], &list)
    if found == TWICE:
        raise ValueError("it is there twice")
    if found == NO_TOKENS:
        raise ValueError(_NO_TOKENS)
    if found == TAKEN:
        if list.count > max_tokens:
            raise OverflowError("max_prompt_tokens", list.count)
        n_rest -= <uint64_t>(list.end - list.begin)
    if n_rest > max_rest:
        raise OverflowError("decoded_bytes", n_rest)
    if found == ABSENT:
        return None, bytes(body)
    tokens = np.empty(list.count, np.uint32)
    if list.count:
        view = tokens
        with nogil:
            read = read_numbers(&list, &view[0])
        if not read:
            raise ValueError(_NO_TOKENS)
    rest = bytes(body[: list.begin - begin]) + b"[]" + bytes(body[list.end - begin :])
    return tokens, rest
