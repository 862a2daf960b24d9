"""The timelines of engines and what is learnt of them, for kernels that use them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ...slots._sequences cimport SequenceBook
from ._choice cimport Candidate
from ._model cimport Model
from ._timeline cimport Booking, EngineTimeline


cdef class Forecast:
    cdef EngineTimeline* timelines  # by worker number
    cdef readonly uint32_t size     # of them
    cdef uint32_t workers           # that are present
    cdef Booking* bookings          # an arena
    cdef uint32_t capacity          # bookings allocated
    cdef uint32_t used              # of them, in use or free
    cdef uint32_t first_free        # linked by `after`, NO_BOOKING if there is none
    cdef dict records               # request id -> booking
    cdef list ids                   # booking -> request id, None where free
    cdef Model model
    cdef readonly double late_s     # the last first token beyond what was foreseen; nan: unknown
    cdef readonly double least_ttft # seconds to the first token, wherever the last prompt scored went
    cdef readonly double least_missed   # objectives, wherever the last prompt scored would go
    cdef double soonest_s           # least time to first token of the workers that were compared last
    cdef double soonest_at          # when that was, and for how many tokens; nan: never
    cdef uint32_t soonest_isl
    cdef readonly double chosen_blocks  # of the worker chosen last, with the prompt; 0: no bound
    cdef Candidate* candidates      # `size` of them, to choose among
    cdef double* potential          # blocks of `size` workers, with the prompt
    cdef int64_t* in_use            # and without it

    # `choose` of arrays with an entry for each of n worker numbers: `overlaps`, `eligible` and, if
    # there are any, `unheard`. The number of a worker, -1: none. ValueError as that.
    cdef int64_t choose_of(
        self, uint32_t isl, uint32_t block_size, const uint32_t* overlaps, SequenceBook slots,
        const uint64_t* hash, int64_t asked, const uint8_t* eligible, Py_ssize_t n,
        const double* unheard, double unheard_s, double now, double u,
    ) except -2

    # `book`: whether it was not booked before.
    cdef bint book_request(
        self, str request_id, uint32_t number, uint32_t isl, uint32_t tokens, double now,
        double blocks, int64_t block_size,
    ) except -1

    # `seconds_until_free` of n workers with these bookings.
    cdef double free_in_s(
        self, const uint8_t* eligible, Py_ssize_t n, SequenceBook slots, double now,
        bint leaves_some, bint memory_only,
    ) except -1.0

    cdef double load(self) except -1.0
    cdef int reserve(self, size_t n) except -1
    cdef EngineTimeline* timeline(self, uint32_t number) except NULL
    cdef uint32_t new_record(self, str request_id) except? 0xFFFFFFFF
    cdef int drop(self, str request_id) except -1
