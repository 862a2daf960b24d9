"""Kernel: a request that ended as a line of JSON. The face is lines.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.math cimport isfinite
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef enum:
    REST = 1024         # bytes, for all but hashes and texts: 16 names, and numbers of at most 24 digits
    DIGITS = 20         # of the longest int64_t

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


cdef char* put_whole(char* at, int64_t value) noexcept nogil:
    cdef char digits[DIGITS]
    cdef int n = DIGITS
    if value < 0:
        at[0] = b"-"
        at += 1
        value = -value
    while True:
        n -= 1
        digits[n] = <char>(48 + value % 10)
        value //= 10
        if value == 0:
            return put(at, &digits[n], DIGITS - n)


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


cdef char* put_count(char* at, bytes name, value):
    return at if value is None else put_whole(put_name(at, name), value)


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


def line_of(
    double arrived_s, int64_t input_length, int64_t output_length, bytes hash_ids not None,
    tuple texts not None, overlap_tokens, cached_tokens, tuple times_s not None, int64_t attempts,
):
    cdef Py_ssize_t size = REST + PyBytes_GET_SIZE(hash_ids)
    cdef str status, session, tenant, worker
    cdef char* line
    cdef char* at
    status, session, tenant, worker = texts
    size += len(status) + len(session) + len(tenant) + len(worker)
    if not (isfinite(arrived_s) and -MOST_US < arrived_s * 1e6 < MOST_US):
        raise ValueError(f"{arrived_s} is no time")
    line = <char*>malloc(<size_t>size)
    if line is NULL:
        raise MemoryError
    try:
        at = put_ms(put_name(line, b'{"timestamp":'), arrived_s)
        at = put_whole(put_name(at, b',"input_length":'), input_length)
        at = put_whole(put_name(at, b',"output_length":'), output_length)
        at = put_name(put_name(at, b',"hash_ids":'), hash_ids)
        at = put_text(at, b',"status":"', status)
        at = put_text(at, b',"session_id":"', session)
        at = put_text(at, b',"tenant":"', tenant)
        at = put_text(at, b',"worker":"', worker)
        at = put_count(at, b',"overlap_tokens":', overlap_tokens)
        at = put_count(at, b',"cached_tokens":', cached_tokens)
        ttft, itl, e2e, queue, engine_ttft, foreseen, soonest, ttft_objective, itl_objective = times_s
        at = put_seconds(at, b',"ttft_ms":', ttft)
        at = put_seconds(at, b',"itl_ms":', itl)
        at = put_seconds(at, b',"e2e_ms":', e2e)
        at = put_seconds(at, b',"queue_ms":', queue)
        at = put_seconds(at, b',"engine_ttft_ms":', engine_ttft)
        at = put_seconds(at, b',"foreseen_ttft_ms":', foreseen)
        at = put_seconds(at, b',"soonest_ttft_ms":', soonest)
        at = put_seconds(at, b',"ttft_objective_ms":', ttft_objective)
        at = put_seconds(at, b',"itl_objective_ms":', itl_objective)
        if attempts != 1:
            at = put_whole(put_name(at, b',"attempts":'), attempts)
        at = put(at, b"}\n", 2)
        return PyBytes_FromStringAndSize(line, at - line)
    finally:
        free(line)
