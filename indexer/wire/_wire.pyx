"""Messages of the event plane into event batches.

A message is an envelope (msgpack) around events, bare events (msgpack, or the JSON of the seed
generation), or a frame around a batch of an engine's stream (_engine_frames.pyx). Known things that
carry no events are not counted as unreadable.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from libc.stdint cimport UINT32_MAX, UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from ._events cimport EVENT_HEARTBEAT, EVENT_STORED, Event, EventBatch, batch_append_event
from ._engine_frames cimport FRAME_MARK, decode_frame
from ._grammar cimport decode_cache_event, decode_payload, is_int
from ._msgpack_reader cimport big_endian_64, msgpack_value
from ._reader cimport (
    DECODE_MALFORMED, DECODE_MISSING_FIELD, DECODE_OK, DECODE_TOO_LARGE,
    DECODE_WRONG_TYPE, ITEM_ARRAY, ITEM_INT, ITEM_MAP, ITEM_NIL, ITEM_TEXT, Item, ByteReader,
)
from ._syntax cimport (
    another_field, at_end, field_is, looks_like_json, open_struct, read_uint, read_value,
    skip_value, text_is,
)

cdef enum:
    NOGIL_BYTES = 1 << 16    # below this, decoding takes less than giving up the GIL may cost


cdef uint8_t topic_of(const Item* name) noexcept nogil:
    if text_is(name, "kv-events"):
        return TOPIC_KV_EVENTS
    if text_is(name, "kv-heartbeat"):
        return TOPIC_HEARTBEAT
    if (
        text_is(name, "kv_metrics")
        or text_is(name, "active_sequences_events")
        or text_is(name, "forward-pass-metrics")
        or text_is(name, "kv-resync")
    ):
        return TOPIC_OTHER
    return TOPIC_UNKNOWN


cdef int decode_heartbeat(ByteReader* reader, EventBatch* batch) noexcept nogil:
    """worker_id, dp_rank and last_event_id: an event of its own kind."""
    cdef Item fields, key
    cdef Event event
    cdef uint64_t rank = 0
    cdef bint has_worker = False, has_last = False
    cdef int code = open_struct(reader, &fields)
    memset(&event, 0, sizeof(event))
    event.kind = EVENT_HEARTBEAT
    while another_field(reader, &fields, &key, &code):
        if field_is(&key, "worker_id", 0):
            has_worker = True
            code = read_uint(reader, UINT64_MAX, &event.worker_id)
        elif field_is(&key, "dp_rank", 1):
            code = read_uint(reader, UINT32_MAX, &rank)
        elif field_is(&key, "last_event_id", 2):
            has_last = True
            code = read_uint(reader, UINT64_MAX, &event.event_id)
        else:
            code = skip_value(reader)
    if code != DECODE_OK:
        return code
    code = at_end(reader)
    if code != DECODE_OK:
        return code
    if not (has_worker and has_last):
        return DECODE_MISSING_FIELD
    event.dp_rank = <uint32_t>rank
    return batch_append_event(batch, &event)


cdef int decode_envelope(ByteReader* reader, EventBatch* batch, bint* is_envelope) noexcept nogil:
    """An envelope and the events in it. is_envelope comes back false if it is something else."""
    cdef Item fields, key, topic, payload
    cdef bint has_publisher = False, has_sequence = False
    cdef ByteReader inner
    cdef int code = open_struct(reader, &fields)
    topic.kind = payload.kind = ITEM_NIL
    is_envelope[0] = fields.kind == ITEM_ARRAY
    while another_field(reader, &fields, &key, &code):
        if field_is(&key, "publisher_id", 0):
            has_publisher = True
            code = read_uint(reader, UINT64_MAX, &batch.publisher_id)
        elif field_is(&key, "sequence", 1):
            has_sequence = True
            code = read_uint(reader, UINT64_MAX, &batch.sequence)
        elif field_is(&key, "topic", 3):
            is_envelope[0] = True
            code = read_value(reader, &topic)
        elif field_is(&key, "payload", 4):
            is_envelope[0] = True
            code = read_value(reader, &payload)
        else:
            code = skip_value(reader)
    if code != DECODE_OK or not is_envelope[0]:
        return code
    code = at_end(reader)
    if code != DECODE_OK:
        return code
    if topic.kind == ITEM_NIL or payload.kind == ITEM_NIL or not (has_publisher and has_sequence):
        return DECODE_MISSING_FIELD
    if topic.kind != ITEM_TEXT or payload.kind != ITEM_TEXT:
        return DECODE_WRONG_TYPE
    batch.has_envelope = True
    batch.topic = topic_of(&topic)
    inner.at = payload.text
    inner.end = payload.text + payload.value
    inner.json = False
    if batch.topic == TOPIC_HEARTBEAT:
        return decode_heartbeat(&inner, batch)
    if batch.topic != TOPIC_KV_EVENTS:
        return DECODE_OK
    return decode_payload(&inner, batch)


cdef bint is_positional_envelope(const ByteReader* reader) noexcept nogil:
    """An array that begins with two ints; a bare event that is an array has only one."""
    cdef ByteReader ahead = reader[0]
    cdef Item item
    return (
        msgpack_value(&ahead, &item) == DECODE_OK
        and item.kind == ITEM_ARRAY
        and msgpack_value(&ahead, &item) == DECODE_OK
        and item.kind == ITEM_INT
        and is_int(&ahead)
    )


cdef bint is_request_frame(const uint8_t* data, size_t size) noexcept nogil:
    """A frame of the request plane: lengths of a JSON head and a body, zero, head, body."""
    cdef uint64_t head, body
    if size < 24:
        return False
    head = big_endian_64(data)
    body = big_endian_64(data + 8)
    return (
        big_endian_64(data + 16) == 0
        and head > 0
        and head <= size - 24
        and body == size - 24 - head
        and data[24] == c'{'
    )


cdef int decode_any(EventBatch* batch, const uint8_t* data, size_t size) noexcept nogil:
    cdef ByteReader reader
    cdef ByteReader start
    cdef Item head
    cdef bint is_envelope = False
    cdef int code
    if size == 0 or is_request_frame(data, size):
        batch.topic = TOPIC_OTHER  # an acknowledgement, or a call of the request plane
        return DECODE_OK
    if data[0] == FRAME_MARK:
        return decode_frame(batch, data, size)
    if size > UINT32_MAX:
        return DECODE_TOO_LARGE
    reader.at = data
    reader.end = data + size
    reader.json = False
    start = reader
    if not looks_like_json(&reader):
        code = msgpack_value(&reader, &head)
        if code != DECODE_OK:
            return code
        reader = start
        if head.kind == ITEM_MAP or is_positional_envelope(&reader):
            code = decode_envelope(&reader, batch, &is_envelope)
            if is_envelope or code != DECODE_OK:
                return code
        elif head.kind != ITEM_ARRAY:
            return DECODE_MALFORMED  # no message begins like this
        reader = start
    return decode_payload(&reader, batch)


cdef void batch_init(EventBatch* batch) noexcept nogil:
    memset(batch, 0, sizeof(EventBatch))


cdef void batch_free(EventBatch* batch) noexcept nogil:
    free(batch.events)
    free(batch.external_hashes)
    free(batch.local_hashes)
    batch_init(batch)


cdef void batch_reset(EventBatch* batch) noexcept nogil:
    batch.n_events = batch.n_blocks = 0
    batch.publisher_id = batch.sequence = 0
    batch.has_envelope = False
    batch.topic = TOPIC_KV_EVENTS


cdef int decode_nats_message(EventBatch* batch, const uint8_t* data, size_t size) noexcept nogil:
    batch_reset(batch)
    cdef int code = decode_any(batch, data, size)
    if code != DECODE_OK:
        batch.n_events = batch.n_blocks = 0
    return code


cdef int decode_json_event(
    EventBatch* batch, uint64_t worker_id, const uint8_t* data, size_t size
) noexcept nogil:
    cdef ByteReader reader
    cdef Event event
    cdef int code
    batch_reset(batch)
    if size > UINT32_MAX:
        return DECODE_TOO_LARGE
    memset(&event, 0, sizeof(event))
    event.worker_id = worker_id
    reader.at = data
    reader.end = data + size
    reader.json = True
    code = decode_cache_event(&reader, batch, &event)
    if code == DECODE_OK:
        code = at_end(&reader)
    event.count = batch.n_blocks
    if code == DECODE_OK:
        code = batch_append_event(batch, &event)
    if code != DECODE_OK:
        batch.n_events = batch.n_blocks = 0
    return code


@cython.final
cdef class EventDecoder:
    """Owner of one batch, for Python."""

    cdef EventBatch batch

    def __cinit__(self):
        batch_init(&self.batch)

    def __dealloc__(self):
        batch_free(&self.batch)

    def decode_message(self, data):
        cdef Py_buffer buffer
        cdef int code
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        if buffer.len < NOGIL_BYTES:
            code = decode_nats_message(&self.batch, <const uint8_t*>buffer.buf, buffer.len)
        else:
            with nogil:
                code = decode_nats_message(&self.batch, <const uint8_t*>buffer.buf, buffer.len)
        PyBuffer_Release(&buffer)
        return code

    def decode_cache_event(self, uint64_t worker_id, data):
        cdef Py_buffer buffer
        cdef int code
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        code = decode_json_event(
            &self.batch, worker_id, <const uint8_t*>buffer.buf, buffer.len
        )
        PyBuffer_Release(&buffer)
        return code

    @property
    def topic(self):
        return self.batch.topic

    @property
    def envelope(self):
        if not self.batch.has_envelope:
            return None
        return self.batch.publisher_id, self.batch.sequence

    def rows(self):
        cdef list rows = []
        cdef list external_hashes, local_hashes
        cdef Event* event
        cdef uint32_t i, j
        if self.batch.topic != TOPIC_KV_EVENTS:
            return rows
        for i in range(self.batch.n_events):
            event = self.batch.events + i
            external_hashes = []
            local_hashes = []
            for j in range(event.first, event.first + event.count):
                external_hashes.append(self.batch.external_hashes[j])
                if event.kind == EVENT_STORED:
                    local_hashes.append(self.batch.local_hashes[j])
            rows.append((
                event.kind, event.worker_id, event.dp_rank, event.event_id, event.tier,
                event.parent_hash if event.has_parent else None, external_hashes,
                local_hashes,
            ))
        return rows
