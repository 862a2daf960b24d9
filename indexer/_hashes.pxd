# _hashes.pxd: hashes from Python, as a plain vector of u64.
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport strcmp
from operator import index as to_index

cdef extern from "Python.h":
    bint PyLong_CheckExact(PyObject*)
    bint PyList_CheckExact(object)
    bint PyTuple_CheckExact(object)
    Py_ssize_t Py_SIZE(object)
    unsigned long long PyLong_AsUnsignedLongLong(PyObject*) except? 0xFFFFFFFFFFFFFFFF
    PyObject* PyList_GET_ITEM(object, Py_ssize_t)
    PyObject* PyTuple_GET_ITEM(object, Py_ssize_t)

cdef struct Hashes:
    const uint64_t* data
    uint32_t size
    uint64_t* copy       # of a list, owned; else NULL
    bint viewed          # an array's view is held
    Py_buffer view


cdef inline uint64_t as_hash(PyObject* item) except? 0xFFFFFFFFFFFFFFFF:
    if PyLong_CheckExact(item):
        return PyLong_AsUnsignedLongLong(item)
    number = to_index(<object>item)
    return PyLong_AsUnsignedLongLong(<PyObject*>number)


cdef inline int hashes_open(Hashes* hashes, source) except -1:
    """Lend the hashes of a list, a tuple or a one-dimensional u64 array; close when done.

    Raises TypeError for anything else, OverflowError for a number that is no u64.
    """
    cdef Py_ssize_t i, n
    cdef bint is_list = PyList_CheckExact(source)
    hashes.copy = NULL
    hashes.viewed = False
    if is_list or PyTuple_CheckExact(source):
        n = Py_SIZE(source)
        if n > 0x7FFFFFFF:
            raise ValueError(f"{n} hashes are too many")
        hashes.copy = <uint64_t*>malloc((n if n else 1) * sizeof(uint64_t))
        if hashes.copy == NULL:
            raise MemoryError
        try:
            for i in range(n):
                if is_list:
                    if i >= Py_SIZE(source):  # an element's __index__ may do anything
                        raise ValueError("the list changed while it was read")
                    hashes.copy[i] = as_hash(PyList_GET_ITEM(source, i))
                else:
                    hashes.copy[i] = as_hash(PyTuple_GET_ITEM(source, i))
        except BaseException:
            free(hashes.copy)
            raise
        hashes.data = hashes.copy
        hashes.size = <uint32_t>n
        return 0
    if not PyObject_CheckBuffer(source):
        raise TypeError(
            f"hashes are a list, a tuple or an array of uint64, not {type(source).__name__}"
        )
    PyObject_GetBuffer(source, &hashes.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    n = hashes.view.len // 8
    if (
        hashes.view.ndim != 1
        or hashes.view.itemsize != 8
        or not is_unsigned(hashes.view.format)
        or n > 0x7FFFFFFF
    ):
        PyBuffer_Release(&hashes.view)
        raise TypeError("an array of hashes is one-dimensional, of uint64, below 2**31 of them")
    hashes.viewed = True
    hashes.data = <const uint64_t*>hashes.view.buf
    hashes.size = <uint32_t>n
    return 0


cdef inline bint is_unsigned(const char* format) noexcept:
    if format == NULL:
        return False
    if format[0] == c"@" or format[0] == c"=" or format[0] == c"<":
        format += 1
    return strcmp(format, "L") == 0 or strcmp(format, "Q") == 0


cdef inline void hashes_close(Hashes* hashes) noexcept:
    free(hashes.copy)
    if hashes.viewed:
        PyBuffer_Release(&hashes.view)
