"""Batches of an engine's event stream, framed for the index's mailbox."""
from libc.stdint cimport uint8_t, uint32_t

from ._events cimport EventBatch

cdef enum:
    FRAME_MARK = 0xC1        # first byte of a frame: msgpack never begins with it, nor does JSON
    DECODED_HEAD = 8         # bytes of DecodedHead

cdef struct DecodedHead:     # of a decoded batch: Events, external hashes and local hashes follow
    uint32_t n_events
    uint32_t n_blocks


# The events of one frame, under the publisher and the numbers that its header says; 0 or a
# DecodeError. The batch must be empty.
cdef int decode_frame(EventBatch* batch, const uint8_t* data, size_t size) noexcept nogil
