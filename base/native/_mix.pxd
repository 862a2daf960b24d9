"""Mixing of 64-bit numbers: hashes of table keys, and numbers that look random."""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #define DR_GOLDEN 0x9E3779B97F4A7C15ULL
    #include <stdint.h>
    #include <stdio.h>
    #include <time.h>
    static inline uint64_t dr_random_number(void) {
        uint64_t number = 0;
        FILE *file = fopen("/dev/urandom", "rb");
        if (file == NULL || fread(&number, sizeof number, 1, file) != 1)
            number = ((uint64_t)clock() ^ (uint64_t)time(NULL) ^ (uint64_t)(uintptr_t)&number)
                     * DR_GOLDEN;
        if (file != NULL) fclose(file);
        return number;
    }
    """
    uint64_t random_number "dr_random_number" () nogil
    const uint64_t GOLDEN "DR_GOLDEN"  # 2**64 divided by the golden ratio, odd


cdef inline uint32_t hash_key(uint64_t multiplier, uint64_t key) noexcept nogil:
    """Spread any 64-bit key (engines may number their blocks) over 32 bits.

    The multiplier is odd. Without it, colliding keys cannot be predicted: the first product is
    a bijection that depends on it, the second one mixes what came of it.
    """
    key = (key ^ (key >> 32)) * multiplier
    key = (key ^ (key >> 32)) * GOLDEN
    return <uint32_t>(key >> 32)


cdef inline uint32_t hash_pair(uint64_t multiplier, uint64_t key, uint32_t other) noexcept nogil:
    """The same for a pair; the offset of the second number depends on the multiplier, too."""
    cdef uint64_t turned = (multiplier << 23) | (multiplier >> 41)
    return hash_key(multiplier, key + (<uint64_t>other + 1) * turned)


cdef inline uint64_t random_multiplier() noexcept nogil:
    """An unpredictable odd number."""
    return random_number() | 1


cdef inline uint64_t splitmix64(uint64_t state) noexcept nogil:
    """What the generator of that name gives in a state; the next state is `state + GOLDEN`.

    A bijection under which neighbours look independent.
    """
    state += GOLDEN
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBULL
    return state ^ (state >> 31)
