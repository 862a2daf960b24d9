"""Kernel: the ids of a text's words, those that were made before."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_1BYTE_KIND, PyUnicode_DATA, PyUnicode_KIND
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from ._cuts cimport Cutter

cdef enum:
    PAIRS = 4096             # of places; a power of 2
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

    Short words are in a third table too, where each has one of two places, which it may lose to
    others: there they are found without an object for each."""

    cdef dict _newer
    cdef dict _older
    cdef Cutter _gaps
    cdef Py_ssize_t _most        # words of a table
    cdef Py_ssize_t _most_chars  # of a word that is kept
    cdef Short* _short           # PAIRS of them, in each the newer one first
    cdef uint8_t* _made          # ids of the text that is read
    cdef Py_ssize_t _capacity        # bytes there

    def __cinit__(self, Cutter gaps not None, Py_ssize_t most, Py_ssize_t most_chars):
        if most < 1:
            raise ValueError("a table has at least one word")
        self._newer, self._older, self._gaps = {}, {}, gaps
        self._most, self._most_chars = most, most_chars
        self._short = <Short*>PyMem_Calloc(2 * PAIRS, sizeof(Short))
        if self._short == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._short)
        PyMem_Free(self._made)

    def __len__(self):
        return len(self._newer) + len(self._older)

    def known(self, str text not None):
        """The ids of a text whose words are all short and known, else None: `look_up` may know."""
        cdef Py_ssize_t length = len(text)
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t end
        cdef const uint8_t* at
        cdef Short* place
        if PyUnicode_KIND(text) != PyUnicode_1BYTE_KIND:
            return None
        at = <const uint8_t*>PyUnicode_DATA(text)
        while begin < length:
            end = self._gaps.next_cut(at, length, begin, begin, length)
            if end - begin > SHORT_CHARS:
                return None
            place = &self._short[2 * pair_of(at + begin, end - begin)]
            if not is_word(place, at + begin, end - begin):
                place += 1
                if not is_word(place, at + begin, end - begin):
                    return None
            if self._capacity < size + FEW_IDS * ID_BYTES:
                self._grow()
            memcpy(self._made + size, place.made, FEW_IDS * ID_BYTES)  # those behind are overwritten
            size += place.ids * ID_BYTES
            begin = end
        return PyBytes_FromStringAndSize(<char*>self._made, size)

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
            ids = self._newer.get(word)
            if ids is None:
                ids = self._older.get(word)
                if ids is not None:
                    self.keep(word, ids)
                elif word in missing:
                    missing[word].append(n)
                else:
                    missing[word] = [n]
            else:
                self._keep_short(word, ids)
            parts.append(ids)
        return parts, missing

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
        place = &self._short[2 * pair_of(<const uint8_t*>PyUnicode_DATA(word), chars)]
        if is_word(place, <const uint8_t*>PyUnicode_DATA(word), chars):
            return 0
        place[1] = place[0]
        place.chars, place.ids = <uint8_t>chars, <uint8_t>(size // ID_BYTES)
        memcpy(place.text, PyUnicode_DATA(word), chars)
        memcpy(place.made, PyBytes_AS_STRING(ids), size)
        return 0

    cdef int _grow(self) except -1:
        cdef Py_ssize_t capacity = 2 * self._capacity + 1024
        cdef void* made = PyMem_Realloc(self._made, capacity)
        if made == NULL:
            raise MemoryError
        self._made, self._capacity = <uint8_t*>made, capacity
        return 0


cdef inline bint is_word(const Short* place, const uint8_t* word, Py_ssize_t chars) noexcept nogil:
    return place.chars == chars and memcmp(place.text, word, chars) == 0


cdef inline uint32_t pair_of(const uint8_t* word, Py_ssize_t chars) noexcept nogil:
    cdef uint32_t mixed = 0
    cdef Py_ssize_t i
    for i in range(chars):
        mixed = (mixed ^ word[i]) * 0x01000193
    return (mixed ^ mixed >> 15) & (PAIRS - 1)
