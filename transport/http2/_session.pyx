"""An HTTP/2 session that carries gRPC's messages: bytes in, events out; calls in, bytes out.

No socket, no clock, no callbacks. Events come in the order of the bytes (_streams.pyx names them).

Invariants: a stream that had an event ends with exactly one END, unless it was dropped. A stream's
window opens only by what was taken of it: what is unread is at most the window and one message. The
window begins small and grows with what is taken: of an unread stream little ever comes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ._callbacks cimport callbacks, reader
from ._nghttp2 cimport (
    bound,
    nghttp2_data_provider2,
    nghttp2_nv,
    nghttp2_option,
    nghttp2_settings_entry,
)
from ._streams cimport KEEPS_UP, MESSAGE_OVERHEAD, MOST_HEADERS, NV_NO_INDEX
from ._streams cimport Stream, Streams, count_idle, count_queued, fill, weigh, widen

cdef enum:
    RST_CANCEL = 8
    FIRST_UNKNOWN_KIND = 10  # of frames: HTTP/2 itself has 0 to 9
    CONNECTION_WINDOW = 16 << 20
    FRAME_HEAD = 9
    LARGEST_FRAME = 16384 + FRAME_HEAD
    PREFACE_BYTES = 24
    SMALL_DATA = 1024  # a longer frame is paid for by its bytes
    PIECE = 16384  # after this many bytes it is checked whether these were too many frames,
    ANSWERS_PIECE = 512  # and after this many of a server's: its frames are small, and cost more
    UNANSWERED_ACKS = 256  # acknowledgements of pings and settings that wait to be sent
    # Streams that a client resets: a burst, and each second. The server's flood guard is stricter.
    RESETS = 20000
    RESETS_EACH_S = 2000
    TOO_MANY_SETTINGS = -537
    FLOODED = -904
    TOO_MANY_CONTINUATIONS = -905


class SessionError(Exception):
    """The peer does not speak HTTP/2, or breaks its rules; the connection is of no use.

    `flooded`: it sends too many frames that ask for work and bring nothing.
    """

    flooded = False


cdef void count_dropped(Streams self, const uint8_t* at, Py_ssize_t size) noexcept:
    """Count the small data frames of calls that have ended in bytes that were taken in. (Large ones
    may be under way where a call is refused while its client sends.)"""
    cdef Py_ssize_t some
    cdef uint32_t length, number
    cdef uint8_t* head = self.head
    while size:
        if self.left:
            some = min(self.left, size)
            self.left -= some
        else:
            some = min(FRAME_HEAD - self.head_bytes, size)
            memcpy(head + self.head_bytes, at, some)
            self.head_bytes += some
            if self.head_bytes == FRAME_HEAD:
                self.head_bytes = 0
                length = <uint32_t>head[0] << 16 | <uint32_t>head[1] << 8 | head[2]
                self.left = length
                if not head[3] and length < SMALL_DATA:  # data
                    number = <uint32_t>(head[5] & 127) << 24 | <uint32_t>head[6] << 16
                    number |= <uint32_t>head[7] << 8 | head[8]
                    if self.ng.session_get_stream_user_data(self.session, number) == NULL:
                        count_idle(self)
        at += some
        size -= some


cdef class Session(Streams):
    """One connection's. Streams of the peer that are too many are refused by nghttp2."""

    def __cinit__(
        self,
        *,
        bint server,
        int32_t window_bytes,
        int32_t first_window_bytes,
        uint32_t max_message_bytes,
        uint32_t max_header_bytes,
        uint32_t max_streams,
    ):
        cdef nghttp2_option* option = NULL
        cdef nghttp2_settings_entry[4] entries
        cdef int failed, kind
        self.ng = bound()
        if self.ng == NULL:
            raise SessionError("there is no library for HTTP/2")
        self.server = server
        self.left = PREFACE_BYTES
        self.first_window = first_window_bytes
        self.most_window = window_bytes
        self.max_message_bytes = max_message_bytes
        self.max_header_bytes = max_header_bytes
        if self.ng.option_new(&option):
            raise MemoryError
        self.ng.option_set_no_auto_window_update(option, 1)
        self.ng.option_set_no_closed_streams(option, 1)
        for kind in range(FIRST_UNKNOWN_KIND, 256):  # they are counted, see `take_idle`
            self.ng.option_set_user_recv_extension_type(option, kind)
        self.ng.option_set_max_outbound_ack(option, UNANSWERED_ACKS)
        # gRPC's servers send texts as they are, a space at the end too; nghttp2 would leave them out.
        self.ng.option_set_spaces_allowed(option, 1)
        self.ng.option_set_stream_reset_rate_limit(option, RESETS, RESETS_EACH_S)
        make = self.ng.session_server_new2 if server else self.ng.session_client_new2
        failed = make(&self.session, callbacks(self.ng), <void*><Streams>self, option)
        self.ng.option_del(option)
        if failed:
            raise MemoryError
        entries[0].settings_id, entries[0].value = 4, first_window_bytes
        entries[1].settings_id, entries[1].value = 6, max_header_bytes
        if server:
            entries[2].settings_id, entries[2].value = 3, max_streams
        else:
            entries[2].settings_id, entries[2].value = 2, 0  # no pushes
        self.ng.submit_settings(self.session, 0, entries, 3)
        self.ng.session_set_local_window_size(self.session, 0, 0, CONNECTION_WINDOW)

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be read or sent any more."""
        if self.session == NULL:
            return True
        return not (
            self.ng.session_want_read(self.session)
            or self.ng.session_want_write(self.session)
        )

    @property
    def is_due(self) -> bool:
        """Whether something is to be sent, or the session is over."""
        if self.session == NULL:
            return True
        return bool(
            self.ng.session_want_write(self.session)
            or not self.ng.session_want_read(self.session)
        )

    @property
    def open_streams(self) -> list:
        """Streams that have neither ended nor been dropped."""
        return [each for each in self.streams.values() if not (<Stream>each).dropped]

    def close(self) -> list:
        """End the session; the streams that had not ended, which get no more events."""
        left = self.open_streams
        if self.session != NULL:
            self.ng.session_del(self.session)
            self.session = NULL
        self.streams = {}
        self.held = self.queued = 0
        return left

    # Bytes

    def receive(self, data, Py_ssize_t size) -> int:
        """Take in the first `size` bytes of a buffer; SessionError if they are no valid HTTP/2.

        How many were taken: less if `most_new` calls began, or `most_frames` frames were read. The
        others are to be given again.
        """
        cdef Py_ssize_t piece, read = 0, taken = 0, most = PIECE if self.server else ANSWERS_PIECE
        cdef Py_buffer view
        if self.session == NULL:
            return size
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= size <= view.len:
                raise ValueError("size is beyond the data")
            self.frames_now = 0
            while True:
                piece = min(size - taken, most) if self.most_frames else size
                read = self.ng.session_mem_recv2(
                    self.session, <const uint8_t*>view.buf + taken, piece
                )
                if read < 0:
                    break
                if self.server:
                    count_dropped(self, <const uint8_t*>view.buf + taken, read)
                taken += read
                if read < piece or taken == size or self.frames_now >= self.most_frames:
                    break
        finally:
            PyBuffer_Release(&view)
        self._raise()
        if read < 0:
            error = SessionError(self.complaint or self.ng.strerror(<int>read).decode())
            error.flooded = read in (FLOODED, TOO_MANY_SETTINGS, TOO_MANY_CONTINUATIONS)
            raise error
        if read == piece:
            self.new_now = 0
        return taken

    def send(self, Py_ssize_t about) -> bytes:
        """Bytes for the peer, some `about` of them at most; empty: nothing is to be sent now."""
        cdef const uint8_t* frame = NULL
        cdef Py_ssize_t size, have = 0, capacity = 0
        cdef char* joined = NULL
        cdef char* moved
        if self.session == NULL:
            return b""
        first = None
        try:
            while have < about:
                size = self.ng.session_mem_send2(self.session, &frame)
                self._raise()
                if size < 0:
                    raise SessionError(self.complaint or self.ng.strerror(<int>size).decode())
                if size == 0:
                    break
                if first is None:
                    first = PyBytes_FromStringAndSize(<const char*>frame, size)
                    have = size
                    continue
                if have + size > capacity:
                    capacity = max(have + size, about) + LARGEST_FRAME
                    moved = <char*>malloc(capacity)
                    if moved == NULL:
                        raise MemoryError
                    if joined == NULL:
                        memcpy(moved, PyBytes_AS_STRING(first), have)
                    else:
                        memcpy(moved, joined, have)
                        free(joined)
                    joined = moved
                memcpy(joined + have, frame, size)
                have += size
            if joined != NULL:
                return PyBytes_FromStringAndSize(joined, have)
            return b"" if first is None else first
        finally:
            free(joined)

    def take_events(self) -> list:
        """What happened since the last time."""
        events, self.events = self.events, []
        return events

    cdef int _raise(self) except -1:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return 0

    # Calls of a client

    def request(self, tuple headers, tuple more, bytes message, bint wide=False) -> Stream:
        """Begin a call with one message. `headers` repeat from call to call, `more` do not. `wide`: its
        window is the largest from the start.

        SessionError if the connection takes no calls any more.
        """
        cdef nghttp2_nv[MOST_HEADERS] pairs
        cdef nghttp2_data_provider2 provider
        cdef int32_t number
        cdef Stream stream = Stream()
        cdef size_t n = fill(pairs, 0, headers, 0)
        n = fill(pairs, n, more, NV_NO_INDEX)
        if self.session == NULL:
            raise SessionError("the session is closed")
        stream.put(message)
        stream.output_ends = True
        stream.window = self.most_window if wide else self.first_window
        provider.source.ptr = <void*>stream
        provider.read_callback = reader()
        number = self.ng.submit_request2(
            self.session, NULL, pairs, n, &provider, <void*>stream
        )
        if number < 0:
            raise SessionError(self.ng.strerror(number).decode())
        stream.id = number
        self.streams[number] = stream
        count_queued(self, stream, 0)
        return stream

    # Calls of a server

    def respond(self, Stream stream, tuple headers) -> None:
        """Begin the answer; messages and trailers follow."""
        cdef nghttp2_nv[MOST_HEADERS] pairs
        cdef nghttp2_data_provider2 provider
        cdef size_t n = fill(pairs, 0, headers, 0)
        if self._is_gone(stream) or stream.is_answered:
            return
        stream.is_answered = True
        provider.source.ptr = <void*>stream
        provider.read_callback = reader()
        self.ng.submit_response2(self.session, stream.id, pairs, n, &provider)

    def answer(self, Stream stream, tuple headers, bytes message, tuple trailers) -> None:
        """The whole answer, of one message."""
        if not (self._is_gone(stream) or stream.is_answered):
            self.write(stream, message)
            stream.output_ends = True
            stream.trailers_out = trailers
            self.respond(stream, headers)

    def refuse(self, Stream stream, tuple headers) -> None:
        """Answer by headers alone, which end the stream."""
        cdef nghttp2_nv[MOST_HEADERS] pairs
        cdef size_t n = fill(pairs, 0, headers, 0)
        if self._is_gone(stream) or stream.is_answered:
            return
        stream.is_answered = True
        self.ng.submit_response2(self.session, stream.id, pairs, n, NULL)

    def write(self, Stream stream, bytes message) -> None:
        """One more message of the answer; nothing, if the peer has ended it."""
        cdef int64_t before = stream.queued
        if self._is_gone(stream) or stream.output_ends:
            return
        stream.put(message)
        count_queued(self, stream, before)
        self.ng.session_resume_data(self.session, stream.id)

    def finish(self, Stream stream, tuple trailers) -> None:
        """End the answer, once all that was written has left."""
        if self._is_gone(stream) or stream.output_ends:
            return
        stream.output_ends = True
        stream.trailers_out = trailers
        self.ng.session_resume_data(self.session, stream.id)

    # Calls of both

    def take(self, Stream stream, Py_ssize_t size) -> bool:
        """A message of `size` bytes was read: the peer may send as many more. Whether there is
        something to send now."""
        cdef int64_t back
        stream.unread -= 1
        if self._is_gone(stream):
            return False
        stream.unread_bytes = max(<int64_t>0, stream.unread_bytes - size - MESSAGE_OVERHEAD)
        weigh(self, stream)
        back = stream.received if stream.unread <= 0 else min(stream.received, size + 5)
        stream.received -= back
        self.ng.session_consume_stream(self.session, stream.id, back)
        stream.read += size
        if stream.read >= KEEPS_UP * stream.window:
            widen(self, stream, 2 * stream.window)
        return self.ng.session_want_write(self.session) != 0

    def drop(self, Stream stream, uint32_t code=RST_CANCEL) -> None:
        """End a stream, which gets no more events."""
        cdef int64_t before = stream.queued
        if self._is_gone(stream):
            return
        stream.dropped = True
        stream.forget_output()
        count_queued(self, stream, before)
        stream.forget_input()
        weigh(self, stream)
        self.ng.submit_rst_stream(self.session, 0, stream.id, code)

    def ping(self) -> None:
        if self.session != NULL:
            self.ng.submit_ping(self.session, 0, NULL)

    def announce_goaway(self) -> None:
        """Announce to a client that its connection will close, before any of its calls are refused."""
        if self.session != NULL:
            self.ng.submit_shutdown_notice(self.session)

    def goaway(self, uint32_t code=0) -> None:
        """Take no more streams; those that are there go on."""
        if self.session != NULL:
            self.ng.submit_goaway(
                self.session, 0, self.ng.session_get_last_proc_stream_id(self.session), code,
                NULL, 0,
            )

    cdef bint _is_gone(self, Stream stream) noexcept:
        return self.session == NULL or stream.ended or stream.dropped
