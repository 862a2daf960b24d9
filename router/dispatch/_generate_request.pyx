"""Kernel: reads the routing facts off a serialized trtllm.GenerateRequest.

Follows the protobuf wire format: of a scalar that comes twice the last one counts, submessages
merge, a repeated number may come packed or not, unknown fields are passed over. Submessages that
routing does not look into are not checked: that is up to the engine.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import numpy as np

cdef enum WireType:
    VARINT = 0
    FIXED64 = 1
    DELIMITED = 2
    FIXED32 = 5

cdef enum:  # field numbers
    REQUEST_ID = 1
    TOKENIZED = 2
    SAMPLING_CONFIG = 3
    MAX_TOKENS = 5
    STREAMING = 6
    LORA_CONFIG = 13
    PROMPT_TUNING_CONFIG = 14
    MULTIMODAL_INPUT = 15
    CACHE_SALT_ID = 19
    INPUT_TOKEN_IDS = 2       # of TokenizedInput
    NUM_RETURN_SEQUENCES = 2  # of SamplingConfig
    TASK_ID = 1               # of LoraConfig

cdef struct ByteReader:
    const uint8_t* at     # next byte to read
    const uint8_t* end    # one past the last

cdef struct Field:
    uint64_t value        # of a varint; the length of a delimited one
    const uint8_t* start  # of a delimited one's bytes
    uint32_t number
    uint32_t wire

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


cdef inline bint read_varint(ByteReader* reader, uint64_t* value) noexcept nogil:
    """False if the bytes end inside it, or it is longer than any number."""
    cdef uint64_t result = 0
    cdef uint32_t shift = 0
    cdef uint8_t byte
    while reader.at < reader.end and shift < 70:
        byte = reader.at[0]
        reader.at += 1
        if shift < 64:
            result |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return True
        shift += 7
    return False


cdef bint read_field(ByteReader* reader, Field* field) noexcept nogil:
    """The next field; false if the bytes are no message."""
    cdef uint64_t tag
    if not read_varint(reader, &tag) or tag >> 32 or tag >> 3 == 0:
        return False
    field.number = <uint32_t>(tag >> 3)
    field.wire = <uint32_t>(tag & 7)
    if field.wire == VARINT:
        return read_varint(reader, &field.value)
    if field.wire == DELIMITED:
        if not read_varint(reader, &field.value):
            return False
    elif field.wire == FIXED64:
        field.value = 8
    elif field.wire == FIXED32:
        field.value = 4
    else:  # groups were given up before this protocol was made
        return False
    if field.value > <uint64_t>(reader.end - reader.at):
        return False
    field.start = reader.at
    reader.at += field.value
    return True


cdef bint count_tokens(ByteReader reader, uint64_t* count) noexcept nogil:
    """Add the tokens of a TokenizedInput to `count`."""
    cdef Field field
    cdef uint64_t i, numbers
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.number != INPUT_TOKEN_IDS:
            continue
        if field.wire == VARINT:
            count[0] += 1
        elif field.wire == DELIMITED and field.value:
            numbers = 0
            for i in range(field.value):  # a number ends where its high bit is clear
                numbers += field.start[i] < 0x80
            if field.start[field.value - 1] >= 0x80:
                return False
            count[0] += numbers
    return True


cdef bint copy_tokens(ByteReader reader, uint32_t** out, uint32_t* largest) noexcept nogil:
    """Write the tokens of a TokenizedInput that was counted, and move `out` past them."""
    cdef Field field
    cdef ByteReader packed
    cdef uint64_t value
    while reader.at < reader.end:
        read_field(&reader, &field)
        if field.number != INPUT_TOKEN_IDS or field.wire not in (VARINT, DELIMITED):
            continue
        packed.at = field.start
        packed.end = field.start + field.value
        value = field.value
        while field.wire == VARINT or packed.at < packed.end:
            if field.wire == DELIMITED and not read_varint(&packed, &value):
                return False
            out[0][0] = <uint32_t>value  # a longer number is cut to its low bits, as protobuf does
            largest[0] = max(largest[0], out[0][0])
            out[0] += 1
            if field.wire == VARINT:
                break
    return True


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
                if not count_tokens(inside, &facts.n_tokens):
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
            if not copy_tokens(inside, &out, largest):
                return False
    return True


def parse_generate(const uint8_t[::1] body not None):
    """(request_id, token_ids, largest token, max_tokens, sequences, task_id | None,
    cache_salt_id | None, has media, streaming) of a serialized request; ValueError if it is none.
    """
    cdef Facts facts
    cdef ByteReader reader
    cdef uint32_t largest = 0
    cdef uint32_t[::1] view
    reader.at = &body[0] if body.shape[0] else NULL
    reader.end = reader.at + body.shape[0]
    facts.request_id = NULL
    facts.request_id_size = facts.n_tokens = 0
    facts.task_id = facts.cache_salt_id = 0
    facts.max_tokens = facts.sequences = 0
    facts.has_lora = facts.has_salt = facts.has_media = facts.streaming = False
    if not read_facts(reader, &facts):
        raise ValueError("not a GenerateRequest")
    tokens = np.empty(facts.n_tokens, np.uint32)
    if facts.n_tokens:
        view = tokens
        if not read_tokens(reader, &view[0], &largest):
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
    )
