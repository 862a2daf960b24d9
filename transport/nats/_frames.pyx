"""Kernel: NATS messages `MSG SUBJECT SID [REPLY] SIZE` in a piece of bytes. The face is
nats_shortcut.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memchr, memcmp

cdef enum:
    LONGEST_LINE = 4096   # bytes with their end, as the library has it
    MOST_WORDS = 4        # behind MSG
    MOST_DIGITS = 18
    LARGEST = 64 << 20    # bytes: no server takes a larger payload
    # What begins at a place.
    OTHER = 0             # no such message, or none of those
    CUT = 1               # its first line has not come whole
    MESSAGE = 2           # its first line is there

cdef struct Head:
    Py_ssize_t subject    # where it begins,
    Py_ssize_t subject_end
    int64_t sid
    Py_ssize_t begin      # of the payload
    Py_ssize_t end        # of the payload; its line ends two bytes later


cdef inline int64_t read_digits(const char* text, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """-1: it is no number, or a very long one."""
    cdef int64_t value = 0
    if not 0 < end - begin <= MOST_DIGITS:
        return -1
    while begin < end:
        if not 48 <= text[begin] <= 57:
            return -1
        value = 10 * value + text[begin] - 48
        begin += 1
    return value


cdef int read_head(const char* text, Py_ssize_t size, Py_ssize_t start, Head* head) noexcept nogil:
    cdef Py_ssize_t[MOST_WORDS] begins
    cdef Py_ssize_t[MOST_WORDS] ends
    cdef Py_ssize_t at = start + 4, line, limit = min(size, start + LONGEST_LINE)
    cdef const char* found
    cdef int words = 0
    cdef int64_t length
    if size - start < 4 or memcmp(text + start, b"MSG ", 4) != 0:
        return OTHER
    line = at
    while True:
        found = <const char*>memchr(text + line, b"\r", <size_t>max(limit - line, 0))
        if found == NULL or found + 1 == text + limit:
            return CUT if limit == size else OTHER
        line = found - text
        if text[line + 1] == b"\n":
            break
        line += 1
    while at <= line:
        if words == MOST_WORDS:
            return OTHER
        found = <const char*>memchr(text + at, b" ", <size_t>(line - at))
        begins[words] = at
        ends[words] = line if found == NULL else found - text
        if begins[words] == ends[words]:
            return OTHER
        at = ends[words] + 1
        words += 1
    if words < MOST_WORDS - 1:
        return OTHER
    head.subject, head.subject_end = begins[0], ends[0]
    head.sid = read_digits(text, begins[1], ends[1])
    length = read_digits(text, begins[words - 1], ends[words - 1])
    if head.sid < 0 or not 0 <= length <= LARGEST:
        return OTHER
    head.begin = line + 2
    head.end = head.begin + <Py_ssize_t>length
    return MESSAGE


cdef inline bint is_whole(const char* text, Py_ssize_t size, const Head* head) noexcept nogil:
    return head.end + 2 <= size and memcmp(text + head.end, b"\r\n", 2) == 0


def read_frame(bytes data not None, Py_ssize_t start):
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Head head
    if read_head(text, size, start, &head) != MESSAGE or not is_whole(text, size, &head):
        return None
    subject = PyBytes_FromStringAndSize(text + head.subject, head.subject_end - head.subject)
    payload = PyBytes_FromStringAndSize(text + head.begin, head.end - head.begin)
    return head.sid, subject, payload, head.end + 2


def read_run(bytes data not None, Py_ssize_t start, dict sinks not None):
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef PyObject* found
    cdef object sink = None
    cdef int64_t sid = -1
    cdef list payloads = []
    cdef Head head
    while read_head(text, size, start, &head) == MESSAGE and is_whole(text, size, &head):
        if head.sid != sid:
            found = PyDict_GetItem(sinks, head.sid)
            if found == NULL or not (sink is None or <object>found is sink):
                break
            sink, sid = <object>found, head.sid
        payloads.append(PyBytes_FromStringAndSize(text + head.begin, head.end - head.begin))
        start = head.end + 2
    return None if sink is None else (sink, payloads, start)


def count_missing(bytes data not None, Py_ssize_t start, dict sinks not None):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Head head
    cdef int kind = read_head(PyBytes_AS_STRING(data), size, start, &head)
    if kind == CUT and sinks:
        return 1
    if kind != MESSAGE or head.end + 2 <= size or PyDict_GetItem(sinks, head.sid) == NULL:
        return 0
    return head.end + 2 - size
