"""Finds nghttp2's functions in a shared library."""

from libc.string cimport memset

cdef extern from "dlfcn.h":
    int RTLD_NOW
    int RTLD_LOCAL
    void* dlopen(const char* path, int mode) nogil
    void* dlsym(void* handle, const char* name) nogil
    const char* dlerror() nogil

OLDEST = (1, 60)
"""The first with the functions whose names end in 2."""

# What our declarations say on a machine with 64-bit pointers, and nghttp2's headers too.
_SIZES = {
    "nghttp2_info": (sizeof(nghttp2_info), 24),
    "nghttp2_nv": (sizeof(nghttp2_nv), 40),
    "nghttp2_frame_hd": (sizeof(nghttp2_frame_hd), 16),
    "nghttp2_rst_stream": (sizeof(nghttp2_rst_stream), 24),
    "nghttp2_goaway": (sizeof(nghttp2_goaway), 48),
    "nghttp2_data_provider2": (sizeof(nghttp2_data_provider2), 16),
    "nghttp2_settings_entry": (sizeof(nghttp2_settings_entry), 8),
}

# In the order of the struct Functions, which is filled as an array of addresses.
_NAMES = (
    b"version",
    b"strerror",
    b"session_callbacks_new",
    b"session_callbacks_set_on_begin_frame_callback",
    b"session_callbacks_set_on_begin_headers_callback",
    b"session_callbacks_set_on_header_callback",
    b"session_callbacks_set_on_data_chunk_recv_callback",
    b"session_callbacks_set_on_frame_recv_callback",
    b"session_callbacks_set_on_frame_send_callback",
    b"session_callbacks_set_on_stream_close_callback",
    b"session_callbacks_set_error_callback2",
    b"session_callbacks_set_unpack_extension_callback",
    b"option_new",
    b"option_del",
    b"option_set_no_auto_window_update",
    b"option_set_no_closed_streams",
    b"option_set_user_recv_extension_type",
    b"option_set_max_outbound_ack",
    b"option_set_no_rfc9113_leading_and_trailing_ws_validation",
    b"option_set_stream_reset_rate_limit",
    b"session_client_new2",
    b"session_server_new2",
    b"session_del",
    b"session_mem_recv2",
    b"session_mem_send2",
    b"session_want_read",
    b"session_want_write",
    b"session_resume_data",
    b"session_set_local_window_size",
    b"session_consume_connection",
    b"session_consume_stream",
    b"session_get_stream_user_data",
    b"session_set_stream_user_data",
    b"submit_request2",
    b"submit_response2",
    b"submit_trailer",
    b"submit_settings",
    b"submit_rst_stream",
    b"submit_ping",
    b"submit_goaway",
    b"submit_shutdown_notice",
    b"session_get_last_proc_stream_id",
)

cdef Functions _functions
cdef bint _is_bound = False
memset(&_functions, 0, sizeof(Functions))


cdef Functions* bound() noexcept:
    return &_functions if _is_bound else NULL


def bind(path: bytes) -> str:
    """Take nghttp2 from this library from now on; its version. ImportError if it is unfit."""
    global _functions, _is_bound
    cdef Functions found
    cdef void** slots = <void**>&found
    cdef void* library
    cdef const nghttp2_info* info
    cdef size_t i
    for name, (ours, theirs) in _SIZES.items():
        if ours != theirs:
            raise ImportError(f"{name} has {ours} bytes on this machine, not {theirs}")
    if sizeof(Functions) != len(_NAMES) * sizeof(void*):
        raise ImportError("names and functions of nghttp2 do not match")
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL)  # never closed: the pointers must stay good
    if library == NULL:
        raise ImportError(dlerror().decode(errors="replace"))
    for i, name in enumerate(_NAMES):
        slots[i] = dlsym(library, b"nghttp2_" + name)
        if slots[i] == NULL:
            raise ImportError(f"{path.decode()} has no nghttp2_{name.decode()}")
    info = found.version(0)
    version = (info.version_num >> 16, info.version_num >> 8 & 255)
    if version < OLDEST:
        raise ImportError(f"{path.decode()} is nghttp2 {info.version_str.decode()}, too old")
    _functions, _is_bound = found, True
    return info.version_str.decode()
