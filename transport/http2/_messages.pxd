"""gRPC's framing of messages in a stream of bytes: one byte of flags, four of length, the message.

Nothing is kept of a message but what came of it, however long it says it is.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef enum:
    HEAD_BYTES = 5
    LEAST_CAPACITY = 4096
    # Why a stream of messages cannot be read on; 0: it can.
    READABLE = 0
    COMPRESSED = 1
    TOO_LONG = 2
    NO_MEMORY = 3


cdef struct MessageReader:
    uint8_t[5] head
    int head_have     # bytes of the head that came
    uint32_t length   # of the message, once the head is there
    char* part        # the beginning of a message that came in several pieces
    size_t part_have
    size_t part_capacity


cdef inline bint is_between_messages(const MessageReader* reader) noexcept:
    return reader.head_have == 0


cdef inline void forget_part(MessageReader* reader) noexcept:
    free(reader.part)
    reader.part = NULL
    reader.part_have = reader.part_capacity = 0


cdef inline int keep(MessageReader* reader, const uint8_t* data, size_t size) noexcept:
    """Add to the part. -1: no memory."""
    cdef size_t needed = reader.part_have + size
    cdef size_t capacity
    cdef void* moved
    if needed > reader.part_capacity:
        capacity = min(<size_t>reader.length, max(2 * reader.part_capacity, needed, <size_t>LEAST_CAPACITY))
        moved = realloc(reader.part, capacity)
        if moved == NULL:
            return -1
        reader.part = <char*>moved
        reader.part_capacity = capacity
    memcpy(reader.part + reader.part_have, data, size)
    reader.part_have = needed
    return 0


cdef inline int next_message(
    MessageReader* reader, const uint8_t** data, size_t* size, uint32_t longest, list out
) except -1:
    """Take bytes up to the end of one message, which is added to `out` if it is whole.

    Moves `data` and `size` on. Why it stopped for good, or READABLE.
    """
    cdef size_t taken
    while reader.head_have < HEAD_BYTES:
        if size[0] == 0:
            return READABLE
        reader.head[reader.head_have] = data[0][0]
        reader.head_have += 1
        data[0] += 1
        size[0] -= 1
        if reader.head_have == HEAD_BYTES:
            reader.length = (
                (<uint32_t>reader.head[1] << 24) | (<uint32_t>reader.head[2] << 16)
                | (<uint32_t>reader.head[3] << 8) | reader.head[4]
            )
            if reader.head[0] != 0:
                return COMPRESSED
            if reader.length > longest:
                return TOO_LONG
    taken = min(size[0], reader.length - reader.part_have)
    if taken == 0 and reader.length:
        return READABLE
    if reader.part_have == 0 and taken == reader.length:
        out.append(PyBytes_FromStringAndSize(<const char*>data[0], taken))
        reader.head_have = 0
    else:
        if keep(reader, data[0], taken) < 0:
            return NO_MEMORY
        if reader.part_have == reader.length:
            out.append(PyBytes_FromStringAndSize(reader.part, reader.part_have))
            forget_part(reader)
            reader.head_have = 0
    data[0] += taken
    size[0] -= taken
    return READABLE
