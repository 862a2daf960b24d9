"""Cutter's fields, and what other kernels ask it."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

ctypedef fused Character:
    uint8_t
    uint16_t
    uint32_t


cdef struct Edge:
    uint64_t key             # 1 + (node << CHARACTER_BITS | character); 0: the place is free
    uint32_t node            # that the character leads to


cdef class Cutter:
    cdef uint8_t _flags[256]          # of the characters up to U+00FF
    cdef bint _atoms_above            # an atom begins with another character
    cdef bint _stops_above            # stops are more than blanks
    cdef Py_ssize_t _least, _most     # length of a piece
    cdef Edge* _edges                 # a trie of the atoms: an open hash table
    cdef uint64_t _mask               # of its size
    cdef uint8_t* _ends               # for each node: an atom ends here

    cdef int _find(
        self, const Character* text, Py_ssize_t length, Py_ssize_t last, Py_ssize_t at,
        Py_ssize_t end, list found,
    ) except -1
    # The first cut from `at` to before `end`, where the last one was at `last`; `end`: there is
    # none. The text has `length` characters.
    cdef Py_ssize_t next_cut(
        self, const Character* text, Py_ssize_t length, Py_ssize_t last, Py_ssize_t at,
        Py_ssize_t end,
    ) noexcept nogil
    cdef bint _ends_word(self, const Character* text, Py_ssize_t at) noexcept nogil
    cdef bint _is_atom(self, const Character* text, Py_ssize_t left) noexcept nogil
    cdef uint64_t _place_of(self, uint64_t key) noexcept nogil
