"""Kernel: the messages of a plain stream as server-sent events, from its first text to its end,
without a Python call for each."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from .processor._byte_text cimport ByteText

from time import monotonic

import msgspec

from ..workers.dialects import plain_chunk, plain_end
from ..workers import finish_reasons

cdef object write_json = msgspec.json.Encoder().encode
cdef object read_chunk = plain_chunk
cdef object read_end = plain_end
cdef object now = monotonic
cdef dict SHOWN = {reason.encode(): shown for reason, shown in finish_reasons.SHOWN_REASONS.items()}


@cython.final
cdef class PlainStream:
    """Takes the messages of an engine for one choice. `slow` takes those that are not plain, and
    all of them unless it is begun: what it does with a plain one is the same, in more steps."""

    cdef public bint shown   # something of the choice was written
    cdef public bint finished
    cdef object _slow        # takes a message; whether it did
    cdef ByteText _text      # None: all goes to `slow`
    cdef object _choice      # counts its tokens, and has when its first text came
    cdef object _usage       # of it
    cdef object _client      # has `reads`
    cdef object _writer      # has events that go out together, and has them sent
    cdef object _form        # has PlainEvents
    cdef set _begun          # choices of which something was written
    cdef bytes _first        # what goes before the first text
    cdef bytes _before       # before another one
    cdef bytes _nothing      # before what has none
    cdef bytes _behind       # behind each, before its finish reason
    cdef bytes _end          # behind that
    cdef bytes _goes_on      # the last two, of one that is not the last

    def __init__(self, slow):
        self._slow = slow

    def begin(self, ByteText text not None, choice, client, writer, form) -> None:
        """Write events of plain messages by `writer`, as they are made of `text`, in this form, if
        it has PlainEvents."""
        self._choice, self._usage, self._client = choice, choice.usage, client
        self._writer, self._form = writer, form
        self._text = text

    def begin_with(self, ByteText text not None, choice, client, writer, events) -> None:
        """The same with PlainEvents that have what is written around them."""
        self.begin(text, choice, client, writer, None)
        self._take_events(events)

    def end(self) -> None:
        """All that comes is for `slow`."""
        self._text = None

    def close(self) -> None:
        """Nothing more comes. What takes messages and what they are taken to hold each other: only
        the collector of garbage would find that neither is needed."""
        self._text = None
        self._slow = self._choice = self._usage = self._client = None
        self._writer = self._form = None

    def __call__(self, bytes message not None) -> bool:
        """Take a message at once; False: it is to be written, once its client keeps up."""
        cdef tuple found
        cdef str text
        if self._text is None or not self._client.reads:
            return self._slow(message)
        if self._first is None and not self._find_events():
            return self._slow(message)
        found = read_chunk(message)
        if found is None:
            return self._take_last(message)
        usage, ids, prompt, cached = self._usage, found[0], found[1], found[2]
        if prompt != usage.prompt_tokens:
            usage.prompt_tokens = prompt
        if cached > usage.cached_tokens:
            usage.cached_tokens = cached
        usage.completion_tokens += len(ids)
        text = self._text.feed(ids)
        if text:
            before = self._before if self.shown else self._show()
            self._put(joined(before, write_json(text), self._goes_on))
        return True

    cdef bint _find_events(self) except -1:
        """Whether there are any; once, when the request is with its engine."""
        events = self._form.plain_events(self._choice.index)
        if events is None:
            self._text = None
            return False
        self._take_events(self._writer.around(events))
        return True

    cdef int _take_events(self, events) except -1:
        self._begun, self._first, self._before = events.begun, events.first, events.before
        self._nothing, self._behind, self._end = events.nothing, events.behind, events.end
        self._goes_on = self._behind + b"null" + self._end
        return 0

    cdef object _take_last(self, bytes message):
        """The same of one that is no chunk: the end, mostly."""
        cdef tuple found
        cdef str text
        cdef bytes before
        usage = self._usage
        found = read_end(message) if usage.completion_tokens else None
        reason = None if found is None else SHOWN.get(found[0])
        if reason is None:
            return self._slow(message)
        usage.prompt_tokens = found[1]
        if found[2] > usage.cached_tokens:
            usage.cached_tokens = found[2]
        text = self._text.flush()
        self._text = None
        self.finished, self._choice.finish_reason = True, reason
        if text or not self.shown:
            before = (self._before if self.shown else self._show()) + write_json(text)
        else:
            before = self._nothing
        self._put(joined(before, self._behind, write_json(reason) + self._end))
        self._writer.ending = True
        return True

    cdef bytes _show(self):
        """What goes before the first text, which is written now."""
        self.shown = True
        self._begun.add(self._choice.index)
        self._choice.first_at = now()
        return self._first

    cdef object _put(self, bytes event):
        cdef list waiting = self._writer.waiting
        if not waiting:
            self._writer.schedule()
        waiting.append(event)
        self._writer.started = True


cdef bytes joined(bytes first, bytes second, bytes third):
    cdef Py_ssize_t before = PyBytes_GET_SIZE(first)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(second)
    cdef Py_ssize_t behind = PyBytes_GET_SIZE(third)
    cdef bytes event = PyBytes_FromStringAndSize(NULL, before + size + behind)
    cdef char* at = PyBytes_AS_STRING(event)
    memcpy(at, PyBytes_AS_STRING(first), before)
    memcpy(at + before, PyBytes_AS_STRING(second), size)
    memcpy(at + before + size, PyBytes_AS_STRING(third), behind)
    return event
