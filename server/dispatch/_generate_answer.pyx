"""Kernel: reads what routing needs off serialized GenerateResponses.

Strings and submessages that routing does not look into are not checked: the client does that.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ...base.native._protobuf cimport (
    DELIMITED,
    VARINT,
    ByteReader,
    Field,
    count_numbers,
    read_field,
)

from ...workers import finish_reasons

cdef object check = finish_reasons.check_reason
cdef frozenset KNOWN_REASONS = frozenset(each.encode() for each in finish_reasons.SHOWN_REASONS)

cdef enum:  # field numbers
    CHUNK = 2
    COMPLETE = 3
    TOKEN_IDS = 1              # of both
    CHUNK_COMPLETION_TOKENS = 4
    CHUNK_CACHED_TOKENS = 5
    COMPLETE_COMPLETION_TOKENS = 6
    COMPLETE_CACHED_TOKENS = 7
    FINISH_REASON = 3          # of a complete one


cdef bint read_part(ByteReader reader, Answer* answer) noexcept nogil:
    """A chunk or a complete answer, added to what was read of it before; false if it is none."""
    cdef bint whole = answer.kind == COMPLETE
    cdef uint32_t completion = COMPLETE_COMPLETION_TOKENS if whole else CHUNK_COMPLETION_TOKENS
    cdef uint32_t cached = COMPLETE_CACHED_TOKENS if whole else CHUNK_CACHED_TOKENS
    cdef uint64_t ignored = 0
    cdef Field field
    if not count_numbers(reader, TOKEN_IDS, &answer.tokens, &ignored):
        return False
    while reader.at < reader.end:
        read_field(&reader, &field)
        if field.wire == VARINT:
            if field.number == completion:
                answer.completion_tokens = <uint32_t>field.value
            elif field.number == cached:
                answer.cached_tokens = <uint32_t>field.value
        elif whole and field.wire == DELIMITED and field.number == FINISH_REASON:
            answer.reason = field.start
            answer.reason_bytes = field.value
    return True


cdef bint read_answer(ByteReader reader, Answer* answer) noexcept nogil:
    """False if the bytes are no such message."""
    cdef Field field
    cdef ByteReader inside
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.wire != DELIMITED or field.number not in (CHUNK, COMPLETE):
            continue
        if answer.kind != field.number:  # of a oneof the last one counts
            answer.kind = field.number
            answer.tokens = answer.completion_tokens = answer.cached_tokens = 0
            answer.reason = NULL
        inside.at = field.start
        inside.end = field.start + field.value
        if not read_part(inside, answer):
            return False
    return True


cdef bint read_message(bytes message, Answer* answer) noexcept:
    """`read_answer` of all of a message."""
    cdef ByteReader reader
    answer.kind = answer.completion_tokens = answer.cached_tokens = 0
    answer.tokens = 0
    answer.reason = NULL
    reader.at = <const uint8_t*>PyBytes_AS_STRING(message)
    reader.end = reader.at + PyBytes_GET_SIZE(message)
    return read_answer(reader, answer)


def parse_answer(bytes answer not None):
    """(is it whole, number of token ids, completion_tokens, cached_tokens) of a message; whole is
    None of one that is neither a chunk nor complete. ValueError if the bytes are no such message.
    """
    cdef Answer found
    if not read_message(answer, &found):
        raise ValueError("not a GenerateResponse")
    whole = found.kind == COMPLETE if found.kind else None
    return whole, found.tokens, found.completion_tokens, found.cached_tokens


def cached_tokens_of(bytes message not None):
    """Prompt tokens found cached, by an engine's first streamed message; None: not reported."""
    cdef Answer found
    if not read_message(message, &found) or found.kind != CHUNK:
        return None
    return found.cached_tokens


def progress_in(bytes answer not None):
    """The bytes of finish_reason, of a complete answer that has one; else the tokens that are out
    in all, by a streamed message; 0 where it does not say, or can not be read."""
    return progress(answer)


def check_finish(bytes message not None):
    """Tokens that are out in all, by a streamed message; 0: not reported. EngineCallError if it is
    the last message of an answer that the engine could not go on with, or that ended for a reason
    that is none."""
    cdef object found = progress(message)
    if isinstance(found, int):
        return found
    if found not in KNOWN_REASONS:
        check(found.decode(errors="replace"))
    return 0


cdef object progress(bytes answer):
    cdef Answer found
    if not read_message(answer, &found):
        return 0
    if found.reason != NULL:
        return found.reason[:found.reason_bytes]
    return found.completion_tokens if found.kind == CHUNK else 0
