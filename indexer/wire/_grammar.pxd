"""KV events out of a ByteReader, appended to an EventBatch. 0 or a DecodeError."""
from ._events cimport Event, EventBatch
from ._reader cimport ByteReader

# RouterEvents: an array of them, or one alone; msgpack or JSON, up to the reader's end.
cdef int decode_payload(ByteReader* reader, EventBatch* batch) noexcept nogil

# event_id, data and dp_rank of one event, into `event`; its blocks go into the batch.
cdef int decode_cache_event(ByteReader* reader, EventBatch* batch, Event* event) noexcept nogil

# Whether the next value is an int; it stays unread.
cdef bint is_int(const ByteReader* reader) noexcept nogil
