"""Bytes of the event plane into an EventBatch, for the index's thread."""
from libc.stdint cimport uint8_t, uint64_t

from ._events cimport EventBatch


cdef enum Topic:             # EventBatch.topic
    TOPIC_KV_EVENTS = 0
    TOPIC_OTHER = 1          # known, and not ours to read
    TOPIC_UNKNOWN = 2
    TOPIC_HEARTBEAT = 3      # one event, a heartbeat


# An empty batch; batch_free gives its arrays back and leaves it empty.
cdef void batch_init(EventBatch* batch) noexcept nogil
cdef void batch_free(EventBatch* batch) noexcept nogil

# Empty it, and keep its arrays.
cdef void batch_reset(EventBatch* batch) noexcept nogil

# Both replace what the batch held and return 0 or a DecodeError (_reader.pxd; text in codec.py).
# After an error the batch is empty, but for its envelope if that was read.

# One message, whatever it is: msgpack envelope, bare msgpack events, JSON events, or something
# that is knowingly ignored (`topic`).
cdef int decode_nats_message(
    EventBatch* batch, const uint8_t* data, size_t size
) noexcept nogil

# One JSON cache event (event_id, data, dp_rank) of this worker.
cdef int decode_json_event(
    EventBatch* batch, uint64_t worker_id, const uint8_t* data, size_t size
) noexcept nogil
