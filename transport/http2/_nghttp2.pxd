"""nghttp2's C interface as far as we use it, called by address.

Declared from the documentation of nghttp2 1.60 to 1.70, whose binary interface (so.14) is stable.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

ctypedef void nghttp2_session  # opaque
ctypedef void nghttp2_session_callbacks  # opaque
ctypedef void nghttp2_option  # opaque


cdef struct nghttp2_info:
    int age
    int version_num  # 0xMMNNPP
    const char* version_str
    const char* proto_str


cdef struct nghttp2_nv:
    uint8_t* name
    uint8_t* value
    size_t namelen
    size_t valuelen
    uint8_t flags  # 1: never put into the peer's dynamic table


cdef struct nghttp2_frame_hd:
    size_t length
    int32_t stream_id
    uint8_t type
    uint8_t flags
    uint8_t reserved


cdef struct nghttp2_rst_stream:
    nghttp2_frame_hd hd
    uint32_t error_code


cdef struct nghttp2_goaway:
    nghttp2_frame_hd hd
    int32_t last_stream_id
    uint32_t error_code
    uint8_t* opaque_data
    size_t opaque_data_len
    uint8_t reserved


cdef struct nghttp2_data:
    nghttp2_frame_hd hd
    size_t padlen  # with the byte that says how much there is


# Of other frames we read the head alone.
cdef union nghttp2_frame:
    nghttp2_frame_hd hd
    nghttp2_data data
    nghttp2_goaway goaway
    nghttp2_rst_stream rst_stream


cdef union nghttp2_data_source:
    int fd
    void* ptr


ctypedef Py_ssize_t (*read_t)(
    nghttp2_session*, int32_t, uint8_t*, size_t, uint32_t*, nghttp2_data_source*, void*
) noexcept


cdef struct nghttp2_data_provider2:
    nghttp2_data_source source
    read_t read_callback


cdef struct nghttp2_settings_entry:
    int32_t settings_id
    uint32_t value


ctypedef int (*on_frame_t)(nghttp2_session*, const nghttp2_frame*, void*) noexcept
ctypedef int (*on_begin_frame_t)(nghttp2_session*, const nghttp2_frame_hd*, void*) noexcept
ctypedef int (*on_header_t)(
    nghttp2_session*, const nghttp2_frame*, const uint8_t*, size_t, const uint8_t*, size_t,
    uint8_t, void*
) noexcept
ctypedef int (*on_data_t)(
    nghttp2_session*, uint8_t, int32_t, const uint8_t*, size_t, void*
) noexcept
ctypedef int (*on_close_t)(nghttp2_session*, int32_t, uint32_t, void*) noexcept
ctypedef int (*unpack_t)(
    nghttp2_session*, void**, const nghttp2_frame_hd*, void*
) noexcept
ctypedef int (*on_error_t)(nghttp2_session*, int, const char*, size_t, void*) noexcept

ctypedef int (*new_t)(
    nghttp2_session**, const nghttp2_session_callbacks*, void*, const nghttp2_option*
) noexcept


cdef struct Functions:
    # What is called of the library. Names are nghttp2's, without their nghttp2_.
    const nghttp2_info* (*version)(int) noexcept
    const char* (*strerror)(int) noexcept
    int (*session_callbacks_new)(nghttp2_session_callbacks**) noexcept
    void (*set_on_begin_frame)(nghttp2_session_callbacks*, on_begin_frame_t) noexcept
    void (*set_on_begin_headers)(nghttp2_session_callbacks*, on_frame_t) noexcept
    void (*set_on_header)(nghttp2_session_callbacks*, on_header_t) noexcept
    void (*set_on_data_chunk_recv)(nghttp2_session_callbacks*, on_data_t) noexcept
    void (*set_on_frame_recv)(nghttp2_session_callbacks*, on_frame_t) noexcept
    void (*set_on_frame_send)(nghttp2_session_callbacks*, on_frame_t) noexcept
    void (*set_on_stream_close)(nghttp2_session_callbacks*, on_close_t) noexcept
    void (*set_on_error)(nghttp2_session_callbacks*, on_error_t) noexcept
    void (*set_unpack_extension)(nghttp2_session_callbacks*, unpack_t) noexcept
    int (*option_new)(nghttp2_option**) noexcept
    void (*option_del)(nghttp2_option*) noexcept
    void (*option_set_no_auto_window_update)(nghttp2_option*, int) noexcept
    void (*option_set_no_closed_streams)(nghttp2_option*, int) noexcept
    void (*option_set_user_recv_extension_type)(nghttp2_option*, uint8_t) noexcept
    void (*option_set_max_outbound_ack)(nghttp2_option*, size_t) noexcept
    void (*option_set_spaces_allowed)(nghttp2_option*, int) noexcept
    void (*option_set_stream_reset_rate_limit)(nghttp2_option*, uint64_t, uint64_t) noexcept
    new_t session_client_new2
    new_t session_server_new2
    void (*session_del)(nghttp2_session*) noexcept
    Py_ssize_t (*session_mem_recv2)(nghttp2_session*, const uint8_t*, size_t) noexcept
    Py_ssize_t (*session_mem_send2)(nghttp2_session*, const uint8_t**) noexcept
    int (*session_want_read)(nghttp2_session*) noexcept
    int (*session_want_write)(nghttp2_session*) noexcept
    int (*session_resume_data)(nghttp2_session*, int32_t) noexcept
    int (*session_set_local_window_size)(nghttp2_session*, uint8_t, int32_t, int32_t) noexcept
    int (*session_consume_connection)(nghttp2_session*, size_t) noexcept
    int (*session_consume_stream)(nghttp2_session*, int32_t, size_t) noexcept
    void* (*session_get_stream_user_data)(nghttp2_session*, int32_t) noexcept
    int (*session_set_stream_user_data)(nghttp2_session*, int32_t, void*) noexcept
    int32_t (*submit_request2)(
        nghttp2_session*, const void*, const nghttp2_nv*, size_t, const nghttp2_data_provider2*,
        void*
    ) noexcept
    int (*submit_response2)(
        nghttp2_session*, int32_t, const nghttp2_nv*, size_t, const nghttp2_data_provider2*
    ) noexcept
    int (*submit_trailer)(nghttp2_session*, int32_t, const nghttp2_nv*, size_t) noexcept
    int (*submit_settings)(
        nghttp2_session*, uint8_t, const nghttp2_settings_entry*, size_t
    ) noexcept
    int (*submit_rst_stream)(nghttp2_session*, uint8_t, int32_t, uint32_t) noexcept
    int (*submit_ping)(nghttp2_session*, uint8_t, const uint8_t*) noexcept
    int (*submit_goaway)(
        nghttp2_session*, uint8_t, int32_t, uint32_t, const uint8_t*, size_t
    ) noexcept
    int (*submit_shutdown_notice)(nghttp2_session*) noexcept
    int (*session_get_last_proc_stream_id)(nghttp2_session*) noexcept


cdef Functions* bound() noexcept  # NULL until `bind` has found the library
