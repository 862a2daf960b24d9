"""Residuals: the latest predictions of one kind, and how far they scatter. The face: watch.py."""

cimport cython
from libc.math cimport INFINITY, fabs, log
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cdef struct Prediction:
    double residual             # logarithm of how many times longer it took than was foreseen
    double took                 # logarithm of the time that it took
    double foreseen_s
    double took_s


@cython.final
cdef class Residuals:
    """See _residuals.pyi."""

    cdef Prediction* kept           # a ring
    cdef double* ordered            # room for as many values
    cdef uint32_t window
    cdef uint32_t least
    cdef double slack_s
    cdef readonly uint64_t count

    def __cinit__(self, uint32_t window, double slack_s, uint32_t least):
        if not 0 < least <= window:
            raise ValueError(f"{least} predictions of {window}")
        self.window, self.slack_s, self.least = window, slack_s, least
        self.kept = <Prediction*>malloc(window * sizeof(Prediction))
        self.ordered = <double*>malloc(window * sizeof(double))
        if self.kept == NULL or self.ordered == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.kept)
        free(self.ordered)

    def add(self, double foreseen_s, double took_s):
        cdef Prediction* one = &self.kept[self.count % self.window]
        one.took = log(max(0.0, took_s) + self.slack_s)
        one.residual = one.took - log(max(0.0, foreseen_s) + self.slack_s)
        one.foreseen_s, one.took_s = foreseen_s, took_s
        self.count += 1

    def scatter(self):
        if self.count < self.least:
            return 0.0
        return self.scatter_of(False)

    def skill(self):
        cdef double usual
        if self.count < self.least:
            return 1.0
        usual = self.scatter_of(True)
        return 1.0 - self.scatter_of(False) / usual if usual > 0.0 else -INFINITY

    def telling(self):
        cdef double scatter, middle
        cdef const Prediction* one = self.kept
        cdef uint32_t size = self.size(), age
        if size == 0:
            raise ValueError("there is no prediction")
        self.sort(False)
        middle = self.ordered[size // 2]
        scatter = self.scatter()
        for age in range(1, size + 1):
            one = &self.kept[(self.count - age) % self.window]
            if fabs(one.residual - middle) >= scatter:
                break
        return one.foreseen_s, one.took_s

    cdef uint32_t size(self) noexcept nogil:
        """Of the predictions that are kept."""
        return <uint32_t>min(self.count, <uint64_t>self.window)

    cdef void sort(self, bint of_times) noexcept nogil:
        """Order what is kept, by the times or else by the residuals."""
        cdef uint32_t number, place
        cdef double value
        for number in range(self.size()):
            value = self.kept[number].took if of_times else self.kept[number].residual
            place = number
            while place > 0 and self.ordered[place - 1] > value:
                self.ordered[place] = self.ordered[place - 1]
                place -= 1
            self.ordered[place] = value

    cdef double scatter_of(self, bint of_times) noexcept nogil:
        """Median distance from the median, of the upper ones where there are two."""
        cdef uint32_t size = self.size(), below, above, left
        cdef double middle, distance = 0.0
        self.sort(of_times)
        below, above = size // 2, size // 2 + 1     # what comes next on either side, below + 1
        middle = self.ordered[size // 2]
        below += 1
        # The distances in ascending order are those of both sides, merged.
        for left in range(size // 2 + 1):
            if above >= size or (
                below > 0 and middle - self.ordered[below - 1] <= self.ordered[above] - middle
            ):
                below -= 1
                distance = middle - self.ordered[below]
            else:
                distance = self.ordered[above] - middle
                above += 1
        return distance
