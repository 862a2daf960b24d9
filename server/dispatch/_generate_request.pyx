"""Kernel: reads what routing needs off serialized requests.

Submessages that routing does not look into are not checked here: see `without_tokens`.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ...base.native._protobuf cimport (
    DELIMITED,
    VARINT,
    ByteReader,
    Field,
    copy_numbers,
    count_numbers,
    put_varint,
    read_field,
    varint_size,
)

import numpy as np

cdef enum:  # field numbers
    REQUEST_ID = 1
    TOKENIZED = 2
    SAMPLING_CONFIG = 3
    MAX_TOKENS = 5
    STREAMING = 6
    LORA_CONFIG = 13
    PROMPT_TUNING_CONFIG = 14
    MULTIMODAL_INPUT = 15
    KV_CACHE_RETENTION = 16
    DISAGGREGATED_PARAMS = 17
    CACHE_SALT_ID = 19
    INPUT_TOKEN_IDS = 2       # of TokenizedInput
    NUM_RETURN_SEQUENCES = 2  # of SamplingConfig
    TASK_ID = 1               # of LoraConfig

cdef struct Facts:
    const uint8_t* request_id   # NULL: absent
    uint64_t request_id_size
    uint64_t n_tokens
    int64_t task_id
    int64_t cache_salt_id
    uint32_t max_tokens
    uint32_t sequences
    bint streaming
    bint has_lora
    bint has_salt
    bint has_media              # images or a prompt table: more than tokens make its content
    bint has_retention          # what the engine is to keep of it
    bint has_phase              # that it is one leg of a request on two workers


cdef bint find_varint(ByteReader reader, uint32_t number, uint64_t* value) noexcept nogil:
    """Set `value` to a submessage's varint of that number, if it has one."""
    cdef Field field
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.number == number and field.wire == VARINT:
            value[0] = field.value
    return True


cdef bint read_facts(ByteReader reader, Facts* facts) noexcept nogil:
    """All but the tokens themselves; false if the bytes are no such message."""
    cdef Field field
    cdef ByteReader inside
    cdef uint64_t value
    cdef uint64_t ignored = 0
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.wire == VARINT:
            if field.number == MAX_TOKENS:
                facts.max_tokens = <uint32_t>field.value
            elif field.number == STREAMING:
                facts.streaming = field.value != 0
            elif field.number == CACHE_SALT_ID:
                facts.has_salt, facts.cache_salt_id = True, <int64_t>field.value
        elif field.wire == DELIMITED:
            inside.at = field.start
            inside.end = field.start + field.value
            if field.number == REQUEST_ID:
                facts.request_id, facts.request_id_size = field.start, field.value
            elif field.number == TOKENIZED:
                if not count_numbers(inside, INPUT_TOKEN_IDS, &facts.n_tokens, &ignored):
                    return False
            elif field.number == SAMPLING_CONFIG:
                value = facts.sequences
                if not find_varint(inside, NUM_RETURN_SEQUENCES, &value):
                    return False
                facts.sequences = <uint32_t>value
            elif field.number == LORA_CONFIG:
                value = <uint64_t>facts.task_id
                if not find_varint(inside, TASK_ID, &value):
                    return False
                facts.has_lora, facts.task_id = True, <int64_t>value
            elif field.number in (PROMPT_TUNING_CONFIG, MULTIMODAL_INPUT):
                facts.has_media = True
            elif field.number == KV_CACHE_RETENTION:
                facts.has_retention = True
            elif field.number == DISAGGREGATED_PARAMS:
                facts.has_phase = True
    return True


cdef bint read_tokens(ByteReader reader, uint32_t* out, uint32_t* largest) noexcept nogil:
    """The tokens that read_facts counted."""
    cdef Field field
    cdef ByteReader inside
    while reader.at < reader.end:
        read_field(&reader, &field)
        if field.number == TOKENIZED and field.wire == DELIMITED:
            inside.at = field.start
            inside.end = field.start + field.value
            if not copy_numbers(inside, INPUT_TOKEN_IDS, &out, largest, NULL):
                return False
    return True


cdef size_t copy_fields(
    ByteReader reader, uint32_t left_out, uint8_t* out, bint* good
) noexcept nogil:
    """Bytes of a message's fields but those of one number, which are written to `out`, unless it is
    NULL. `good` is cleared if the bytes are no message."""
    cdef Field field
    cdef const uint8_t* begin
    cdef size_t size = 0
    while reader.at < reader.end:
        begin = reader.at
        if not read_field(&reader, &field):
            good[0] = False
            return 0
        if field.number == left_out:
            continue
        if out != NULL:
            memcpy(out + size, begin, reader.at - begin)
        size += reader.at - begin
    return size


cdef size_t copy_rest(ByteReader reader, uint8_t* out, bint* good) noexcept nogil:
    """The same of a request and its token ids."""
    cdef Field field
    cdef ByteReader inside
    cdef const uint8_t* begin
    cdef size_t inner, size = 0
    while reader.at < reader.end:
        begin = reader.at
        if not read_field(&reader, &field):
            good[0] = False
            return 0
        if field.number != TOKENIZED or field.wire != DELIMITED:
            if out != NULL:
                memcpy(out + size, begin, reader.at - begin)
            size += reader.at - begin
            continue
        inside.at = field.start
        inside.end = field.start + field.value
        inner = copy_fields(inside, INPUT_TOKEN_IDS, NULL, good)
        if out != NULL:
            out[size] = TOKENIZED << 3 | DELIMITED
            put_varint(out + size + 1, inner)
            copy_fields(inside, INPUT_TOKEN_IDS, out + size + 1 + varint_size(inner), good)
        size += 1 + varint_size(inner) + inner
    return size


def without_tokens(bytes body not None):
    """A serialized request without its token ids; ValueError if it is none."""
    cdef ByteReader reader
    cdef bint good = True
    cdef size_t size
    cdef bytes rest
    reader.at = <const uint8_t*>PyBytes_AS_STRING(body)
    reader.end = reader.at + PyBytes_GET_SIZE(body)
    size = copy_rest(reader, NULL, &good)
    if not good:
        raise ValueError("not a GenerateRequest")
    rest = PyBytes_FromStringAndSize(NULL, size)
    copy_rest(reader, <uint8_t*>PyBytes_AS_STRING(rest), &good)
    return rest


cdef str readable_id(const Facts* facts, uint64_t most):
    """The id of a request that is refused, cut at `most` bytes; what is no UTF-8 is replaced."""
    if facts.request_id == NULL:
        return ""
    cdef uint64_t size = min(facts.request_id_size, most)
    return (<const char*>facts.request_id)[:size].decode("utf-8", "replace")


def parse_generate(
    bytes body not None, uint64_t max_tokens=0xFFFFFFFF, uint64_t max_id=0xFFFFFFFF
):
    """(request_id, token_ids, largest token, max_tokens, sequences, task_id | None,
    cache_salt_id | None, has media, streaming, has retention, has a phase) of a serialized request;
    ValueError if it is none.

    OverflowError, with what is too long, by what it is measured and the request's id, before any of
    it is decoded: an id of more than `max_id` bytes (of which it has as many), more than `max_tokens`
    tokens. Works outside the GIL.
    """
    cdef Facts facts
    cdef ByteReader reader
    cdef uint32_t largest = 0
    cdef Py_buffer view  # of the array: a typed one costs a microsecond more
    cdef bint good
    reader.at = <const uint8_t*>PyBytes_AS_STRING(body)
    reader.end = reader.at + PyBytes_GET_SIZE(body)
    facts.request_id = NULL
    facts.request_id_size = facts.n_tokens = 0
    facts.task_id = facts.cache_salt_id = 0
    facts.max_tokens = facts.sequences = 0
    facts.has_lora = facts.has_salt = facts.has_media = facts.streaming = False
    facts.has_retention = facts.has_phase = False
    with nogil:
        good = read_facts(reader, &facts)
    if not good:
        raise ValueError("not a GenerateRequest")
    if facts.request_id_size > max_id:
        raise OverflowError("max_id_bytes", facts.request_id_size, readable_id(&facts, max_id))
    if facts.n_tokens > max_tokens:
        raise OverflowError("max_prompt_tokens", facts.n_tokens, readable_id(&facts, max_id))
    tokens = np.empty(facts.n_tokens, np.uint32)
    if facts.n_tokens:
        PyObject_GetBuffer(tokens, &view, PyBUF_WRITABLE)
        with nogil:
            good = read_tokens(reader, <uint32_t*>view.buf, &largest)
        PyBuffer_Release(&view)
        if not good:
            raise ValueError("a token id is longer than any number")
    return (
        (<const char*>facts.request_id)[:facts.request_id_size].decode("utf-8")
        if facts.request_id != NULL
        else "",
        tokens,
        largest,
        facts.max_tokens,
        facts.sequences,
        facts.task_id if facts.has_lora else None,
        facts.cache_salt_id if facts.has_salt else None,
        facts.has_media,
        bool(facts.streaming),
        bool(facts.has_retention),
        bool(facts.has_phase),
    )


def parse_tokens(
    bytes body not None, uint32_t number, uint64_t max_tokens, uint64_t max_rest
):
    """(token_ids, the other fields as a message) of a message whose tokens are field `number`.

    ValueError if it is none. OverflowError as parse_generate, also if the other fields have more
    than `max_rest` bytes. Works outside the GIL.
    """
    cdef ByteReader reader
    cdef uint64_t n_tokens = 0
    cdef uint64_t n_rest = 0
    cdef uint32_t largest = 0
    cdef uint32_t* out = NULL
    cdef uint8_t* other = NULL
    cdef Py_buffer view
    cdef bint good
    reader.at = <const uint8_t*>PyBytes_AS_STRING(body)
    reader.end = reader.at + PyBytes_GET_SIZE(body)
    with nogil:
        good = count_numbers(reader, number, &n_tokens, &n_rest)
    if not good:
        raise ValueError("not a message")
    if n_tokens > max_tokens:
        raise OverflowError("max_prompt_tokens", n_tokens)
    if n_rest > max_rest:
        raise OverflowError("decoded_bytes", n_rest)
    tokens = np.empty(n_tokens, np.uint32)
    rest = b"" if n_rest == 0 else PyBytes_FromStringAndSize(NULL, n_rest)
    if n_rest:
        other = <uint8_t*>PyBytes_AS_STRING(rest)
    PyObject_GetBuffer(tokens, &view, PyBUF_WRITABLE)
    out = <uint32_t*>view.buf
    with nogil:
        good = copy_numbers(reader, number, &out, &largest, &other)
    PyBuffer_Release(&view)
    if not good:
        raise ValueError("a token id is longer than any number")
    return tokens, rest
