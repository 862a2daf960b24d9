"""Kernel: what nearly every message of a stream brings, tokens alone or its end alone, without a
message object."""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ...base.native._protobuf cimport (
    DELIMITED,
    VARINT,
    ByteReader,
    Field,
    copy_numbers,
    count_numbers,
    read_field,
)

cdef enum:  # field numbers
    REQUEST_ID = 1  # of GenerateResponse
    CHUNK = 2
    COMPLETE = 3
    TOKEN_IDS = 1   # of GenerateStreamChunk and of GenerateComplete
    SEQUENCE_INDEX = 2
    PROMPT_TOKENS = 3
    COMPLETION_TOKENS = 4
    CACHED_TOKENS = 5
    FINISH_REASON = 3            # of GenerateComplete
    COMPLETE_PROMPT_TOKENS = 5
    COMPLETE_CACHED_TOKENS = 7
    MOST_LISTED = 64     # tokens; of more there is an array
    MOST_TOKENS = 65536

cdef array.array NUMBERS = array.array("I")


cdef object read_chunk(ByteReader reader, uint32_t* prompt, uint32_t* cached):
    """The token ids; None if there is more in it than tokens and counts, or it is no chunk."""
    cdef Field field
    cdef ByteReader again = reader
    cdef uint32_t[MOST_LISTED] few
    cdef uint32_t* found = few
    cdef uint32_t* end
    cdef uint32_t largest = 0
    cdef uint64_t n
    cdef uint64_t count = 0
    cdef uint64_t ignored = 0
    cdef array.array many = None
    if not count_numbers(reader, TOKEN_IDS, &count, &ignored) or count > MOST_TOKENS:
        return None
    while reader.at < reader.end:
        read_field(&reader, &field)
        if field.number == TOKEN_IDS:
            continue
        if field.wire != VARINT or field.number > CACHED_TOKENS:
            return None
        if field.number == PROMPT_TOKENS:
            prompt[0] = <uint32_t>field.value
        elif field.number == CACHED_TOKENS:
            cached[0] = <uint32_t>field.value
    if count > MOST_LISTED:
        many = array.clone(NUMBERS, <Py_ssize_t>count, False)
        found = <uint32_t*>many.data.as_uints
    end = found
    if not copy_numbers(again, TOKEN_IDS, &end, &largest, NULL):
        return None
    return [found[n] for n in range(count)] if many is None else many


cdef bint find_only(bytes message, uint32_t number, ByteReader* inside) noexcept:
    """Whether a serialized GenerateResponse has, beside its request's id, one field of this number
    and nothing else; what is in it."""
    cdef ByteReader reader
    cdef Field field
    cdef bint found = False
    reader.at = <const uint8_t*>PyBytes_AS_STRING(message)
    reader.end = reader.at + PyBytes_GET_SIZE(message)
    while reader.at < reader.end:
        if not read_field(&reader, &field) or field.wire != DELIMITED:
            return False
        if field.number == REQUEST_ID:
            continue
        if field.number != number or found:
            return False
        found = True
        inside.at = field.start
        inside.end = field.start + field.value
    return found


def plain_chunk(bytes message not None):
    """(token ids, prompt_tokens, cached_tokens) of a serialized GenerateResponse that is a chunk
    without logprobs; None of any other message, or of bytes that are none. Many ids are an array.
    """
    cdef ByteReader inside
    cdef uint32_t prompt = 0
    cdef uint32_t cached = 0
    tokens = read_chunk(inside, &prompt, &cached) if find_only(message, CHUNK, &inside) else None
    return None if tokens is None else (tokens, prompt, cached)


cdef bytes read_end(ByteReader reader, uint32_t* prompt, uint32_t* cached):
    """The finish reason; None if there is more in it than that, tokens and counts."""
    cdef Field field
    cdef uint64_t count = 0
    cdef uint64_t ignored = 0
    cdef bytes reason = b""
    if not count_numbers(reader, TOKEN_IDS, &count, &ignored):
        return None
    while reader.at < reader.end:
        read_field(&reader, &field)
        if field.number == TOKEN_IDS:
            continue
        if field.number == FINISH_REASON and field.wire == DELIMITED:
            reason = (<const char*>field.start)[:field.value]
        elif field.wire != VARINT or field.number > COMPLETE_CACHED_TOKENS:
            return None
        elif field.number == COMPLETE_PROMPT_TOKENS:
            prompt[0] = <uint32_t>field.value
        elif field.number == COMPLETE_CACHED_TOKENS:
            cached[0] = <uint32_t>field.value
    return reason


def plain_end(bytes message not None):
    """(finish reason, prompt_tokens, cached_tokens) of a serialized GenerateResponse that is the
    whole answer, without logprobs, and without what stopped it; None of any other message, or of
    bytes that are none."""
    cdef ByteReader inside
    cdef uint32_t prompt = 0
    cdef uint32_t cached = 0
    cdef bytes reason = None
    if find_only(message, COMPLETE, &inside):
        reason = read_end(inside, &prompt, &cached)
    return None if reason is None else (reason, prompt, cached)
