"""Kernel: a request that ended as a line of JSON. The face is lines.py."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ..dispatch._generate_answer cimport Answer, read_message
from ..record_format import MOST_TOKENS as _MOST_TOKENS
from ._salting cimport Key, read_key, salted_bytes, siphash_bytes, write_array, write_number

cdef enum:
    REST = 1024         # bytes, for all but hashes and status: 19 names, and numbers of at most 24 digits
    NAME_DIGITS = 12

cdef int64_t most_tokens = _MOST_TOKENS
cdef const char* HEX = b"0123456789abcdef"

cdef extern from *:
    """
    #define RECORD_MOST_US 9e18
    """
    const double MOST_US "RECORD_MOST_US"   # microseconds that are written, either way


cdef inline char* put(char* at, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(at, text, size)
    return at + size


cdef inline char* put_name(char* at, bytes name):
    return put(at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))


cdef inline char* put_whole(char* at, int64_t value) noexcept nogil:
    if value < 0:
        at[0] = b"-"
        at += 1
        value = -value
    return write_number(at, <uint64_t>value)


cdef char* put_ms(char* at, double seconds) noexcept nogil:
    """Milliseconds to three decimals, without zeros at the end."""
    cdef double us = seconds * 1e6
    cdef int64_t whole = <int64_t>(us + 0.5 if us >= 0.0 else us - 0.5)
    cdef int64_t rest
    cdef int i
    if whole < 0:
        at[0] = b"-"
        at += 1
        whole = -whole
    at = put_whole(at, whole // 1000)
    rest = whole % 1000
    if rest:
        at[0], at[1] = b".", <char>(48 + rest // 100)
        at[2], at[3] = <char>(48 + rest // 10 % 10), <char>(48 + rest % 10)
        at += 4
        while at[-1] == b"0":
            at -= 1
    return at


cdef char* put_seconds(char* at, bytes name, value):
    """A field of milliseconds, unless its seconds are None or no number."""
    cdef double seconds
    if value is None:
        return at
    seconds = value
    if not (isfinite(seconds) and -MOST_US < seconds * 1e6 < MOST_US):
        return at
    return put_ms(put_name(at, name), seconds)


cdef char* put_text(char* at, bytes name, str text) except NULL:
    """A field of plain ASCII, unless it is empty. ValueError for what JSON would escape."""
    cdef Py_ssize_t size, i
    cdef const char* data = PyUnicode_AsUTF8AndSize(text, &size)
    if size == 0:
        return at
    for i in range(size):
        if data[i] < 0x20 or data[i] > 0x7E or data[i] == 0x22 or data[i] == 0x5C:
            raise ValueError(f"{text!r} is not plain")
    at = put(put_name(at, name), data, size)
    at[0] = b'"'
    return at + 1


cdef char* put_salted(char* at, bytes name, str text, Key salt) except NULL:
    """A field with a name in place of a name, unless it is empty."""
    cdef uint64_t word
    cdef int i
    if not text:
        return at
    word = siphash_bytes(text.encode("utf-8", "surrogatepass"), salt)
    at = put_name(at, name)
    for i in range(NAME_DIGITS):
        at[i] = HEX[(word >> (60 - 4 * i)) & 15]
    at[NAME_DIGITS] = b'"'
    return at + NAME_DIGITS + 1


cdef char* put_hashes(
    char* at, const uint64_t* hashes, Py_ssize_t n, Py_ssize_t step, bint is_partial,
    uint64_t unique, Key salt,
):
    """The last one may be partial: it has the hash of its last full block of an engine's, or one
    that no other has."""
    cdef const uint64_t* tail = NULL
    if is_partial:
        tail = &hashes[n - 1] if n % step else &unique
    return write_array(put_name(at, b',"hash_ids":'), hashes, n, step, tail, salt)


cdef char* put_decision(char* at, prompt, decision):
    """The worker, and what of the prompt is expected in its cache."""
    cdef int64_t rank
    cdef int64_t overlap
    worker_id, rank = decision.worker
    at = write_number(put_name(at, b',"worker":"'), <uint64_t>worker_id)
    if rank:
        at[0] = b"/"
        at = put_whole(at + 1, rank)
    at[0] = b'"'
    overlap = decision.host_overlap_blocks + decision.disk_overlap_blocks
    overlap = min(<int64_t>prompt.isl, <int64_t>decision.cached_tokens + overlap * prompt.block_size)
    return put_whole(put_name(at + 1, b',"overlap_tokens":'), overlap)


cdef char* put_objective(char* at, bytes name, milliseconds):
    return at if milliseconds is None else put_seconds(at, name, milliseconds / 1e3)


def line_of(
    request, double arrived, double ended, str status not None, double began_at,
    Py_ssize_t step, uint64_t unique, bytes key not None,
):
    cdef Key salt = read_key(key)
    cdef double since = max(0.0, arrived - began_at)
    cdef int64_t output, cached, failures = len(request.failures.failed)
    cdef Answer last
    cdef char* line = NULL
    cdef char* at
    cdef Py_buffer hashes  # a typed memoryview takes a quarter of the whole line's time
    cdef Py_ssize_t n, isl
    facts, attempt, placement, first_at = (
        request.facts, request.attempt, request.placement, request.first_message_at,
    )
    prompt, session, streams = facts.prompt, request.session, facts.streaming
    decision = None if attempt is None else attempt.decision
    if not (isfinite(since) and since * 1e6 < MOST_US):
        raise ValueError(f"{arrived} is no time")
    if step < 1:
        raise ValueError("a step is one block at least")
    output = cached = 0
    if read_message(request.last_message, &last):
        output, cached = last.completion_tokens, last.cached_tokens
    if output > most_tokens:
        output = 0  # a reader would take it for damage, and refuse all of the record
    if not output and streams:
        output = request.messages  # of an engine that does not count in its chunks
    isl = prompt.isl
    if isl > most_tokens or output > most_tokens:
        raise ValueError(f"no prompt has {isl} tokens, or no answer {output}")
    PyObject_GetBuffer(prompt.sequence_hashes, &hashes, PyBUF_SIMPLE)
    try:
        n = hashes.len // <Py_ssize_t>sizeof(uint64_t)
        line = <char*>malloc(<size_t>(REST + len(status) + salted_bytes(n, step)))
        if line is NULL:
            raise MemoryError
        at = put_ms(put_name(line, b'{"timestamp":'), since)
        at = put_whole(put_name(at, b',"input_length":'), isl)
        at = put_whole(put_name(at, b',"output_length":'), output)
        at = put_hashes(
            at, <const uint64_t*>hashes.buf, n, step, isl % (step * <Py_ssize_t>prompt.block_size),
            unique, salt,
        )
        at = put_text(at, b',"status":"', status)
        at = put_salted(at, b',"session_id":"', "" if session is None else session.key, salt)
        at = put_salted(at, b',"tenant":"', placement.tenant, salt)
        if decision is not None:
            at = put_decision(at, prompt, decision)
        if first_at is not None:
            at = put_whole(put_name(at, b',"cached_tokens":'), cached)
        if first_at is not None and streams:
            at = put_seconds(at, b',"ttft_ms":', first_at - arrived)
            if output > 1:
                itl = (request.last_message_at - first_at) / (output - 1)
                at = put_seconds(at, b',"itl_ms":', itl)
        at = put_seconds(at, b',"e2e_ms":', ended - arrived)
        if attempt is None:
            at = put_seconds(at, b',"queue_ms":', 0.0)
        else:
            at = put_seconds(at, b',"queue_ms":', attempt.queue_s)
            if first_at is not None and streams:
                at = put_seconds(at, b',"engine_ttft_ms":', first_at - attempt.sent_at)
            if attempt.foreseen_ttft_s is not None:
                foreseen_s, soonest_s = attempt.foreseen_ttft_s
                at = put_seconds(at, b',"foreseen_ttft_ms":', foreseen_s)
                at = put_seconds(at, b',"soonest_ttft_ms":', soonest_s)
        objectives = placement.objectives
        at = put_objective(at, b',"ttft_objective_ms":', objectives.ttft_ms)
        at = put_objective(at, b',"itl_objective_ms":', objectives.itl_ms)
        if failures:
            at = put_whole(put_name(at, b',"attempts":'), failures + 1)
        at = put(at, b"}\n", 2)
        return PyBytes_FromStringAndSize(line, at - line)
    finally:
        free(line)
        PyBuffer_Release(&hashes)
