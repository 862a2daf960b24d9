"""Kernel: where a long text is cut into pieces that are encoded, and kept, each by itself.

A cut depends on the characters around it, and on how long the piece before it is; so two texts
that have a long stretch in common have most pieces of it in common, wherever it stands.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.unicode cimport (
    PyUnicode_1BYTE_KIND,
    PyUnicode_2BYTE_KIND,
    PyUnicode_DATA,
    PyUnicode_KIND,
)
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    BEGINS_ATOM = 1
    IS_LETTER = 2
    IS_STOP = 4
    CHARACTER_BITS = 21      # of a code point
    ANCHOR_MASK = 63         # words to an anchor, on average, less one
    FIBONACCI = 0x9E3779B1   # spreads what it multiplies over the upper bits

cdef inline bint is_letter(uint32_t c) noexcept nogil:
    """Of alphabets whose letters are letters in each version of Unicode."""
    return (
        0x4E00 <= c <= 0x9FA5         # Han
        or 0x0410 <= c <= 0x044F      # Cyrillic
        or 0x3041 <= c <= 0x3096      # Hiragana
        or 0x30A1 <= c <= 0x30FA      # Katakana
        or 0xAC00 <= c <= 0xD7A3      # Hangul
    )


cdef inline bint is_stop(uint32_t c) noexcept nogil:
    """An ideographic comma, an ideographic full stop, or a wide comma."""
    return c == 0x3001 or c == 0x3002 or c == 0xFF0C


@cython.final
cdef class Cutter:
    """Cuts before atoms, and in words' gaps: between a letter and a stop, a blank among them."""

    def __cinit__(self, atoms, str stops not None, Py_ssize_t least, Py_ssize_t most):
        cdef dict children = {}
        cdef set ends = set()
        cdef uint32_t node
        cdef uint64_t key, place, size
        for atom in atoms:
            if not atom:
                raise ValueError("an atom has no character")
            first = ord(atom[0])
            if first < 256:
                self._flags[first] |= BEGINS_ATOM
            else:
                self._atoms_above = True
            node = 0
            for character in atom:
                key = 1 + (<uint64_t>node << CHARACTER_BITS | <uint64_t>ord(character))
                node = children.setdefault(key, len(children) + 1)
            ends.add(node)
        size = 16
        while size < 2 * <uint64_t>len(children):
            size *= 2
        self._mask = size - 1
        self._edges = <Edge*>PyMem_Calloc(<size_t>size, sizeof(Edge))
        self._ends = <uint8_t*>PyMem_Calloc(<size_t>len(children) + 1, 1)
        if self._edges == NULL or self._ends == NULL:
            raise MemoryError
        for key, node in children.items():
            place = self._place_of(key)
            self._edges[place].key, self._edges[place].node = key, node
        for node in ends:
            self._ends[node] = 1
        if stops:
            for letter in range(26):
                self._flags[65 + letter] |= IS_LETTER
                self._flags[97 + letter] |= IS_LETTER
        for stop in stops:
            if ord(stop) < 256:
                self._flags[ord(stop)] |= IS_STOP
            elif is_stop(ord(stop)):
                self._stops_above = True
            else:
                raise ValueError("not a stop")
        self._least, self._most = max(least, 1), most

    def __dealloc__(self):
        PyMem_Free(self._edges)
        PyMem_Free(self._ends)

    def cuts(
        self, str text not None, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end
    ):
        """The cuts from `begin` to before `end`, where the last one was at `last`."""
        cdef Py_ssize_t length = len(text)
        cdef list found = []
        if not 0 <= last <= begin or end > length:
            raise ValueError("no stretch of the text")
        if PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND:
            self._find(<const uint8_t*>PyUnicode_DATA(text), length, last, begin, end, found)
        elif PyUnicode_KIND(text) == PyUnicode_2BYTE_KIND:
            self._find(<const uint16_t*>PyUnicode_DATA(text), length, last, begin, end, found)
        else:
            self._find(<const uint32_t*>PyUnicode_DATA(text), length, last, begin, end, found)
        return found

    cdef int _find(
        self,
        const Character* text,
        Py_ssize_t length,
        Py_ssize_t last,
        Py_ssize_t at,
        Py_ssize_t end,
        list found,
    ) except -1:
        while True:
            at = self.next_cut(text, length, last, at, end)
            if at == end:
                return 0
            found.append(at)
            last = at

    cdef Py_ssize_t next_cut(
        self,
        const Character* text,
        Py_ssize_t length,
        Py_ssize_t last,
        Py_ssize_t at,
        Py_ssize_t end,
    ) noexcept nogil:
        cdef uint32_t c
        cdef uint8_t flags
        at = max(at, last + self._least)
        while at < end:
            c = text[at]
            if c < 256:
                flags = self._flags[c]
            else:
                flags = BEGINS_ATOM if self._atoms_above else 0
                if self._stops_above and is_stop(c):
                    flags |= IS_STOP
            if flags & BEGINS_ATOM and self._is_atom(text + at, length - at):
                return at
            if flags & IS_STOP and self._ends_word(text, at) and (
                at - last >= self._most or is_anchor(text, at)
            ):
                return at
            at += 1
        return end

    cdef bint _ends_word(self, const Character* text, Py_ssize_t at) noexcept nogil:
        """Whether the character before is a letter; `at` is at least 1."""
        cdef uint32_t c = text[at - 1]
        return self._flags[c] & IS_LETTER if c < 256 else is_letter(c)

    cdef bint _is_atom(self, const Character* text, Py_ssize_t left) noexcept nogil:
        cdef uint32_t node = 0
        cdef uint64_t key
        cdef Edge* edge
        cdef Py_ssize_t at
        for at in range(left):
            key = 1 + (<uint64_t>node << CHARACTER_BITS | text[at])
            edge = &self._edges[self._place_of(key)]
            if edge.key != key:
                return False
            node = edge.node
            if self._ends[node]:
                return True
        return False

    cdef uint64_t _place_of(self, uint64_t key) noexcept nogil:
        """Where a key of the trie is, or else a free place."""
        cdef uint64_t place = (key * FIBONACCI >> 16) & self._mask
        while self._edges[place].key != 0 and self._edges[place].key != key:
            place = (place + 1) & self._mask
        return place


cdef inline bint is_anchor(const Character* text, Py_ssize_t at) noexcept nogil:
    """Whether a cut is taken here in each text that has these last characters."""
    cdef uint32_t mixed = 0
    cdef Py_ssize_t i
    for i in range(max(at - 8, 0), at):
        mixed = mixed * 31 + text[i]
    return (mixed * <uint32_t>FIBONACCI >> 20) & ANCHOR_MASK == 0
