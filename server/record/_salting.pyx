"""Kernel: SipHash-2-4 of block hashes, written as JSON numbers, and of names.

As Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), define it: c = 2 rounds a word,
d = 4 at the end, little-endian words, the length in the last byte.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef enum:
    KEY_BYTES = 16
    LONG = 1024      # hashes that are written without the interpreter
    SHIFT = 11       # 53 bits are left: what every reader of JSON holds exactly

cdef char[200] PAIRS  # "00" to "99"
for _pair in range(100):
    PAIRS[2 * _pair], PAIRS[2 * _pair + 1] = 48 + _pair // 10, 48 + _pair % 10

cdef struct Sip:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


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
    """Two digits to a division."""
    cdef char digits[DIGITS]
    cdef int n = DIGITS
    cdef uint64_t rest
    while value >= 100:
        rest = value // 100
        n -= 2
        memcpy(&digits[n], &PAIRS[2 * (value - 100 * rest)], 2)
        value = rest
    if value >= 10:
        n -= 2
        memcpy(&digits[n], &PAIRS[2 * value], 2)
    else:
        n -= 1
        digits[n] = <char>(48 + value)
    memcpy(out, &digits[n], DIGITS - n)
    return out + DIGITS - n


cdef Key read_key(bytes key) except *:
    cdef Key found
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(key)
    if PyBytes_GET_SIZE(key) != KEY_BYTES:
        raise ValueError("a key has 16 bytes")
    found.low, found.high = little_endian(data, 8), little_endian(data + 8, 8)
    return found


cdef uint64_t siphash_bytes(bytes data, Key key) noexcept:
    return siphash(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), key)


def siphash_of(bytes data not None, bytes key not None):
    return siphash_bytes(data, read_key(key))


cdef char* write_salted(
    char* at, const uint64_t* hashes, Py_ssize_t n, Py_ssize_t step, Key salt
) noexcept nogil:
    """Every `step`-th hash, each with a comma behind it; where that ends."""
    cdef Py_ssize_t i = step - 1
    while i < n:
        at = write_number(at, salted_word(hashes[i], salt))
        at[0] = b","
        at += 1
        i += step
    return at


cdef Py_ssize_t salted_bytes(Py_ssize_t n, Py_ssize_t step) noexcept nogil:
    return 2 + (n // step + 1) * (DIGITS + 1)


cdef char* write_array(
    char* out, const uint64_t* hashes, Py_ssize_t n, Py_ssize_t step, const uint64_t* tail, Key salt
) noexcept:
    cdef char* at
    out[0] = b"["
    if n // step > LONG:  # else others would take longer to take the lock than this takes
        with nogil:
            at = write_salted(out + 1, hashes, n, step, salt)
    else:
        at = write_salted(out + 1, hashes, n, step, salt)
    if tail != NULL:
        at = write_number(at, salted_word(tail[0], salt))
        at[0] = b","
        at += 1
    if at - out > 1:
        at -= 1  # the last comma
    at[0] = b"]"
    return at + 1


def json_of_salted(const uint64_t[::1] hashes not None, Py_ssize_t step, tail, bytes key not None):
    cdef Key salt = read_key(key)
    cdef Py_ssize_t n = hashes.shape[0]
    cdef uint64_t last = 0 if tail is None else tail
    cdef char* out
    cdef char* end
    if step < 1:
        raise ValueError("a step is one block at least")
    out = <char*>malloc(<size_t>salted_bytes(n, step))
    if out is NULL:
        raise MemoryError
    try:
        end = write_array(
            out, &hashes[0] if n else NULL, n, step, NULL if tail is None else &last, salt
        )
        return PyBytes_FromStringAndSize(out, end - out)
    finally:
        free(out)
