"""nghttp2's callbacks for the frames of a session, which make the session's events.

No callback runs Python code of another module.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from ._messages cimport READABLE, forget_part, is_between_messages, next_message
from ._nghttp2 cimport Functions, nghttp2_data_source, nghttp2_frame, nghttp2_frame_hd, nghttp2_nv
from ._nghttp2 cimport nghttp2_session, nghttp2_session_callbacks, read_t
from ._streams cimport LARGE, MESSAGE_OVERHEAD, MOST_HEADERS, Stream, Streams, count_idle
from ._streams cimport count_queued, fill, weigh, widen

from ._streams import (
    DRAINED,
    END,
    GAVE_UP,
    GOAWAY,
    HALF_CLOSED,
    HEADERS,
    MESSAGE,
    PING,
    PONG,
    REFUSED,
    SETTINGS,
    VIOLATION,
)

cdef enum:
    IS_SOUND = 0
    IS_CUT = 5
    HAS_LONG_HEADERS = 4
    FRAME_DATA = 0
    FRAME_HEADERS = 1
    FRAME_PRIORITY = 2
    FRAME_RST_STREAM = 3
    FRAME_SETTINGS = 4
    FRAME_PUSH_PROMISE = 5
    FRAME_PING = 6
    FRAME_GOAWAY = 7
    FRAME_WINDOW_UPDATE = 8
    FRAME_CONTINUATION = 9
    FLAG_END_STREAM = 1
    FLAG_PADDED = 8
    FLAG_ACK = 1
    DATA_EOF = 1
    DATA_NO_END_STREAM = 2
    DEFERRED = -508
    NOT_WANTED = -535
    PAUSE = -526
    END_THIS_STREAM = -521
    END_THIS_SESSION = -902
    RST_NO_ERROR = 0
    RST_REFUSED_STREAM = 7
    RST_CANCEL = 8
    # Frames that bring nothing and answer one of ours: windows opened, streams given up.
    CREDIT_OF_A_FRAME = 4
    MOST_CREDIT = 1 << 16
    HEADER_OVERHEAD = 32  # of a header, beside its name and value: RFC 9113, 6.5.2
    FAR_TOO_LONG = 4  # times the limit on headers: they are not even read to their end

cdef nghttp2_session_callbacks* _callbacks = NULL


cdef Py_ssize_t on_read(
    nghttp2_session* session, int32_t number, uint8_t* target, size_t size, uint32_t* flags,
    nghttp2_data_source* source, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef Stream stream = <Stream>source.ptr
    cdef nghttp2_nv[MOST_HEADERS] pairs
    cdef size_t n, have = 0
    cdef int64_t before = stream.queued
    cdef bytes item
    if stream.dropped:
        return DEFERRED  # its RST_STREAM is on its way
    try:
        while have < size and stream.out_at < len(stream.out):
            item = <bytes>stream.out[stream.out_at]
            n = min(size - have, <size_t>(PyBytes_GET_SIZE(item) - stream.out_sent))
            memcpy(target + have, PyBytes_AS_STRING(item) + stream.out_sent, n)
            have += n
            stream.out_sent += n
            if stream.out_sent == PyBytes_GET_SIZE(item):
                stream.out[stream.out_at] = None
                stream.out_at += 1
                stream.out_sent = 0
        stream.queued -= have
        count_queued(self, stream, before)
        if stream.out_at < len(stream.out):
            return have
        if stream.out_at:
            stream.forget_output()
            if stream.wants_drained and have:
                self.events.append((stream, DRAINED, None))
        if not stream.output_ends:
            return have if have else DEFERRED
        flags[0] |= DATA_EOF
        if stream.trailers_out is not None:
            flags[0] |= DATA_NO_END_STREAM
            n = fill(pairs, 0, stream.trailers_out, 0)
            self.ng.submit_trailer(session, number, pairs, n)
        return have
    except BaseException as error:
        self.error = error
        return END_THIS_SESSION


cdef int on_begin_frame(
    nghttp2_session* session, const nghttp2_frame_hd* head, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef int kind = head.type
    cdef bint idle = False
    self.frames_now += 1
    if kind == FRAME_HEADERS:
        self.unfinished_headers = head.stream_id
        idle = head.stream_id <= self.newest and is_gone(self, head.stream_id)
    elif kind != FRAME_CONTINUATION:
        self.unfinished_headers = 0
        if kind == FRAME_PUSH_PROMISE and not self.server:
            # Our settings forbid them, and no server of gRPC makes them. nghttp2 takes those that
            # come before the server has acknowledged our settings, and reads nothing behind them.
            return refuse_push(self)
        if kind == FRAME_DATA:
            idle = head.length == 0 and not head.flags & FLAG_END_STREAM
        elif kind == FRAME_SETTINGS or kind == FRAME_PING:
            idle = not self.server or head.flags & FLAG_ACK
        else:
            idle = True
    if idle:
        count_idle(self)
    return 0


cdef int refuse_push(Streams self) noexcept:
    try:
        self.complaint = "the server pushes"
    except BaseException as error:
        self.error = error
    return END_THIS_SESSION


cdef int on_unknown_frame(
    nghttp2_session* session, void** payload, const nghttp2_frame_hd* head, void* ours
) noexcept:
    """Nothing is read of frames that HTTP/2 itself does not have; `on_begin_frame` counts them."""
    return NOT_WANTED


cdef inline bint is_gone(Streams self, int32_t number) noexcept:
    """Whether a client still sends for a call that has ended. (Of its data nghttp2 says nothing:
    `count_dropped`.)"""
    return self.server and self.ng.session_get_stream_user_data(self.session, number) == NULL


cdef inline void add_credit(Streams self) noexcept:
    self.credit = min(self.credit + CREDIT_OF_A_FRAME, <int64_t>MOST_CREDIT)


cdef int on_begin_headers(
    nghttp2_session* session, const nghttp2_frame* frame, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef Stream stream
    cdef int32_t number = frame.hd.stream_id
    if not self.server or frame.hd.type != FRAME_HEADERS:
        return 0
    if self.ng.session_get_stream_user_data(session, number) != NULL:
        return 0
    try:
        stream = Stream()
        stream.id = number
        stream.window = self.first_window
        self.streams[number] = stream
        self.ng.session_set_stream_user_data(session, number, <void*>stream)
        self.new_now += 1
        self.newest = number
        add_credit(self)
        return 0
    except BaseException as error:
        self.error = error
        return END_THIS_SESSION


cdef int on_header(
    nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
    const uint8_t* value, size_t value_size, uint8_t flags, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef void* found = self.ng.session_get_stream_user_data(session, frame.hd.stream_id)
    cdef Stream stream
    if found == NULL:
        return 0
    stream = <Stream>found
    if stream.dropped:
        return 0
    stream.header_bytes += name_size + value_size + HEADER_OVERHEAD
    if stream.header_bytes > self.max_header_bytes:
        stream.violation = HAS_LONG_HEADERS
        # A server answers with a status. But one byte can stand for 4 KiB, whose characters nghttp2
        # checks each time, up to here.
        if self.server and stream.header_bytes <= FAR_TOO_LONG * self.max_header_bytes:
            return 0
        return END_THIS_STREAM
    try:
        pair = (
            PyBytes_FromStringAndSize(<const char*>name, name_size),
            PyBytes_FromStringAndSize(<const char*>value, value_size),
        )
        if stream.headers_given:
            stream.trailers.append(pair)
        else:
            stream.headers.append(pair)
        if self.most_new and self.new_now > self.most_new:
            self.new_now = 1  # this one: it goes on with what is taken next
            return PAUSE
        return 0
    except BaseException as error:
        self.error = error
        return END_THIS_SESSION


cdef inline bint is_large(Stream stream) noexcept:
    return stream.reader.length > LARGE * stream.window


cdef int on_data(
    nghttp2_session* session, uint8_t flags, int32_t number, const uint8_t* data, size_t size,
    void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef void* found = self.ng.session_get_stream_user_data(session, number)
    cdef Stream stream
    cdef int why
    # The connection's window bounds what is under way; what waits is bound by the streams'.
    self.ng.session_consume_connection(session, size)
    if not self.server:
        add_credit(self)
    if found == NULL:
        return 0
    stream = <Stream>found
    if stream.dropped or stream.violation != IS_SOUND:
        return 0
    stream.received += size
    try:
        messages = []
        why = READABLE
        while size and why == READABLE:
            why = next_message(&stream.reader, &data, &size, self.max_message_bytes, messages)
        for message in messages:
            self.events.append((stream, MESSAGE, message))
            stream.unread_bytes += len(message) + MESSAGE_OVERHEAD
        stream.unread += len(messages)
        if why != READABLE:
            stream.violation = why
            forget_part(&stream.reader)
            if self.server:
                self.events.append((stream, VIOLATION, why))
            else:
                self.ng.submit_rst_stream(session, 0, number, RST_CANCEL)
        elif stream.unread == 0:
            self.ng.session_consume_stream(session, number, stream.received)
            stream.received = 0
            # It is kept whole in any case; through a small window it would take many round trips.
            if not is_between_messages(&stream.reader) and is_large(stream):
                widen(self, stream, stream.reader.length)
        weigh(self, stream)
        return 0
    except BaseException as error:
        self.error = error
        return END_THIS_SESSION


cdef int on_frame_recv(
    nghttp2_session* session, const nghttp2_frame* frame, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef int kind = frame.hd.type
    cdef void* found
    cdef Stream stream
    if kind == FRAME_HEADERS:
        self.unfinished_headers = 0
    try:
        if kind == FRAME_SETTINGS:
            if not frame.hd.flags & FLAG_ACK:
                self.events.append((None, SETTINGS, None))
            return 0
        if kind == FRAME_PING:
            self.events.append((None, PONG if frame.hd.flags & FLAG_ACK else PING, None))
            return 0
        if kind == FRAME_GOAWAY:
            detail = (frame.goaway.last_stream_id, frame.goaway.error_code)
            self.events.append((None, GOAWAY, detail))
            return 0
        if kind > FRAME_HEADERS or frame.hd.stream_id == 0:
            return 0
        if kind == FRAME_DATA and frame.hd.flags & (FLAG_PADDED | FLAG_END_STREAM) == FLAG_PADDED:
            if frame.hd.length <= frame.data.padlen:
                count_idle(self)
        found = self.ng.session_get_stream_user_data(session, frame.hd.stream_id)
        if found == NULL:
            return 0
        stream = <Stream>found
        if kind == FRAME_HEADERS and not stream.headers_given:
            stream.header_bytes = 0
            if not self.server and is_informational(stream.headers):
                stream.headers = []
                count_idle(self)
            else:
                if not self.server:
                    add_credit(self)
                stream.headers_given = True
                self.events.append((stream, HEADERS, stream.headers))
        if kind == FRAME_HEADERS and self.server and stream.violation == HAS_LONG_HEADERS:
            self.events.append((stream, VIOLATION, HAS_LONG_HEADERS))
        if frame.hd.flags & FLAG_END_STREAM and not stream.half_closed:
            stream.half_closed = True
            if stream.violation == IS_SOUND and not is_between_messages(&stream.reader):
                stream.violation = IS_CUT
            if self.server:
                self.events.append((stream, HALF_CLOSED, None))
            elif stream.queued and not stream.dropped:  # the answer did not wait for all of it
                self.ng.submit_rst_stream(session, 0, stream.id, RST_NO_ERROR)
        return 0
    except BaseException as error:
        self.error = error
        return END_THIS_SESSION


cdef bint is_informational(list headers):
    """Whether headers are those of a 1xx answer, which others follow."""
    cdef bytes name, value
    for name, value in headers:
        if name == b":status":
            return value.startswith(b"1")
    return False


cdef int on_frame_send(
    nghttp2_session* session, const nghttp2_frame* frame, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef void* found
    cdef int64_t size
    if frame.hd.type == FRAME_DATA:
        add_credit(self)
    elif frame.hd.type >= FRAME_RST_STREAM:
        return note_refusal(self, frame)
    if frame.hd.type > FRAME_HEADERS or (self.server and not frame.hd.flags & FLAG_END_STREAM):
        return 0
    found = self.ng.session_get_stream_user_data(session, frame.hd.stream_id)
    if found == NULL:
        return 0
    if not self.server:
        (<Stream>found).begun = True
        if (<Stream>found).window > self.first_window:  # before this nghttp2 did not know the stream
            size = (<Stream>found).window
            self.ng.session_set_local_window_size(session, 0, frame.hd.stream_id, <int32_t>size)
    elif not (<Stream>found).half_closed:
        # The answer is complete: the client need not send the rest of what it asks.
        self.ng.submit_rst_stream(session, 0, frame.hd.stream_id, RST_NO_ERROR)
    return 0


cdef int note_refusal(Streams self, const nghttp2_frame* frame) noexcept:
    """Make events of the refusals that nghttp2 itself sends to a peer that breaks the rules."""
    cdef int kind = frame.hd.type
    try:
        if kind == FRAME_GOAWAY and frame.goaway.error_code:
            self.events.append((None, GAVE_UP, frame.goaway.error_code))
        elif kind == FRAME_RST_STREAM and frame.rst_stream.error_code == RST_REFUSED_STREAM:
            if self.server:
                self.events.append((None, REFUSED, None))
        return 0
    except BaseException as error:
        self.error = error
        return END_THIS_SESSION


cdef int on_stream_close(
    nghttp2_session* session, int32_t number, uint32_t code, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    cdef Stream stream
    cdef int64_t before
    try:
        stream = self.streams.pop(number, None)
        if stream is None:
            return 0
        self.ng.session_set_stream_user_data(session, number, NULL)
        stream.ended = True
        before = stream.queued
        stream.forget_output()
        count_queued(self, stream, before)
        forget_part(&stream.reader)
        weigh(self, stream)
        if not stream.dropped:
            self.events.append((stream, END, code))
        return 0
    except BaseException as error:
        self.error = error
        return END_THIS_SESSION


cdef int on_error(
    nghttp2_session* session, int code, const char* text, size_t size, void* ours
) noexcept:
    cdef Streams self = <Streams>ours
    try:
        self.complaint = text[:min(size, <size_t>200)].decode("utf-8", "replace")
    except BaseException as error:
        self.error = error
    return 0


cdef read_t reader() noexcept:
    return on_read


cdef nghttp2_session_callbacks* callbacks(Functions* ng) except NULL:
    """The one table of callbacks, made once and never freed."""
    global _callbacks
    if _callbacks == NULL:
        if ng.session_callbacks_new(&_callbacks):
            raise MemoryError
        ng.set_on_begin_frame(_callbacks, on_begin_frame)
        ng.set_on_begin_headers(_callbacks, on_begin_headers)
        ng.set_on_header(_callbacks, on_header)
        ng.set_on_data_chunk_recv(_callbacks, on_data)
        ng.set_on_frame_recv(_callbacks, on_frame_recv)
        ng.set_on_frame_send(_callbacks, on_frame_send)
        ng.set_on_stream_close(_callbacks, on_stream_close)
        ng.set_on_error(_callbacks, on_error)
        ng.set_unpack_extension(_callbacks, on_unknown_frame)
    return _callbacks
