"""Kernel: SipHash-2-4 of block hashes, written as JSON numbers, and of names.

As Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), define it: c = 2 rounds a word,
d = 4 at the end, little-endian words, the length in the last byte.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

cdef enum:
    KEY_BYTES = 16
    DIGITS = 20      # of the longest uint64_t
    SHIFT = 11       # 53 bits are left: what every reader of JSON holds exactly

cdef struct Sip:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d

cdef struct Key:
    uint64_t low
    uint64_t high


cdef inline uint64_t rotated(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void mix(Sip* state, int rounds) noexcept nogil:
    cdef int i
    for i in range(rounds):
        state.a += state.b
        state.b = rotated(state.b, 13) ^ state.a
        state.a = rotated(state.a, 32)
        state.c += state.d
        state.d = rotated(state.d, 16) ^ state.c
        state.a += state.d
        state.d = rotated(state.d, 21) ^ state.a
        state.c += state.b
        state.b = rotated(state.b, 17) ^ state.c
        state.c = rotated(state.c, 32)


cdef inline void absorb(Sip* state, uint64_t word) noexcept nogil:
    state.d ^= word
    mix(state, 2)
    state.a ^= word


cdef inline void begin(Sip* state, Key key) noexcept nogil:
    state.a = key.low ^ 0x736F6D6570736575u
    state.b = key.high ^ 0x646F72616E646F6Du
    state.c = key.low ^ 0x6C7967656E657261u
    state.d = key.high ^ 0x7465646279746573u


cdef inline uint64_t finish(Sip* state) noexcept nogil:
    state.c ^= 0xFF
    mix(state, 4)
    return state.a ^ state.b ^ state.c ^ state.d


cdef uint64_t little_endian(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    """At most 8 bytes."""
    cdef uint64_t word = 0
    cdef Py_ssize_t i
    for i in range(n):
        word |= <uint64_t>data[i] << (8 * i)
    return word


cdef uint64_t siphash(const uint8_t* data, Py_ssize_t n, Key key) noexcept nogil:
    cdef Sip state
    cdef Py_ssize_t at = 0
    begin(&state, key)
    while at + 8 <= n:
        absorb(&state, little_endian(data + at, 8))
        at += 8
    absorb(&state, little_endian(data + at, n - at) | (<uint64_t>n & 0xFF) << 56)
    return finish(&state)


cdef inline uint64_t salted_word(uint64_t word, Key key) noexcept nogil:
    """Of its 8 bytes, cut to 53 bits."""
    cdef Sip state
    begin(&state, key)
    absorb(&state, word)
    absorb(&state, <uint64_t>8 << 56)
    return finish(&state) >> SHIFT


cdef char* write_number(char* out, uint64_t value) noexcept nogil:
    cdef char digits[DIGITS]
    cdef int n = 0
    while True:
        digits[n] = <char>(48 + value % 10)
        value //= 10
        n += 1
        if value == 0:
            break
    while n:
        n -= 1
        out[0] = digits[n]
        out += 1
    return out


cdef Key read_key(bytes key) except *:
    cdef Key found
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(key)
    if PyBytes_GET_SIZE(key) != KEY_BYTES:
        raise ValueError("a key has 16 bytes")
    found.low, found.high = little_endian(data, 8), little_endian(data + 8, 8)
    return found


def siphash_of(bytes data not None, bytes key not None):
    return siphash(
        <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), read_key(key)
    )


def json_of_salted(const uint64_t[::1] hashes not None, Py_ssize_t step, tail, bytes key not None):
    cdef Key salt = read_key(key)
    cdef Py_ssize_t n = hashes.shape[0], i
    cdef bint has_tail = tail is not None
    cdef uint64_t last = tail if has_tail else 0
    cdef char* out
    cdef char* at
    if step < 1:
        raise ValueError("a step is one block at least")
    out = <char*>malloc(<size_t>(2 + (n // step + 1) * (DIGITS + 1)))
    if out is NULL:
        raise MemoryError
    with nogil:
        at = out
        at[0] = b"["
        at += 1
        i = step - 1
        while i < n:
            at = write_number(at, salted_word(hashes[i], salt))
            at[0] = b","
            at += 1
            i += step
        if has_tail:
            at = write_number(at, salted_word(last, salt))
            at[0] = b","
            at += 1
        if at - out > 1:
            at -= 1  # the last comma
        at[0] = b"]"
        at += 1
    try:
        return PyBytes_FromStringAndSize(out, at - out)
    finally:
        free(out)
