"""Block and sequence hashes for other kernels. They are defined in hashing.py."""
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    BASE_SEED = 1337         # of local hashes without LoRA or salt, and of every sequence hash


# XXH3-64 of `size` bytes.
cdef uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) noexcept nogil

# Complete blocks in n_tokens; block_size > 0. With eagle a block sees one token more.
cdef size_t count_blocks(size_t n_tokens, size_t block_size, bint eagle) noexcept nogil

# Local hashes of n_blocks blocks: block i is the `window` tokens from token i * stride on.
cdef void hash_blocks(
    const uint32_t* tokens, size_t n_blocks, size_t window, size_t stride, uint64_t seed,
    uint64_t* out,
) noexcept nogil

# Sequence hashes of n local hashes, from the start or on from `parent`; out may be `local`.
cdef void hash_sequence(
    const uint64_t* local, size_t n, bint has_parent, uint64_t parent, uint64_t* out
) noexcept nogil

# The seed of local hashes for this LoRA adapter and cache salt (None or "": absent).
cdef uint64_t local_seed(str lora_name, str cache_namespace) except? 0
