"""Kernel: token ids of one answer to text, where a token stands for the same bytes wherever it is."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

from array import array

cdef extern from "Python.h":
    str PyUnicode_DecodeUTF8Stateful(
        const char* data, Py_ssize_t size, const char* errors, Py_ssize_t* consumed
    )
    str PyUnicode_DecodeUTF8(const char* data, Py_ssize_t size, const char* errors)

cdef enum:
    MOST_LEFT = 3            # bytes of a character whose last one is missing
    MOST_ON_STACK = 512      # bytes that need no allocation


@cython.final
cdef class TokenBytes:
    """The bytes of each token, by id."""

    def __cinit__(self, list tokens not None):
        """`tokens`: bytes, none of an id that no token has. ValueError if they are 4 GiB."""
        cdef Py_ssize_t n
        cdef int64_t at = 0
        self.joined = b"".join(tokens)
        if PyBytes_GET_SIZE(self.joined) > 0xFFFFFFFF:
            raise ValueError("the bytes of all tokens are more than 4 GiB")
        self.count = len(tokens)
        self.starts = <uint32_t*>PyMem_Malloc((self.count + 1) * sizeof(uint32_t))
        if self.starts == NULL:
            raise MemoryError
        for n in range(self.count):
            self.starts[n] = <uint32_t>at
            at += len(tokens[n])
        self.starts[self.count] = <uint32_t>at

    def __dealloc__(self):
        PyMem_Free(self.starts)


@cython.final
cdef class ByteText:
    """The text of one answer, never a part of a character. All of it is what the library makes of
    all ids at once: U+FFFD stands for bytes that are no character."""

    def __cinit__(self, TokenBytes tokens not None, bytes shown not None):
        """`shown`: by id, 1 for each token that has text; others have none."""
        self.tokens, self.shown = tokens, shown
        self.left = 0

    def feed(self, ids) -> str:
        """The text that these ids complete."""
        if type(ids) is array and ids.typecode == "I":
            return self.feed_many(ids)
        cdef list found = ids if type(ids) is list else list(ids)
        cdef TokenBytes tokens = self.tokens
        cdef const char* shown = PyBytes_AS_STRING(self.shown)
        cdef int64_t known = min(tokens.count, PyBytes_GET_SIZE(self.shown))
        cdef const char* source = PyBytes_AS_STRING(tokens.joined)
        cdef const uint32_t* starts = tokens.starts
        cdef Py_ssize_t size = self.left
        cdef int64_t number
        cdef char[MOST_ON_STACK] near
        cdef char* data = near
        cdef char* at
        for each in found:
            number = each
            if 0 <= number < known and shown[number]:
                size += starts[number + 1] - starts[number]
        if size > MOST_ON_STACK:
            data = <char*>PyMem_Malloc(size)
            if data == NULL:
                raise MemoryError
        try:
            memcpy(data, self.pending, self.left)
            at = data + self.left
            for each in found:
                number = each
                if 0 <= number < known and shown[number]:
                    memcpy(at, source + starts[number], starts[number + 1] - starts[number])
                    at += starts[number + 1] - starts[number]
            return self.decode(data, size)
        finally:
            if data != near:
                PyMem_Free(data)

    cdef str feed_many(self, const uint32_t[::1] ids):
        """The same without an object for each."""
        cdef const char* shown = PyBytes_AS_STRING(self.shown)
        cdef const char* source = PyBytes_AS_STRING(self.tokens.joined)
        cdef const uint32_t* starts = self.tokens.starts
        cdef int64_t known = min(self.tokens.count, PyBytes_GET_SIZE(self.shown))
        cdef Py_ssize_t n, size = self.left
        cdef uint32_t number
        for n in range(ids.shape[0]):
            number = ids[n]
            if number < known and shown[number]:
                size += starts[number + 1] - starts[number]
        cdef char* data = <char*>PyMem_Malloc(size + 1)
        cdef char* at = data + self.left
        if data == NULL:
            raise MemoryError
        try:
            memcpy(data, self.pending, self.left)
            for n in range(ids.shape[0]):
                number = ids[n]
                if number < known and shown[number]:
                    memcpy(at, source + starts[number], starts[number + 1] - starts[number])
                    at += starts[number + 1] - starts[number]
            return self.decode(data, size)
        finally:
            PyMem_Free(data)

    cdef str decode(self, const char* data, Py_ssize_t size):
        cdef Py_ssize_t consumed = size  # of text all in ASCII, CPython 3.11.0 to 3.11.2 say nothing
        text = PyUnicode_DecodeUTF8Stateful(data, size, "replace", &consumed)
        self.left = size - consumed
        assert self.left <= MOST_LEFT
        memcpy(self.pending, data + consumed, self.left)
        return text

    def flush(self) -> str:
        """The answer is over: a part of a character, if one is left, as U+FFFD."""
        cdef Py_ssize_t size = self.left
        self.left = 0
        return PyUnicode_DecodeUTF8(self.pending, size, "replace")
