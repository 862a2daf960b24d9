"""Kernel: a request of the usual kind whose head has come whole, read in one pass.

What is usual stands in `read_whole_request` alone. All else is None, and for the connection's parser,
which says the same of what is read here (tests/unit/transport/http1/test_whole_request.py).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeLatin1
from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp

cdef enum:
    IN_NAME = 1          # of a header, in small letters or not
    IN_PATH = 2          # stands for itself there
    IN_QUERY = 4
    IN_VALUE = 8         # of a header
    MOST_NAME = 64       # bytes of a header's name
    MOST_DIGITS = 9      # of a content-length

AT_MOST_ONCE = (b"authorization", b"content-encoding", b"x-api-key")

cdef uint8_t[256] KINDS


cdef void note(bytes those, uint8_t kind):
    cdef int each
    for each in those:
        KINDS[each] |= kind


cdef bytes LETTERS_AND_DIGITS = bytes(each for each in range(128) if chr(each).isalnum())
note(LETTERS_AND_DIGITS + b"-_", IN_NAME)
note(LETTERS_AND_DIGITS + b"-_.~/:@", IN_PATH)
note(LETTERS_AND_DIGITS + b"-_.~/:@=&+,", IN_QUERY)
note(bytes(range(0x21, 0x7F)) + b" ", IN_VALUE)


cdef inline bint is_name(const char* name, Py_ssize_t size, const char* other, Py_ssize_t length) noexcept:
    return size == length and memcmp(name, other, length) == 0


def read_whole_request(bytes data not None, Py_ssize_t most_head_bytes, Py_ssize_t most_headers):
    """(method, path, query, headers, body, bytes of the body that are to come) of bytes that are one
    request of HTTP/1.1, GET or POST, whose path and headers have nothing that is read in more than
    one way, whose body has a length, and after which the connection stays. None for all else.

    Names of headers are in small letters. The path stands for itself, with nothing to unquote.
    """
    cdef const char* at = PyBytes_AS_STRING(data)
    cdef const char* end = at + PyBytes_GET_SIZE(data)
    cdef const char* head = at
    cdef const char* begin
    cdef const char* line
    cdef const char* behind
    cdef char[MOST_NAME] name
    cdef Py_ssize_t size, length = -1, count = 0
    cdef bint has_host = False
    cdef int which, seen = 0  # bits, of AT_MOST_ONCE
    cdef bytes path, query = b"", each
    cdef str method
    cdef list headers = []
    if end - at < 16:
        return None
    if memcmp(at, b"POST /", 6) == 0:
        method, begin = "POST", at + 5
    elif memcmp(at, b"GET /", 5) == 0:
        method, begin = "GET", at + 4
    else:
        return None
    at = begin
    while at < end and KINDS[<uint8_t>at[0]] & IN_PATH:
        at += 1
    path = PyBytes_FromStringAndSize(begin, at - begin)
    if at < end and at[0] == b"?":
        begin = at = at + 1
        while at < end and KINDS[<uint8_t>at[0]] & IN_QUERY:
            at += 1
        query = PyBytes_FromStringAndSize(begin, at - begin)
    if end - at < 13 or memcmp(at, b" HTTP/1.1\r\n", 11) != 0:
        return None
    at += 11
    while True:
        if end - at < 2 or at - head > most_head_bytes:
            return None
        if at[0] == b"\r" and at[1] == b"\n":
            at += 2
            break
        size = 0
        while at < end and size < MOST_NAME and KINDS[<uint8_t>at[0]] & IN_NAME:
            name[size] = at[0] | 0x20 if b"A" <= at[0] <= b"Z" else at[0]
            size += 1
            at += 1
        if size == 0 or end - at < 4 or at[0] != b":" or at[1] != b" ":
            return None
        at += 2
        line = <const char*>memchr(at, b"\r", end - at)
        if line == NULL or line == at or end - line < 2 or line[1] != b"\n":
            return None
        begin = at
        while at < line:
            if not KINDS[<uint8_t>at[0]] & IN_VALUE:
                return None
            at += 1
        if begin[0] == b" " or line[-1] == b" ":
            return None  # how much of that is the value's
        if is_name(name, size, b"host", 4):
            if has_host:
                return None
            has_host = True
        elif is_name(name, size, b"content-length", 14):
            if length >= 0 or line - begin > MOST_DIGITS:
                return None
            length = 0
            behind = begin
            while behind < line:
                if not b"0" <= behind[0] <= b"9":
                    return None
                length = 10 * length + (behind[0] - 48)
                behind += 1
        elif is_name(name, size, b"connection", 10):
            if not is_name(begin, line - begin, b"keep-alive", 10):
                return None
        elif (
            is_name(name, size, b"transfer-encoding", 17)
            or is_name(name, size, b"upgrade", 7)
            or is_name(name, size, b"expect", 6)
            or is_name(name, size, b"proxy-connection", 16)
        ):
            return None
        else:
            for which, each in enumerate(<tuple>AT_MOST_ONCE):
                if is_name(name, size, PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each)):
                    if seen >> which & 1:
                        return None
                    seen |= 1 << which
        count += 1
        if count > most_headers:
            return None
        headers.append(
            (
                PyBytes_FromStringAndSize(name, size),
                PyBytes_FromStringAndSize(begin, line - begin),
            )
        )
        at = line + 2
    length = max(length, 0)
    if not has_host or at - head > most_head_bytes or end - at > length:
        return None
    return method, path, query, headers, PyBytes_FromStringAndSize(at, end - at), length - (end - at)


def decoded(list headers not None) -> dict:
    """Headers as text; of one that comes twice the first."""
    cdef dict found = {}
    cdef tuple each
    cdef bytes name, value
    cdef object key
    for each in headers:
        name, value = each
        key = PyUnicode_DecodeLatin1(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), NULL)
        if key not in found:
            found[key] = PyUnicode_DecodeLatin1(
                PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), NULL
            )
    return found
