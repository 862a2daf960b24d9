# _digits.pxd: decimal numbers, eight digits a step. For readers of text.
from libc.stdint cimport UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


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
