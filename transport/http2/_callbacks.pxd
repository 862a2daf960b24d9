"""The callbacks of a session."""

from ._nghttp2 cimport Functions, nghttp2_session_callbacks, read_t


cdef read_t reader() noexcept
cdef nghttp2_session_callbacks* callbacks(Functions* ng) except NULL
