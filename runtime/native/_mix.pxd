"""Mixing of 64-bit numbers: hashes of table keys, and numbers that look random."""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #define DR_GOLDEN 0x9E3779B97F4A7C15ULL
    """
    const uint64_t GOLDEN "DR_GOLDEN"  # 2**64 divided by the golden ratio, odd


cdef inline uint32_t hash_key(uint64_t key) noexcept nogil:
    """Spread any 64-bit key (engines may number their blocks) over 32 bits."""
    key ^= key >> 32
    key *= GOLDEN
    return <uint32_t>(key >> 32)


cdef inline uint32_t hash_pair(uint64_t key, uint32_t other) noexcept nogil:
    return hash_key(key + (<uint64_t>other + 1) * 0xD1B54A32D192ED03ULL)


cdef inline uint64_t splitmix64(uint64_t state) noexcept nogil:
    """What the generator of that name gives in a state; the next state is `state + GOLDEN`.

    A bijection under which neighbours look independent.
    """
    state += GOLDEN
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBULL
    return state ^ (state >> 31)
