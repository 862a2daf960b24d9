"""What a session has of its streams."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from ._messages cimport MessageReader
from ._nghttp2 cimport Functions, nghttp2_nv, nghttp2_session

cdef enum:
    MOST_HEADERS = 128
    NV_NO_INDEX = 1
    MESSAGE_OVERHEAD = 64  # of a message that waits, beside its bytes
    KEEPS_UP = 16  # windows that were read of a stream before its window doubles
    LARGE = 4  # a message of more windows than these has them opened for it

cdef class Stream:
    cdef readonly int32_t id
    cdef public object owner
    cdef public bint wants_drained
    cdef readonly list headers
    cdef readonly list trailers
    cdef readonly int violation
    cdef readonly bint begun
    cdef readonly bint ended
    cdef readonly bint dropped
    cdef readonly int64_t queued  # bytes that were written and wait to be sent
    cdef bint is_answered         # server: the answer's headers were submitted
    cdef bint output_ends         # nothing more will be written
    cdef object trailers_out      # headers behind the last message, or None
    cdef list out                 # pieces to send
    cdef Py_ssize_t out_at        # which of them is being sent
    cdef Py_ssize_t out_sent      # how much of it was
    cdef MessageReader reader
    cdef int64_t received         # bytes that were not given back to the peer's window
    cdef int64_t unread           # messages that were not taken
    cdef int64_t unread_bytes     # of those, with what each costs beside
    cdef int64_t held             # bytes of messages that are kept for it
    cdef int64_t window           # that the peer was given, bytes
    cdef int64_t read             # bytes of messages that were taken since it grew last
    cdef size_t header_bytes
    cdef bint headers_given
    cdef bint half_closed         # the peer will send no more
    cdef void put(self, bytes message)
    cdef void forget_output(self) noexcept
    cdef void forget_input(self) noexcept


cdef class Streams:
    cdef Functions* ng
    cdef nghttp2_session* session
    cdef bint server
    cdef size_t max_header_bytes
    cdef uint32_t max_message_bytes
    cdef int64_t first_window     # of each stream, bytes
    cdef int64_t most_window      # to which that grows
    cdef dict streams             # by their numbers, until they end
    cdef list events
    cdef public Py_ssize_t most_new  # server: calls that may begin in one `receive`; 0: any number
    cdef public Py_ssize_t most_frames  # that are taken in one `receive`, or some more; 0: any
    cdef readonly int64_t held    # bytes of messages that came and were not taken, whole or not
    cdef readonly int64_t queued  # bytes that were written and wait to be sent
    cdef readonly int32_t unfinished_headers  # the stream whose headers have begun and not ended
    cdef readonly int64_t idle             # frames that brought nothing, see `take_idle`
    cdef int64_t credit           # such frames that are answers to frames of ours
    cdef uint8_t[9] head          # server: of the frame that comes, as far as it came
    cdef int head_bytes
    cdef int64_t left             # of the payload behind it, or of the preface
    cdef Py_ssize_t new_now          # that began in this one
    cdef Py_ssize_t frames_now
    cdef int32_t newest           # server: the highest number of a call that has begun
    cdef object error             # of a callback
    cdef readonly str complaint


cdef inline void weigh(Streams session, Stream stream) noexcept:
    """Count anew what is held of a stream's messages."""
    cdef int64_t held = 0
    if not (stream.ended or stream.dropped):
        held = stream.reader.part_have + stream.unread_bytes
    session.held += held - stream.held
    stream.held = held


cdef inline void widen(Streams session, Stream stream, int64_t size) noexcept:
    """Let the peer send `size` bytes ahead, at most `most_window`."""
    size = min(size, session.most_window)
    if size > stream.window:
        stream.window = size
        stream.read = 0
        session.ng.session_set_local_window_size(session.session, 0, stream.id, <int32_t>size)


cdef inline void count_idle(Streams session) noexcept:
    """A frame came that brings nothing."""
    if session.credit:
        session.credit -= 1
    else:
        session.idle += 1


cdef inline void count_queued(Streams session, Stream stream, int64_t before) noexcept:
    """What waits to be sent of a stream is no longer what it was before."""
    session.queued += stream.queued - before


cdef size_t fill(nghttp2_nv* pairs, size_t n, tuple headers, uint8_t flags) except? 0
