"""KV events into messages of the event plane, straight from hash arrays.

Field names and their order are those of Dynamo's own publishers, so that its subscribers read
ours; numbers take their shortest form.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, strlen

from ...base.native._memory cimport vector_reserve
from .._integers cimport UIntView, view_integers
from ._msgpack_reader cimport bswap16, bswap32, bswap64

from .events import TIERS

cdef enum:
    BLOCK_BYTES = 57         # most a block takes
    EVENT_BYTES = 192        # most the rest of an event takes


@cython.final
cdef class EventWriter:
    """The events of one message, written one by one; `message` ends it and starts the next."""

    def __cinit__(self):
        self.data = NULL
        self.size = self.capacity = 0
        self.events = self.blocks = 0

    def __dealloc__(self):
        free(self.data)

    cdef int reserve(self, size_t more) except -1:
        if not vector_reserve(&self.data, &self.capacity, self.size + more, 1):
            raise MemoryError()
        return 0

    cdef uint8_t* begin(
        self, uint64_t worker_id, uint64_t event_id, str tier, size_t n_blocks, const char* kind
    ) except NULL:
        """Reserve memory for the event, and write all that stands before what its kind carries."""
        if n_blocks > UINT32_MAX:
            raise ValueError(f"{n_blocks} blocks are too many for one event")
        if tier not in TIERS:
            raise ValueError(f"storage tier {tier!r} is none of {', '.join(TIERS)}")
        self.reserve(EVENT_BYTES + n_blocks * BLOCK_BYTES)
        cdef uint8_t* at = self.data + self.size
        at = put(at, b"\x84\xa9worker_id")
        at = put_uint(at, worker_id)
        at = put(at, b"\xacstorage_tier")
        at = put_text(at, tier.encode())
        at = put(at, b"\xb0residency_domain\xa6worker\xa5event\x83\xa8event_id")
        at = put_uint(at, event_id)
        at = put(at, b"\xa4data")
        return put(at, kind)

    cdef int end(self, uint8_t* at, uint32_t dp_rank, size_t n_blocks) except -1:
        at = put(at, b"\xa7dp_rank")
        at = put_uint(at, dp_rank)
        self.size = at - self.data
        self.events += 1
        self.blocks += <uint32_t>n_blocks
        return 0

    cdef int put_stored(
        self, uint64_t worker_id, uint32_t dp_rank, uint64_t event_id, bint has_parent,
        uint64_t parent, const uint64_t* external_hashes, const uint64_t* local_hashes,
        size_t n_blocks, str tier,
    ) except -1:
        cdef uint8_t* at = self.begin(
            worker_id, event_id, tier, n_blocks, b"\x81\xa6stored\x83\xabparent_hash"
        )
        at = put_uint(at, parent) if has_parent else put(at, b"\xc0")
        at = put(at, b"\xaestart_position\xc0\xa6blocks")
        at = put_array(at, n_blocks)
        at = put_blocks(at, external_hashes, local_hashes, n_blocks)
        return self.end(at, dp_rank, n_blocks)

    cdef int put_removed(
        self, uint64_t worker_id, uint32_t dp_rank, uint64_t event_id,
        const uint64_t* external_hashes, size_t n_blocks, str tier,
    ) except -1:
        cdef size_t i
        cdef uint8_t* at = self.begin(
            worker_id, event_id, tier, n_blocks, b"\x81\xa7removed\x81\xacblock_hashes"
        )
        at = put_array(at, n_blocks)
        for i in range(n_blocks):
            at = put_uint(at, external_hashes[i])
        return self.end(at, dp_rank, n_blocks)

    def stored(
        self, uint64_t worker_id, uint32_t dp_rank, uint64_t event_id, parent_hash,
        external_hashes, local_hashes, str tier="device",
    ):
        cdef UIntView blocks = view_integers(external_hashes, 8, "block hash")
        cdef UIntView locals_ = view_integers(local_hashes, 8, "tokens hash")
        if blocks.size != locals_.size:
            raise ValueError(f"{blocks.size} block hashes for {locals_.size} tokens hashes")
        cdef bint has_parent = parent_hash is not None
        cdef uint64_t parent = parent_hash if has_parent else 0
        self.put_stored(
            worker_id, dp_rank, event_id, has_parent, parent, <const uint64_t*>blocks.data,
            <const uint64_t*>locals_.data, blocks.size, tier,
        )

    def removed(
        self, uint64_t worker_id, uint32_t dp_rank, uint64_t event_id, external_hashes,
        str tier="device",
    ):
        cdef UIntView blocks = view_integers(external_hashes, 8, "block hash")
        self.put_removed(
            worker_id, dp_rank, event_id, <const uint64_t*>blocks.data, blocks.size, tier
        )

    def cleared(
        self, uint64_t worker_id, uint32_t dp_rank, uint64_t event_id, str tier="device"
    ):
        cdef uint8_t* at = self.begin(worker_id, event_id, tier, 0, b"\xa7cleared")
        self.end(at, dp_rank, 0)

    def message(
        self, uint64_t publisher_id, uint64_t sequence, uint64_t published_at_ms,
        str topic="kv-events",
    ):
        cdef uint8_t[8] count
        cdef size_t count_size = put_array(count, self.events) - count
        cdef size_t payload = count_size + self.size
        cdef bytes name = topic.encode()
        if payload > UINT32_MAX or len(name) > 255:
            raise ValueError(f"message of {payload} bytes is too long for msgpack")
        cdef bytes head = PyBytes_FromStringAndSize(NULL, 128 + len(name))
        cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(head)
        cdef uint8_t* at = put(start, b"\x85\xacpublisher_id")
        at = put_uint(at, publisher_id)
        at = put(at, b"\xa8sequence")
        at = put_uint(at, sequence)
        at = put(at, b"\xacpublished_at")
        at = put_uint(at, published_at_ms)
        at = put(at, b"\xa5topic")
        at = put_text(at, name)
        at = put(at, b"\xa7payload")
        at = put_bin(at, payload)
        memcpy(at, count, count_size)
        at += count_size
        cdef bytes message = PyBytes_FromStringAndSize(NULL, (at - start) + self.size)
        cdef char* out = PyBytes_AS_STRING(message)
        memcpy(out, start, at - start)
        if self.size:
            memcpy(out + (at - start), self.data, self.size)
        self.size = 0
        self.events = self.blocks = 0
        return message


cdef inline uint8_t* put(uint8_t* at, const char* encoded) noexcept nogil:
    """Bytes that are msgpack already, none of them zero."""
    cdef size_t size = strlen(encoded)
    memcpy(at, encoded, size)
    return at + size


cdef inline uint8_t* put_u16(uint8_t* at, uint8_t tag, uint64_t value) noexcept nogil:
    cdef uint16_t number = bswap16(<uint16_t>value)
    at[0] = tag
    memcpy(at + 1, &number, 2)
    return at + 3


cdef inline uint8_t* put_u32(uint8_t* at, uint8_t tag, uint64_t value) noexcept nogil:
    cdef uint32_t number = bswap32(<uint32_t>value)
    at[0] = tag
    memcpy(at + 1, &number, 4)
    return at + 5


cdef inline uint8_t* put_uint(uint8_t* at, uint64_t value) noexcept nogil:
    if value > UINT32_MAX:
        at[0] = 0xCF
        value = bswap64(value)
        memcpy(at + 1, &value, 8)
        return at + 9
    if value > 0xFFFF:
        return put_u32(at, 0xCE, value)
    if value > 0xFF:
        return put_u16(at, 0xCD, value)
    if value > 0x7F:
        at[0] = 0xCC
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint8_t* put_array(uint8_t* at, uint64_t size) noexcept nogil:
    if size > 0xFFFF:
        return put_u32(at, 0xDD, size)
    if size > 15:
        return put_u16(at, 0xDC, size)
    at[0] = 0x90 | <uint8_t>size
    return at + 1


cdef inline uint8_t* put_bin(uint8_t* at, uint64_t size) noexcept nogil:
    """The head of `size` bytes."""
    if size > 0xFFFF:
        return put_u32(at, 0xC6, size)
    if size > 0xFF:
        return put_u16(at, 0xC5, size)
    at[0] = 0xC4
    at[1] = <uint8_t>size
    return at + 2


cdef uint8_t* put_text(uint8_t* at, bytes text) noexcept:
    """A string of at most 255 bytes."""
    cdef size_t size = len(text)
    if size > 31:
        at[0] = 0xD9
        at += 1
        at[0] = <uint8_t>size
    else:
        at[0] = 0xA0 | <uint8_t>size
    memcpy(at + 1, PyBytes_AS_STRING(text), size)
    return at + 1 + size


cdef uint8_t* put_blocks(
    uint8_t* at, const uint64_t* external_hashes, const uint64_t* local_hashes, size_t size
) noexcept nogil:
    cdef size_t i
    for i in range(size):
        at = put(at, b"\x83\xaablock_hash")
        at = put_uint(at, external_hashes[i])
        at = put(at, b"\xabtokens_hash")
        at = put_uint(at, local_hashes[i])
        at = put(at, b"\xadmm_extra_info\xc0")
    return at
