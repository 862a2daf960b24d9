"""Kernel: the ids of a text's words, those that were made before."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_1BYTE_KIND, PyUnicode_DATA, PyUnicode_KIND
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from ._cuts cimport Cutter

cdef enum:
    PLACES = 4096            # a power of 2
    SHORT_CHARS = 34
    FEW_IDS = 7
    ID_BYTES = 4


cdef struct Short:
    # A word of few characters, all up to U+00FF, and of few ids: one line of the processor's cache.
    uint8_t chars            # 0: the place is free
    uint8_t ids
    uint8_t text[SHORT_CHARS]
    uint8_t made[FEW_IDS * ID_BYTES]


@cython.final
cdef class WordIds:
    """Ids of words, in two tables of at most `most` words: a word that is used is in the newer one,
    which takes the place of the older one when it is full. `gaps` cuts texts into words.

    Short words are in a third table too, where each has one place, which it may lose to another
    one: there they are found without an object for each."""

    cdef dict _newer
    cdef dict _older
    cdef Cutter _gaps
    cdef Py_ssize_t _most        # words of a table
    cdef Py_ssize_t _most_chars  # of a word that is kept
    cdef Short* _short           # PLACES of them
    cdef uint8_t* _made          # ids of the text that is read
    cdef Py_ssize_t _capacity        # bytes there

    def __cinit__(self, Cutter gaps not None, Py_ssize_t most, Py_ssize_t most_chars):
        if most < 1:
            raise ValueError("a table has at least one word")
        self._newer, self._older, self._gaps = {}, {}, gaps
        self._most, self._most_chars = most, most_chars
        self._short = <Short*>PyMem_Calloc(PLACES, sizeof(Short))
        if self._short == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._short)
        PyMem_Free(self._made)

    def __len__(self):
        return len(self._newer) + len(self._older)

    def known(self, str text not None, Py_ssize_t most=0):
        """(The ids of a text's words, where others are missing there, those words), if at most
        `most` of them are not known; else None: `look_up` may know."""
        cdef Py_ssize_t length = len(text)
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t end
        cdef const uint8_t* at
        cdef Short* place
        cdef list places = [], missing = []
        cdef str word
        cdef bytes ids
        if PyUnicode_KIND(text) != PyUnicode_1BYTE_KIND:
            return None
        at = <const uint8_t*>PyUnicode_DATA(text)
        while begin < length:
            end = self._gaps.next_cut(at, length, begin, begin, length)
            place = &self._short[place_of(at + begin, min(end - begin, SHORT_CHARS))]
            if place.chars == end - begin and memcmp(place.text, at + begin, place.chars) == 0:
                if self._capacity < size + FEW_IDS * ID_BYTES:
                    self._grow(size + FEW_IDS * ID_BYTES)
                memcpy(self._made + size, place.made, FEW_IDS * ID_BYTES)  # more than it has
                size += place.ids * ID_BYTES
                begin = end
                continue
            word = text[begin:end]
            begin = end
            ids = self._found(word)
            if ids is None:
                if len(missing) >= most:
                    return None
                places.append(size)
                missing.append(word)
                continue
            if not ids:
                continue  # of such words alone nothing is made, and there is no room yet
            if self._capacity < size + PyBytes_GET_SIZE(ids):
                self._grow(size + PyBytes_GET_SIZE(ids))
            memcpy(self._made + size, PyBytes_AS_STRING(ids), PyBytes_GET_SIZE(ids))
            size += PyBytes_GET_SIZE(ids)
        return PyBytes_FromStringAndSize(<char*>self._made, size), places, missing

    def look_up(self, str text not None):
        """The ids of each word of the text; and where those are missing that are not known, by
        word."""
        cdef list parts = []
        cdef dict missing = {}
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t n = 0
        cdef Py_ssize_t end
        cdef list ends = self._gaps.cuts(text, 0, 0, len(text))
        cdef str word
        cdef object ids
        ends.append(len(text))
        for n, end in enumerate(ends):
            word = text[begin:end]
            begin = end
            ids = self._found(word)
            if ids is None:
                missing.setdefault(word, []).append(n)
            parts.append(ids)
        return parts, missing

    cdef bytes _found(self, str word):
        """The ids of a word, which is then among the newer ones and the short ones; None: not known."""
        cdef bytes ids = self._newer.get(word)
        if ids is not None:
            self._keep_short(word, ids)
            return ids
        ids = self._older.get(word)
        if ids is not None:
            self.keep(word, ids)
        return ids

    def keep(self, str word not None, bytes ids not None) -> None:
        """Know the ids of a word from now on, if it is not long."""
        if len(word) > self._most_chars:
            return
        if len(self._newer) >= self._most:
            self._older, self._newer = self._newer, {}
        self._newer[word] = ids
        self._keep_short(word, ids)

    cdef int _keep_short(self, str word, bytes ids) except -1:
        cdef Py_ssize_t chars = len(word)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(ids)
        cdef Short* place
        if (
            PyUnicode_KIND(word) != PyUnicode_1BYTE_KIND
            or not 0 < chars <= SHORT_CHARS
            or size > FEW_IDS * ID_BYTES
        ):
            return 0
        place = &self._short[place_of(<const uint8_t*>PyUnicode_DATA(word), chars)]
        place.chars, place.ids = <uint8_t>chars, <uint8_t>(size // ID_BYTES)
        memcpy(place.text, PyUnicode_DATA(word), chars)
        memcpy(place.made, PyBytes_AS_STRING(ids), size)
        return 0

    cdef int _grow(self, Py_ssize_t least) except -1:
        cdef Py_ssize_t capacity = 2 * least + 1024
        cdef void* made = PyMem_Realloc(self._made, capacity)
        if made == NULL:
            raise MemoryError
        self._made, self._capacity = <uint8_t*>made, capacity
        return 0


cdef inline uint32_t place_of(const uint8_t* word, Py_ssize_t chars) noexcept nogil:
    cdef uint32_t mixed = 0
    cdef Py_ssize_t i
    for i in range(chars):
        mixed = (mixed ^ word[i]) * 0x01000193
    return (mixed ^ mixed >> 15) & (PLACES - 1)
