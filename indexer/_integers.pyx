"""Integers from Python as C arrays: the one way in for tokens and hashes."""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDED_RO, PyObject_CheckBuffer, PyObject_GetBuffer, PyBuffer_Release,
)
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "block hashes are defined over little-endian integers"
    #endif
    /* An int that fits one digit is read in place: a prompt is thousands of these. */
    #if PY_VERSION_HEX >= 0x030C0000
    #define DR_IS_SMALL(o) PyUnstable_Long_IsCompact((PyLongObject*)(o))
    #define DR_SMALL(o) ((Py_ssize_t)PyUnstable_Long_CompactValue((PyLongObject*)(o)))
    #else
    #define DR_IS_SMALL(o) ((size_t)(Py_SIZE(o) + 1) <= 2)
    #define DR_SMALL(o) (Py_SIZE(o) * (Py_ssize_t)((PyLongObject*)(o))->ob_digit[0])
    #endif
    #define DR_EXACT_INT(o) PyLong_CheckExact(o)
    /* So is one of two or three digits: a chain of hashes is hundreds of these. 0: it is another. */
    static inline int dr_as_hash(PyObject *o, uint64_t *out) {
    #if PYLONG_BITS_IN_DIGIT == 30
    #if PY_VERSION_HEX >= 0x030C0000
        const digit *d = ((PyLongObject *)o)->long_value.ob_digit;
        uintptr_t tag = ((PyLongObject *)o)->long_value.lv_tag;
        Py_ssize_t n = (tag & 3) ? 0 : (Py_ssize_t)(tag >> 3);
    #else
        const digit *d = ((PyLongObject *)o)->ob_digit;
        Py_ssize_t n = Py_SIZE(o);
    #endif
        if (n == 3 && d[2] < 16) {
            *out = (uint64_t)d[0] | (uint64_t)d[1] << 30 | (uint64_t)d[2] << 60;
            return 1;
        }
        if (n == 2) {
            *out = (uint64_t)d[0] | (uint64_t)d[1] << 30;
            return 1;
        }
    #endif
        return 0;
    }
    """
    bint dr_as_hash(PyObject*, uint64_t*) noexcept nogil
    bint DR_EXACT_INT(PyObject*) noexcept nogil
    bint DR_IS_SMALL(PyObject*) noexcept nogil
    Py_ssize_t DR_SMALL(PyObject*) noexcept nogil

cdef extern from "Python.h":
    PyObject** PySequence_Fast_ITEMS(PyObject*) noexcept nogil
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject*) noexcept nogil
    object PyNumber_Index(object)

cdef uint64_t U32_MAX = 0xFFFFFFFF


@cython.final
@cython.freelist(8)
cdef class UIntView:
    def __dealloc__(self):
        if self.has_buffer:
            PyBuffer_Release(&self.buffer)
        free(self.owned)


cdef UIntView view_integers(object values, int width, str what):
    cdef UIntView view = UIntView.__new__(UIntView)
    if isinstance(values, (list, tuple)):
        copy_items(view, values, width, what)
    elif isinstance(values, str) or not (PyObject_CheckBuffer(values) or hasattr(values, "__iter__")):
        raise TypeError(f"expected integers, not {type(values).__name__}")
    elif not PyObject_CheckBuffer(values) or not view_buffer(view, values, width, what):
        copy_items(view, list(values), width, what)
    return view


cdef int allocate(UIntView view, Py_ssize_t size, int width) except -1:
    view.owned = malloc(size * width if size else 1)
    if view.owned == NULL:
        raise MemoryError()
    view.data = view.owned
    view.size = size
    return 0


cdef uint64_t slow_item(object item, Py_ssize_t position, int width, str what) except? 0:
    """One item that is no one-digit int: its value, checked against the range."""
    cdef object number = item if PyLong_CheckExact(item) else PyNumber_Index(item)
    if number < 0 or number >> (8 * width):
        raise out_of_range(number, position, width, what)
    return PyLong_AsUnsignedLongLong(number)


cdef object out_of_range(object number, Py_ssize_t position, int width, str what):
    return OverflowError(
        f"{what} {number} at position {position} is out of range (0 to 2**{8 * width} - 1)"
    )


cdef int copy_items(UIntView view, object items, int width, str what) except -1:
    cdef Py_ssize_t size = PySequence_Fast_GET_SIZE(<PyObject*>items)
    allocate(view, size, width)
    cdef PyObject** item = PySequence_Fast_ITEMS(<PyObject*>items)
    cdef uint32_t* out32 = <uint32_t*>view.owned
    cdef uint64_t* out64 = <uint64_t*>view.owned
    cdef Py_ssize_t i, small
    cdef uint64_t value
    for i in range(size):
        if DR_EXACT_INT(item[i]) and DR_IS_SMALL(item[i]):
            small = DR_SMALL(item[i])
            if small < 0:
                raise out_of_range(small, i, width, what)
            value = <uint64_t>small  # one digit has 30 bits: it fits either width
        elif width == 8 and DR_EXACT_INT(item[i]) and dr_as_hash(item[i], &value):
            pass
        else:
            value = slow_item(<object>item[i], i, width, what)
            # __index__ may have run anything, even code that shortened the list.
            if PySequence_Fast_GET_SIZE(<PyObject*>items) != size:
                raise RuntimeError(f"the {what} sequence changed while it was read")
            item = PySequence_Fast_ITEMS(<PyObject*>items)
        if width == 4:
            out32[i] = <uint32_t>value
        else:
            out64[i] = value
    return 0


cdef bint view_buffer(UIntView view, object values, int width, str what) except -1:
    """Read a buffer, in place if its items have our width; False: its byte order is foreign."""
    PyObject_GetBuffer(values, &view.buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT)
    view.has_buffer = True
    cdef Py_buffer* buffer = &view.buffer
    cdef const char* form = buffer.format
    cdef bint raw = isinstance(values, (bytes, bytearray)) or (
        isinstance(values, memoryview) and buffer.itemsize == 1
    )
    if buffer.ndim != 1:
        raise ValueError(f"expected one dimension of integers, not {buffer.ndim}")
    if raw:
        if buffer.strides[0] != 1 and buffer.shape[0] > 1:
            return view_buffer_again(view, bytes(values), width, what)
        if buffer.len % width:
            raise ValueError(
                f"{buffer.len} bytes are no whole number of {width}-byte little-endian {what}s"
            )
        view.data = buffer.buf
        view.size = buffer.len // width
        return True
    if form == NULL:
        form = b"B"
    if form[0] in b"@=<":
        form += 1
    elif form[0] in b">!":
        PyBuffer_Release(buffer)
        view.has_buffer = False
        return False
    if form[0] == 0 or form[1] != 0 or form[0] not in b"bBhHiIlLqQnN":
        raise TypeError(f"expected integers, not items of format {buffer.format.decode()!r}")
    cdef bint signed = form[0] in b"bhilqn"
    cdef Py_ssize_t size = buffer.shape[0]
    cdef Py_ssize_t bad
    if buffer.itemsize == width and (buffer.strides[0] == width or size < 2):
        view.data = buffer.buf
        view.size = size
        bad = first_negative(<const uint8_t*>buffer.buf, size, width) if signed else -1
    else:
        allocate(view, size, width)
        bad = copy_strided(
            <const uint8_t*>buffer.buf, size, buffer.strides[0], buffer.itemsize, signed,
            view.owned, width,
        )
    if bad >= 0:
        raise out_of_range(values[bad], bad, width, what)
    return True


cdef bint view_buffer_again(UIntView view, object values, int width, str what) except -1:
    """Start over with another object that holds the same values."""
    PyBuffer_Release(&view.buffer)
    view.has_buffer = False
    return view_buffer(view, values, width, what)


cdef Py_ssize_t first_negative(const uint8_t* data, Py_ssize_t size, int width) noexcept nogil:
    """Position of the first item whose top bit is set, or -1."""
    cdef uint8_t any_bits = 0
    cdef Py_ssize_t i
    for i in range(size):  # no early exit: this loop is vectorised
        any_bits |= data[i * width + width - 1]
    if any_bits < 0x80:
        return -1
    for i in range(size):
        if data[i * width + width - 1] >= 0x80:
            return i
    return -1


cdef Py_ssize_t copy_strided(
    const uint8_t* data, Py_ssize_t size, Py_ssize_t stride, Py_ssize_t itemsize, bint signed,
    void* out, int width,
) noexcept nogil:
    """Convert items of any width; position of the first one out of range, or -1."""
    cdef uint32_t* out32 = <uint32_t*>out
    cdef uint64_t* out64 = <uint64_t*>out
    cdef uint64_t value
    cdef Py_ssize_t i
    for i in range(size):
        value = load(data + i * stride, itemsize, signed)
        if signed and <int64_t>value < 0:
            return i
        if width == 4:
            if value > U32_MAX:
                return i
            out32[i] = <uint32_t>value
        else:
            out64[i] = value
    return -1


cdef inline uint64_t load(const uint8_t* item, Py_ssize_t itemsize, bint signed) noexcept nogil:
    """One item, sign-extended; memcpy because a strided item need not be aligned."""
    cdef uint16_t two
    cdef uint32_t four
    cdef uint64_t eight
    if itemsize == 8:
        memcpy(&eight, item, 8)
        return eight
    if itemsize == 4:
        memcpy(&four, item, 4)
        return <uint64_t><int64_t><int32_t>four if signed else four
    if itemsize == 2:
        memcpy(&two, item, 2)
        return <uint64_t><int64_t><int16_t>two if signed else two
    return <uint64_t><int64_t><int8_t>item[0] if signed else item[0]
