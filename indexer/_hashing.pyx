"""Block hashes over XXH3, defined in hashing.py."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t

import numpy as np
import xxhash._xxhash

from ._integers cimport UIntView, view_integers

cdef extern from "dlfcn.h":
    int RTLD_NOW
    void* dlopen(const char* path, int mode) nogil
    void* dlsym(void* handle, const char* name) nogil

ctypedef uint64_t (*xxh3_t)(const void* data, size_t size, uint64_t seed) noexcept nogil

# Below this many tokens a hash takes less than giving up the GIL may cost: who asks for it back
# can wait a whole switch interval.
cdef enum:
    NOGIL_TOKENS = 8192

cdef xxh3_t XXH3 = NULL


cdef int bind_xxh3() except -1:
    """Find XXH3 in the xxhash package's extension, and prove that it is XXH3."""
    global XXH3
    cdef bytes path = xxhash._xxhash.__file__.encode()
    cdef void* library = dlopen(path, RTLD_NOW)  # never closed: the pointer must stay good
    cdef void* found = NULL
    cdef bytes name
    # The first picks AVX2 or AVX-512 by the machine; wheels without it have the plain one.
    for name in (b"XXH3_64bits_withSeed_dispatch", b"XXH3_64bits_withSeed"):
        if library != NULL and found == NULL:
            found = dlsym(library, name)
    if found == NULL:
        raise ImportError(
            f"no XXH3_64bits_withSeed in {path.decode()}: dynamo-router takes its block hash "
            f"from the xxhash package (>= 3.5), and this build of it does not export the function"
        )
    XXH3 = <xxh3_t>found
    cdef uint32_t[64] tokens
    cdef uint32_t i
    for i in range(64):
        tokens[i] = i + 1
    # One short and one long input (they take different paths through XXH3).
    if hash_bytes(tokens, 16, BASE_SEED) != 14643705804678351452 or (
        hash_bytes(tokens, 256, BASE_SEED) != 17732852320395450624
    ):
        raise ImportError(f"XXH3_64bits_withSeed of {path.decode()} gives wrong hashes")
    return 0


cdef uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) noexcept nogil:
    return XXH3(data, size, seed)


cdef size_t count_blocks(size_t n_tokens, size_t block_size, bint eagle) noexcept nogil:
    if eagle:
        return (n_tokens - 1) // block_size if n_tokens else 0
    return n_tokens // block_size


cdef void hash_blocks(
    const uint32_t* tokens, size_t n_blocks, size_t window, size_t stride, uint64_t seed,
    uint64_t* out,
) noexcept nogil:
    cdef size_t i
    for i in range(n_blocks):
        out[i] = XXH3(tokens + i * stride, window * sizeof(uint32_t), seed)


cdef void hash_sequence(
    const uint64_t* local, size_t n, bint has_parent, uint64_t parent, uint64_t* out
) noexcept nogil:
    cdef uint64_t[2] link
    cdef size_t i
    link[0] = parent
    for i in range(n):
        link[1] = local[i]
        link[0] = XXH3(link, sizeof(link), BASE_SEED) if has_parent else local[i]
        has_parent = True
        out[i] = link[0]


cdef uint64_t local_seed(str lora_name, str cache_namespace) except? 0:
    cdef uint64_t seed = BASE_SEED
    cdef bytes text
    if lora_name:
        text = lora_name.encode()
        seed += XXH3(<const char*>text, len(text), 0)  # wraps by definition
    if cache_namespace:
        text = cache_namespace.encode()
        seed += XXH3(<const char*>text, len(text), 1)
    return seed


cdef list mm_hashes(object info):
    """The sorted multimodal hashes of one block's info, as ints in range."""
    try:
        found = sorted(int(each["mm_hash"]) for each in info["mm_objects"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            "block_mm_infos: expected None or {'mm_objects': [{'mm_hash': int, ...}, ...]} "
            "for each block"
        ) from error
    if found and (found[0] < 0 or found[-1] >> 64):
        raise OverflowError("block_mm_infos: an mm_hash is out of range (0 to 2**64 - 1)")
    return found


def packed_hashes(tokens, Py_ssize_t kv_block_size, cache_namespace=None, parent=None):
    if kv_block_size < 1:
        raise ValueError(f"kv_block_size must be at least 1, not {kv_block_size}")
    cdef uint64_t seed = BASE_SEED if cache_namespace is None else local_seed(None, cache_namespace)
    cdef bint goes_on = parent is not None
    cdef uint64_t before = parent if goes_on else 0
    cdef UIntView view = view_integers(tokens, 4, "token id")
    cdef const uint32_t* data = <const uint32_t*>view.data
    cdef size_t n_blocks = view.size // <size_t>kv_block_size
    cdef bytes local = PyBytes_FromStringAndSize(NULL, n_blocks * sizeof(uint64_t))
    cdef bytes sequence = PyBytes_FromStringAndSize(NULL, n_blocks * sizeof(uint64_t))
    cdef uint64_t* first = <uint64_t*><char*>local
    cdef uint64_t* then = <uint64_t*><char*>sequence
    if view.size < NOGIL_TOKENS:
        hash_blocks(data, n_blocks, kv_block_size, kv_block_size, seed, first)
        hash_sequence(first, n_blocks, goes_on, before, then)
    else:
        with nogil:
            hash_blocks(data, n_blocks, kv_block_size, kv_block_size, seed, first)
            hash_sequence(first, n_blocks, goes_on, before, then)
    return local, sequence


def block_hashes(
    tokens, kv_block_size, block_mm_infos=None, lora_name=None, is_eagle=None, cache_namespace=None
):
    cdef Py_ssize_t block_size = kv_block_size
    if block_size == 0:
        raise ValueError("kv_block_size cannot be 0")
    if block_size < 0:
        raise ValueError(f"kv_block_size cannot be negative ({block_size})")
    cdef bint eagle = bool(is_eagle)
    cdef uint64_t seed = local_seed(lora_name, cache_namespace)
    cdef UIntView view = view_integers(tokens, 4, "token id")
    cdef const uint32_t* data = <const uint32_t*>view.data
    cdef size_t n_blocks = count_blocks(view.size, block_size, eagle)
    cdef size_t window = block_size + eagle
    cdef object hashes = np.empty(n_blocks, np.uint64)
    cdef Py_buffer buffer
    PyObject_GetBuffer(hashes, &buffer, PyBUF_WRITABLE)
    cdef uint64_t* out = <uint64_t*>buffer.buf
    cdef size_t i
    cdef bytes block
    try:
        if view.size < NOGIL_TOKENS:
            hash_blocks(data, n_blocks, window, block_size, seed, out)
        else:
            with nogil:
                hash_blocks(data, n_blocks, window, block_size, seed, out)
        if block_mm_infos is not None:
            # Few blocks have images: these alone are hashed again, with what they carry.
            for i in range(min(n_blocks, <size_t>len(block_mm_infos))):
                if block_mm_infos[i] is not None and (extra := mm_hashes(block_mm_infos[i])):
                    block = PyBytes_FromStringAndSize(
                        <const char*>(data + i * block_size), window * sizeof(uint32_t)
                    ) + np.array(extra, np.uint64).tobytes()
                    out[i] = XXH3(<const char*>block, len(block), seed)
    finally:
        PyBuffer_Release(&buffer)
    return hashes


def sequence_hashes(local_hashes, parent=None):
    cdef UIntView view = view_integers(local_hashes, 8, "block hash")
    cdef bint has_parent = parent is not None
    cdef uint64_t start = parent if has_parent else 0
    cdef object hashes = np.empty(view.size, np.uint64)
    cdef Py_buffer buffer
    PyObject_GetBuffer(hashes, &buffer, PyBUF_WRITABLE)
    hash_sequence(
        <const uint64_t*>view.data, view.size, has_parent, start, <uint64_t*>buffer.buf
    )
    PyBuffer_Release(&buffer)
    return hashes


bind_xxh3()
