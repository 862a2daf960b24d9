"""The streams of a session, and the kinds of its events, which _callbacks.pyx makes.

An event is (stream, kind, value).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from ._messages cimport COMPRESSED, NO_MEMORY, TOO_LONG, forget_part
from ._nghttp2 cimport nghttp2_nv

# Kinds of events, and their values.
HEADERS = 1  # a list of (name, value): of a request, or the initial ones of an answer
MESSAGE = 2  # bytes
HALF_CLOSED = 3  # None: the client of this stream has sent all it will
DRAINED = 4  # None: all that was written to the stream has left, if `wants_drained`
END = 5  # the code of the RST_STREAM that ended it, 0 without one
SETTINGS = 6  # None; of no stream: the peer's settings came
PONG = 7  # None; of no stream: a ping of ours was answered
GOAWAY = 8  # (last stream that it looks at, code); of no stream
PING = 9  # None; of no stream: the peer asks whether we are there, and is answered
VIOLATION = 10  # why nothing more of this request is read; its server answers with a status
REFUSED = 11  # None; of no stream: the peer began a stream that was one too many
GAVE_UP = 12  # the code of a GOAWAY with which this side says that the peer breaks the rules

# Violations: why this side ended a stream that was not dropped.
SOUND = 0
MESSAGE_COMPRESSED = COMPRESSED
MESSAGE_TOO_LONG = TOO_LONG
OUT_OF_MEMORY = NO_MEMORY
HEADERS_TOO_LONG = 4
MESSAGE_CUT = 5  # the stream ended within a message

cdef enum:
    IS_SOUND = 0
    SMALL = 4096


cdef class Stream:
    """One call. `owner` is the caller's own."""

    @property
    def message_bytes(self) -> int:
        """How long the message is that comes now, or came last."""
        return self.reader.length

    def __cinit__(self):
        self.headers = []
        self.trailers = []
        self.out = []

    def __dealloc__(self):
        forget_part(&self.reader)

    cdef void forget_output(self) noexcept:
        self.out = []
        self.out_at = self.out_sent = self.queued = 0

    cdef void forget_input(self) noexcept:
        forget_part(&self.reader)

    cdef void put(self, bytes message):
        cdef uint32_t n = PyBytes_GET_SIZE(message)
        cdef uint8_t[5] head
        head[0] = 0
        head[1], head[2], head[3], head[4] = n >> 24, n >> 16 & 255, n >> 8 & 255, n & 255
        if n <= SMALL:  # one piece is cheaper than two
            joined = PyBytes_FromStringAndSize(NULL, n + 5)
            memcpy(PyBytes_AS_STRING(joined), head, 5)
            memcpy(PyBytes_AS_STRING(joined) + 5, PyBytes_AS_STRING(message), n)
            self.out.append(joined)
        else:
            self.out.append(PyBytes_FromStringAndSize(<char*>head, 5))
            self.out.append(message)
        self.queued += n + 5


cdef class Streams:
    """The state of a session that its callbacks share, and their events."""

    def __cinit__(self):
        self.streams = {}
        self.events = []
        self.complaint = ""

    def __dealloc__(self):
        if self.session != NULL:
            self.ng.session_del(self.session)

    def __len__(self):
        """Streams that have not ended."""
        return len(self.streams)

    @property
    def has_events(self) -> bool:
        """Whether something happened that was not taken."""
        return len(self.events) > 0

    def take_idle(self) -> int:
        """Frames since the last time that brought nothing, and answer nothing of ours.

        Data without a byte, priorities, windows, resets, acknowledgements, frames of unknown kinds;
        to a client also pings, settings and answers that are not final. A server judges the former
        two itself.
        """
        idle, self.idle = self.idle, 0
        return idle

    def fullest(self) -> Stream | None:
        """The stream that most waits to be sent of; None: nothing waits."""
        cdef Stream stream, most = None
        for stream in self.streams.values():
            if stream.queued and (most is None or stream.queued > most.queued):
                most = stream
        return most

    def shed(self) -> None:
        """Read no more of the request that holds most: there is no room for it."""
        cdef Stream stream, most = None
        for stream in self.streams.values():
            if stream.violation == IS_SOUND and (most is None or stream.held > most.held):
                most = stream
        if most is not None and most.held:
            most.violation = NO_MEMORY
            most.unread_bytes = 0
            most.forget_input()
            weigh(self, most)
            self.events.append((most, VIOLATION, OUT_OF_MEMORY))


cdef size_t fill(nghttp2_nv* pairs, size_t n, tuple headers, uint8_t flags) except? 0:
    """Headers for nghttp2, which copies them; the objects outlive the call."""
    cdef bytes name, value
    for name, value in headers:
        if n == MOST_HEADERS:
            raise ValueError(f"more than {MOST_HEADERS} headers")
        pairs[n].name, pairs[n].namelen = <uint8_t*>name, PyBytes_GET_SIZE(name)
        pairs[n].value, pairs[n].valuelen = <uint8_t*>value, PyBytes_GET_SIZE(value)
        pairs[n].flags = flags
        n += 1
    return n
