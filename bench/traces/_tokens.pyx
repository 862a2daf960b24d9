"""The tokens that a trace's hash ids stand for, natively. Its face is trace.py."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from ...base.native._mix cimport splitmix64


@cython.boundscheck(False)  # the lengths are compared first
@cython.wraparound(False)
def fill(
    uint32_t[::1] tokens, const uint64_t[::1] ids, uint64_t seed, uint64_t vocab_size,
    Py_ssize_t block_size,
):
    cdef Py_ssize_t n = tokens.shape[0], blocks, block, place, first, last
    cdef uint64_t key
    if block_size < 1:
        raise ValueError("block_size must be at least 1")
    blocks = (n + block_size - 1) // block_size
    if ids.shape[0] < blocks:
        raise ValueError(f"{ids.shape[0]} ids are too few for {n} tokens")
    seed = splitmix64(seed)
    with nogil:
        for block in range(blocks):
            # Mixed before the place is added: else neighbouring ids would share shifted runs.
            key = splitmix64(ids[block] ^ seed)
            first = block * block_size
            last = first + block_size if first + block_size < n else n
            for place in range(last - first):
                # The upper 32 bits, scaled: cheaper than a remainder, and as even.
                tokens[first + place] = <uint32_t>((splitmix64(key + place) >> 32) * vocab_size >> 32)


def mix_values(uint64_t[::1] values):
    cdef Py_ssize_t at
    with nogil:
        for at in range(values.shape[0]):
            values[at] = splitmix64(values[at])
