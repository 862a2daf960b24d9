"""Kernel: the messages of a plain stream as server-sent events, without a Python call for each."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from .processor._byte_text cimport ByteText

import msgspec

from ..workers.dialects import plain_chunk

cdef object write_json = msgspec.json.Encoder().encode
cdef object read_chunk = plain_chunk


@cython.final
cdef class PlainStream:
    """Takes the messages of an engine for one choice. `slow` takes those that are not plain, and
    all of them until `begin`: what it does with a plain one is the same, in more steps."""

    cdef object _slow        # takes a message; whether it did
    cdef ByteText _text      # None: all goes to `slow`
    cdef object _usage       # counts tokens
    cdef object _client      # has `reads`
    cdef list _waiting       # events that go out together
    cdef object _schedule    # has them sent; called with the first
    cdef bytes _before       # a text of an event
    cdef bytes _behind

    def __init__(self, slow):
        self._slow = slow

    def begin(
        self,
        ByteText text not None,
        usage,
        client,
        list waiting not None,
        schedule,
        bytes before not None,
        bytes behind not None,
    ) -> None:
        """From now on events of plain messages are put into `waiting`, a text between `before` and
        `behind`, and `schedule` is called with the first of them."""
        self._usage, self._client = usage, client
        self._waiting, self._schedule = waiting, schedule
        self._before, self._behind = before, behind
        self._text = text

    def end(self) -> None:
        """All that comes is for `slow`."""
        self._text = None

    def close(self) -> None:
        """Nothing more comes. What takes messages and what they are taken to hold each other: only
        the collector of garbage would find that neither is needed."""
        self._text = None
        self._slow = self._usage = self._client = self._waiting = self._schedule = None

    def __call__(self, bytes message not None) -> bool:
        """Take a message at once; False: it is to be written, once its client keeps up."""
        cdef tuple found
        cdef str text
        if self._text is None or not self._client.reads:
            return self._slow(message)
        found = read_chunk(message)
        if found is None:
            return self._slow(message)
        usage, ids, prompt, cached = self._usage, found[0], found[1], found[2]
        if prompt != usage.prompt_tokens:
            usage.prompt_tokens = prompt
        if cached > usage.cached_tokens:
            usage.cached_tokens = cached
        usage.completion_tokens += len(ids)
        text = self._text.feed(ids)
        if text:
            if not self._waiting:
                self._schedule()
            self._waiting.append(self._event(write_json(text)))
        return True

    cdef bytes _event(self, bytes text):
        cdef Py_ssize_t before = PyBytes_GET_SIZE(self._before)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        cdef Py_ssize_t behind = PyBytes_GET_SIZE(self._behind)
        cdef bytes event = PyBytes_FromStringAndSize(NULL, before + size + behind)
        cdef char* at = PyBytes_AS_STRING(event)
        memcpy(at, PyBytes_AS_STRING(self._before), before)
        memcpy(at + before, PyBytes_AS_STRING(text), size)
        memcpy(at + before + size, PyBytes_AS_STRING(self._behind), behind)
        return event
