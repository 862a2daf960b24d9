from libc.stdint cimport uint32_t


cdef class TokenBytes:
    cdef bytes joined        # of all tokens, in the order of their ids
    cdef uint32_t* starts    # where each one's begin there, and one more: where the last one's end
    cdef Py_ssize_t count    # ids: all are below


cdef class ByteText:
    cdef TokenBytes tokens
    cdef bytes shown         # by id: 1 has text
    cdef char[4] pending     # the first bytes of a character
    cdef Py_ssize_t left     # how many they are

    cdef str feed_many(self, const uint32_t[::1] ids)
    cdef str decode(self, const char* data, Py_ssize_t size)
