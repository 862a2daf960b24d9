"""Kernel: the ids of a text's words, those that were made before."""

cimport cython


@cython.final
cdef class WordIds:
    """Ids of words, in two tables of at most `most` words: a word that is used is in the newer one,
    which takes the place of the older one when it is full."""

    cdef dict _newer
    cdef dict _older
    cdef Py_ssize_t _most        # words of a table
    cdef Py_ssize_t _most_chars  # of a word that is kept

    def __cinit__(self, Py_ssize_t most, Py_ssize_t most_chars):
        if most < 1:
            raise ValueError("a table has at least one word")
        self._newer, self._older = {}, {}
        self._most, self._most_chars = most, most_chars

    def __len__(self):
        return len(self._newer) + len(self._older)

    def look_up(self, str text not None, list ends not None):
        """The ids of each stretch of the text, the last one up to its end; and where those are
        missing that are not known, by word. `ends` are those of the others."""
        cdef list parts = []
        cdef dict missing = {}
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t n = 0
        cdef Py_ssize_t count = len(ends)
        cdef Py_ssize_t end
        cdef str word
        cdef object ids
        for n in range(count + 1):
            end = ends[n] if n < count else len(text)
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
            parts.append(ids)
        return parts, missing

    def keep(self, str word not None, bytes ids not None) -> None:
        """Know the ids of a word from now on, if it is not long."""
        if len(word) > self._most_chars:
            return
        if len(self._newer) >= self._most:
            self._older, self._newer = self._newer, {}
        self._newer[word] = ids
