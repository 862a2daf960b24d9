"""Kernel: the GenerateResponses of an answer, written from token ids without a message object."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cython cimport final
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from ...base.native._memory cimport vector_reserve
from ...base.native._protobuf cimport (
    DELIMITED,
    delimited_size,
    number_size,
    put_delimited,
    put_number,
    put_varint,
    varint_size,
)

cdef enum:  # field numbers
    REQUEST_ID = 1  # of GenerateResponse
    CHUNK = 2
    COMPLETE = 3
    TOKEN_IDS = 1   # of both
    CHUNK_PROMPT_TOKENS = 3
    CHUNK_COMPLETION_TOKENS = 4
    CHUNK_CACHED_TOKENS = 5
    FINISH_REASON = 3
    MATCHED_STOP_STR = 4
    COMPLETE_PROMPT_TOKENS = 5
    COMPLETE_COMPLETION_TOKENS = 6
    COMPLETE_CACHED_TOKENS = 7
    MATCHED_TOKEN_ID = 13
    MOST_BYTES = 5  # of a token


cdef object new_message(bytes head, uint32_t kind, size_t size, uint8_t** out):
    """A response whose part of `size` bytes is to be written where `out` is then."""
    cdef size_t before = PyBytes_GET_SIZE(head)
    message = PyBytes_FromStringAndSize(NULL, before + 1 + varint_size(size) + size)
    out[0] = <uint8_t*>PyBytes_AS_STRING(message)
    memcpy(out[0], PyBytes_AS_STRING(head), before)
    out[0][before] = <uint8_t>(kind << 3 | DELIMITED)
    out[0] = put_varint(out[0] + before + 1, size)
    return message


@final
cdef class AnswerMessages:
    """Keeps the tokens of one answer as they are written in its messages."""

    cdef bytes _head         # the request's id, serialized
    cdef uint8_t* _tokens    # of the whole answer, packed
    cdef size_t _size        # bytes of them
    cdef size_t _capacity
    cdef uint64_t _count
    cdef uint32_t _prompt_tokens

    def __cinit__(self, str request_id not None, uint32_t prompt_tokens):
        cdef bytes name = request_id.encode()
        cdef size_t size = PyBytes_GET_SIZE(name)
        self._prompt_tokens = prompt_tokens
        self._head = PyBytes_FromStringAndSize(NULL, delimited_size(size))
        put_delimited(
            <uint8_t*>PyBytes_AS_STRING(self._head), REQUEST_ID, PyBytes_AS_STRING(name), size
        )

    def __dealloc__(self):
        free(self._tokens)

    @property
    def count(self):
        """Tokens so far."""
        return self._count

    def add(self, list tokens not None):
        """Keep more tokens. TypeError or ValueError, and none of them kept, if one is no uint32."""
        cdef Py_ssize_t place, count = PyList_GET_SIZE(tokens)
        cdef uint8_t* out
        cdef PyObject* token
        cdef long long value
        cdef int overflow = 0
        if not vector_reserve(
            &self._tokens, &self._capacity, self._size + MOST_BYTES * <size_t>count, 1
        ):
            raise MemoryError
        out = self._tokens + self._size
        for place in range(count):  # nothing in here runs code that could change the list
            token = PyList_GET_ITEM(tokens, place)
            if not PyLong_CheckExact(<object>token):
                raise TypeError(f"a token is no integer: {<object>token!r:.40}")
            value = PyLong_AsLongLongAndOverflow(<object>token, &overflow)
            if overflow or value < 0 or value > UINT32_MAX:
                raise ValueError("a token is out of range")
            out = put_varint(out, <uint64_t>value)
        self._size = <size_t>(out - self._tokens)
        self._count += <uint64_t>count

    def chunk(self, list tokens not None, uint32_t cached_tokens, bytes logprobs not None=b""):
        """Keep more tokens, and the message that brings them.

        `logprobs` are the serialized fields of them. Errors as `add`.
        """
        cdef size_t begin = self._size
        self.add(tokens)
        cdef size_t packed = self._size - begin
        cdef size_t more = PyBytes_GET_SIZE(logprobs)
        cdef uint8_t* out
        message = new_message(
            self._head,
            CHUNK,
            delimited_size(packed)
            + number_size(self._prompt_tokens)
            + number_size(self._count)
            + number_size(cached_tokens)
            + more,
            &out,
        )
        out = put_delimited(out, TOKEN_IDS, self._tokens + begin, packed)
        out = put_number(out, CHUNK_PROMPT_TOKENS, self._prompt_tokens)
        out = put_number(out, CHUNK_COMPLETION_TOKENS, self._count)
        out = put_number(out, CHUNK_CACHED_TOKENS, cached_tokens)
        memcpy(out, PyBytes_AS_STRING(logprobs), more)
        return message

    def complete(
        self,
        str reason not None,
        uint32_t cached_tokens,
        bytes logprobs not None=b"",
        str matched_text not None="",
        matched_token=None,
    ):
        """The last message, with all tokens. At most one of what matched is given."""
        cdef bytes why = reason.encode(), text = matched_text.encode()
        cdef size_t more = PyBytes_GET_SIZE(logprobs)
        cdef uint32_t token = 0
        cdef size_t token_size = 0  # 0 is written too
        cdef uint8_t* out
        if matched_token is not None:
            token = matched_token
            token_size = 1 + varint_size(token)
        message = new_message(
            self._head,
            COMPLETE,
            delimited_size(self._size)
            + delimited_size(PyBytes_GET_SIZE(why))
            + delimited_size(PyBytes_GET_SIZE(text))
            + number_size(self._prompt_tokens)
            + number_size(self._count)
            + number_size(cached_tokens)
            + more
            + token_size,
            &out,
        )
        out = put_delimited(out, TOKEN_IDS, self._tokens, self._size)
        out = put_delimited(out, FINISH_REASON, PyBytes_AS_STRING(why), PyBytes_GET_SIZE(why))
        out = put_delimited(out, MATCHED_STOP_STR, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        out = put_number(out, COMPLETE_PROMPT_TOKENS, self._prompt_tokens)
        out = put_number(out, COMPLETE_COMPLETION_TOKENS, self._count)
        out = put_number(out, COMPLETE_CACHED_TOKENS, cached_tokens)
        memcpy(out, PyBytes_AS_STRING(logprobs), more)
        if token_size:
            out += more
            out[0] = MATCHED_TOKEN_ID << 3
            put_varint(out + 1, token)
        return message
