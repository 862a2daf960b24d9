"""The timelines of engines, requests in flight, what is learnt of them. The face: forecast.py."""

cimport cython
from cython cimport boundscheck, wraparound
from libc.math cimport INFINITY, NAN
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

import numpy

from ...slots._book cimport Book, book_in_use, book_potential, book_potential_of
from ...slots._sequences cimport SequenceBook
from ._arguments cimport read_prompt, require_length, require_time
from ._choice cimport Candidate, Fleet, choose_cheapest, may_wait_for_memory
from ._forecast_cost cimport Estimate, Prompt, estimate_fleet, filled_blocks, foresee
from ._forecast_cost cimport foreseen_s, MUCH_LATER, is_crowded, seconds_until_free, seconds_until_relief
from ._forecast_cost cimport spreads_out, stay_s
from ._model cimport MIN_SAMPLES, Model, begin_answer, believed_tokens, can_compare, cold_s
from ._model cimport end_answer, fade_speeds, model_init
from ._model cimport is_same_step, learn_cached, learn_decode, learn_first_token, learn_prefill
from ._recount cimport recount
from ._timeline cimport NO_BOOKING, Booking, EngineTimeline, stream_attended, timeline_advance
from ._timeline cimport timeline_append, timeline_correct, timeline_slowness, timeline_unlink
from ._timeline cimport timeline_withdraw

cdef object new_array = numpy.empty
cdef object FLOAT64 = numpy.dtype(numpy.float64)
cdef object UINT8 = numpy.dtype(numpy.uint8)

cdef enum:
    DEFAULT_BUDGET = 8192   # prompt tokens in a step, where a worker does not say
    MIN_BOOKINGS = 64       # allocated at least


cdef void* regrown(void* memory, size_t n, size_t size) except NULL:
    """The same with room for n of that size."""
    cdef void* grown = realloc(memory, n * size)
    if grown == NULL:
        raise MemoryError
    return grown


@cython.final
cdef class Forecast:
    """See forecast.py."""

    def __cinit__(self, params):
        self.first_free = NO_BOOKING
        self.soonest_at = NAN
        self.records = {}
        self.ids = []
        model_init(&self.model, params)

    def __dealloc__(self):
        free(self.timelines)
        free(self.candidates)
        free(self.potential)
        free(self.in_use)
        free(self.bookings)

    # Workers

    def add_worker(self, uint32_t number, budget, blocks):
        cdef EngineTimeline* timeline
        self.reserve(<size_t>number + 1)
        timeline = &self.timelines[number]
        if timeline.present:
            raise ValueError(f"worker number {number} is in use")
        memset(timeline, 0, sizeof(EngineTimeline))
        timeline.present = True
        timeline.head = timeline.tail = timeline.first_waiting = NO_BOOKING
        timeline.ends = INFINITY
        self.workers += 1
        self.describe_worker(number, budget, blocks)

    def describe_worker(self, uint32_t number, budget, blocks):
        cdef int64_t tokens = budget or DEFAULT_BUDGET
        cdef double cache = blocks or 0
        cdef EngineTimeline* timeline = self.timeline(number)
        cdef bint was_unknown = timeline.blocks <= 0.0
        timeline.budget = tokens
        timeline.blocks = cache
        return was_unknown and cache > 0.0

    def remove_worker(self, uint32_t number):
        self.timeline(number).present = False
        self.workers -= 1
        for request_id, record in list(self.records.items()):
            if self.bookings[<uint32_t>record].worker == number:
                self.drop(request_id)

    # Requests

    def book(
        self, str request_id not None, uint32_t number, uint32_t isl, uint32_t tokens, double now,
        double blocks=0.0, int64_t block_size=0,
    ):
        return self.book_request(request_id, number, isl, tokens, now, blocks, block_size)

    cdef bint book_request(
        self, str request_id, uint32_t number, uint32_t isl, uint32_t tokens, double now,
        double blocks, int64_t block_size,
    ) except -1:
        cdef EngineTimeline* timeline = self.timeline(number)
        cdef uint32_t record
        cdef double slowness
        cdef Estimate found
        require_time(now)
        if tokens == 0 or tokens > isl:
            raise ValueError(f"{tokens} of {isl} tokens cannot be computed")
        if request_id in self.records:
            return False
        self.model.block_size = block_size or self.model.block_size
        record = self.new_record(request_id)
        self.bookings[record].worker = number
        self.bookings[record].context = isl
        self.bookings[record].claim = isl - tokens
        self.bookings[record].found = -1
        self.bookings[record].cold = cold_s(&self.model, isl)
        tokens = <uint32_t>believed_tokens(&self.model, timeline, isl, isl - tokens)
        slowness = timeline_advance(timeline, self.bookings, &self.model.speed, now)
        foresee(&found, timeline, &self.model, isl, tokens, blocks, slowness, now)
        self.bookings[record].foreseen_s = self.bookings[record].soonest_s = foreseen_s(&found)
        if self.soonest_at == now and self.soonest_isl == isl:  # else no worker was compared
            self.bookings[record].soonest_s = min(foreseen_s(&found), self.soonest_s)
        self.bookings[record].own_s = found.prefill_s
        self.bookings[record].filled = filled_blocks(timeline, &self.model, blocks, now)
        timeline_append(timeline, self.bookings, record, tokens, &self.model.speed, now)
        return True

    def expect(self, str request_id not None, uint32_t number, uint32_t isl, double now):
        cdef EngineTimeline* timeline = self.timeline(number)
        cdef uint32_t record
        require_time(now)
        if request_id in self.records:
            return False
        timeline_advance(timeline, self.bookings, &self.model.speed, now)
        record = self.new_record(request_id)
        self.bookings[record].worker = number
        self.bookings[record].context = isl
        self.bookings[record].booked_at = now
        self.bookings[record].expected = True
        timeline.requests += 1.0
        timeline.context += isl
        return True

    def cached(self, str request_id not None, uint32_t tokens):
        cdef EngineTimeline* timeline
        cdef Booking* booking
        found = self.records.get(request_id)
        if found is None:
            return False
        booking = &self.bookings[<uint32_t>found]
        timeline = &self.timelines[booking.worker]
        timeline.reports = timeline.reports or tokens > 0
        if not (booking.queued and timeline.reports):  # an engine that reports none may say 0
            return False
        booking.found = min(tokens, <uint32_t>booking.context - 1)
        learn_cached(&self.model, timeline, booking)
        return True

    def first_token(self, str request_id not None, double now, bint loaded=False):
        cdef EngineTimeline* timeline
        cdef Booking* booking
        cdef uint32_t record
        cdef int64_t position, steps
        cdef double attended
        cdef bint first, same_step, crowded, held_up
        found = self.records.get(request_id)
        require_time(now)
        if found is None:
            return None
        record = found
        booking = &self.bookings[record]
        timeline = &self.timelines[booking.worker]
        if booking.expected:  # its prompt was computed elsewhere: only its answer says something
            timeline_advance(timeline, self.bookings, &self.model.speed, now)
            booking.expected = False
            begin_answer(timeline, booking, now)
        if not booking.queued:
            return None
        self.late_s = NAN
        crowded = is_crowded(timeline, booking.filled)
        held_up = loaded or (
            crowded and now - booking.booked_at > MUCH_LATER * booking.foreseen_s
        )
        timeline_advance(timeline, self.bookings, &self.model.speed, now)
        position, steps = booking.step_end, booking.step
        if position < 0:  # sooner than forecast: the running step or a later one has done it
            position, steps = timeline.done + timeline.running, timeline.steps + 1
            while position < booking.end:
                position, steps = min(position + timeline.budget, timeline.end), steps + 1
        first = timeline.head == record and position > timeline.anchor
        same_step = first and is_same_step(timeline, &self.model.speed, now)
        attended = stream_attended(self.bookings, record, timeline.anchor, position)
        timeline_unlink(timeline, self.bookings, record)
        if timeline.anchor_at < now or same_step:
            if first:
                if can_compare(&self.model) and not same_step:
                    fade_speeds(self.timelines, self.size, self.workers)
                steps = max(steps, 1)
                self.late_s = learn_prefill(
                    &self.model, timeline, booking, position, attended, steps, now, held_up, same_step
                )
            else:
                timeline.sampled = False
            timeline_correct(timeline, self.bookings, position, &self.model.speed, now)
        learn_first_token(&self.model, timeline, booking, now)
        return booking.worker, booking.foreseen_s, now - booking.booked_at, crowded

    def foreseen_s(self, str request_id not None):
        cdef Booking* booking
        found = self.records.get(request_id)
        if found is None:
            return None
        booking = &self.bookings[<uint32_t>found]
        return None if booking.expected else (booking.foreseen_s, booking.soonest_s)

    def end(self, str request_id not None, double now, uint32_t output_tokens):
        cdef EngineTimeline* timeline
        cdef Booking* booking
        cdef double foreseen_s = 0.0, took_s = 0.0
        found = self.records.get(request_id)
        require_time(now)
        if found is None:
            return None
        booking = &self.bookings[<uint32_t>found]
        timeline = &self.timelines[booking.worker]
        timeline_advance(timeline, self.bookings, &self.model.speed, now)
        if not (booking.queued or booking.expected):
            learn_decode(&self.model, timeline, booking, now, output_tokens, &foreseen_s, &took_s)
        outcome = booking.worker, foreseen_s, took_s
        self.drop(request_id)
        return outcome

    # Estimates

    cdef double load(self) except -1.0:
        """The mean number of a worker's requests now."""
        return len(self.records) / <double>self.workers if self.workers > 0 else 0.0

    @boundscheck(False)  # arrays of `n` entries, checked by read_prompt; n <= size
    @wraparound(False)
    def score(
        self,
        uint32_t isl,
        uint32_t block_size,
        const uint32_t[::1] overlaps,
        const double[::1] blocks,
        const int64_t[::1] in_use,
        const uint8_t[::1] eligible not None,
        double now,
    ):
        cdef Py_ssize_t n = eligible.shape[0]
        cdef Prompt prompt
        cdef double[::1] costs
        read_prompt(
            &prompt, isl, block_size, overlaps, blocks, in_use, n, now, self.load(), &self.model
        )
        self.reserve(n)
        array = new_array(n, FLOAT64)
        self.least_missed = self.least_ttft = INFINITY if n else 0.0
        self.soonest_s, self.soonest_at, self.soonest_isl = INFINITY, now, isl
        if n:
            costs = array
            prompt.spreads = spreads_out(&prompt, self.timelines, n, &eligible[0])
            estimate_fleet(
                &prompt, self.timelines, n, self.bookings, &self.model, now,
                &eligible[0], &costs[0], &self.least_ttft, &self.least_missed, &self.soonest_s, NULL,
            )
        if self.model.speed.decode.samples < MIN_SAMPLES:
            self.least_missed = 0.0  # too little was seen to say
        if not can_compare(&self.model):
            self.least_ttft = 0.0
        return array

    def choose(
        self,
        uint32_t isl,
        uint32_t block_size,
        const uint32_t[::1] overlaps,
        SequenceBook slots not None,
        hashes,
        const uint8_t[::1] eligible not None,
        const double[::1] unheard,
        double unheard_s,
        double now,
        double u,
    ):
        cdef const uint64_t[::1] array
        cdef int64_t asked = 0
        cdef const uint64_t* hash = NULL
        cdef Py_ssize_t n = eligible.shape[0]
        if type(hashes) is bytes:  # a view of an array would take longer to make
            asked = len(<bytes>hashes) // <int64_t>sizeof(uint64_t)
            hash = <const uint64_t*><const char*><bytes>hashes
        elif hashes is not None:
            array = hashes
            asked = array.shape[0]
            if asked:
                hash = &array[0]
        if overlaps is not None:
            require_length(overlaps.shape[0], n)
        if unheard is not None:
            require_length(unheard.shape[0], n)
        return self.choose_of(
            isl, block_size, &overlaps[0] if overlaps is not None and n else NULL, slots, hash,
            asked, &eligible[0] if n else NULL, n, &unheard[0] if unheard is not None and n else NULL,
            unheard_s, now, u,
        )

    cdef int64_t choose_of(
        self, uint32_t isl, uint32_t block_size, const uint32_t* overlaps, SequenceBook slots,
        const uint64_t* hash, int64_t asked, const uint8_t* eligible, Py_ssize_t n,
        const double* unheard, double unheard_s, double now, double u,
    ) except -2:
        cdef Book* book = &slots.book
        cdef int64_t number
        cdef Prompt prompt
        cdef Fleet fleet
        read_prompt(
            &prompt, isl, block_size, None, None, None, n, now, self.load(), &self.model
        )
        prompt.overlaps = overlaps
        require_length(book.n_loads, n)
        if n == 0:
            return -1
        self.reserve(n)
        prompt.spreads = spreads_out(&prompt, self.timelines, n, eligible)
        fleet.n = n
        fleet.timelines, fleet.bookings = self.timelines, self.bookings
        fleet.eligible, fleet.unheard, fleet.unheard_s = eligible, unheard, unheard_s
        if may_wait_for_memory(&fleet, &self.model, book, asked):
            book_potential(book, hash, asked, self.potential, book.n_loads)
            book_in_use(book, self.in_use, book.n_loads)
            prompt.blocks, prompt.in_use = self.potential, self.in_use
        number = choose_cheapest(&prompt, &fleet, &self.model, now, u, self.candidates)
        self.soonest_s, self.soonest_at, self.soonest_isl = fleet.soonest_s, now, isl
        self.chosen_blocks = 0.0
        if number >= 0 and self.timelines[number].blocks > 0.0:
            self.chosen_blocks = book_potential_of(book, hash, asked, <uint32_t>number)
        return number

    def explain(
        self,
        uint32_t isl,
        uint32_t block_size,
        const uint32_t[::1] overlaps,
        const double[::1] blocks,
        const int64_t[::1] in_use,
        uint32_t n,
        double now,
        int64_t only=-1,
    ):
        cdef uint32_t number
        cdef Prompt prompt
        cdef uint8_t[::1] memory
        cdef Estimate* estimates
        read_prompt(
            &prompt, isl, block_size, overlaps, blocks, in_use, n, now, self.load(), &self.model
        )
        self.reserve(n)
        found = {}
        if n:
            memory = new_array(n * sizeof(Estimate), UINT8)
            estimates = <Estimate*>&memory[0]
            if only < 0:  # else it is not compared: what is foreseen there is as it will be
                prompt.spreads = spreads_out(&prompt, self.timelines, n, NULL)
            estimate_fleet(
                &prompt, self.timelines, n, self.bookings, &self.model, now,
                NULL, NULL, NULL, NULL, NULL, estimates,
            )
            for number in range(n):
                if self.timelines[number].present and (only < 0 or number == only):
                    found[number] = estimates[number]  # as a dict of its fields
        return found

    @boundscheck(False)  # arrays of `n` entries, checked below; n <= size
    @wraparound(False)
    def seconds_until_free(
        self, const uint8_t[::1] eligible not None, active_blocks not None,
        double now, bint leaves_some=False, bint memory_only=False,
    ):
        cdef Py_ssize_t n = eligible.shape[0]
        cdef const uint8_t* able = &eligible[0] if n else NULL
        cdef const int64_t[::1] array
        cdef SequenceBook slots
        if isinstance(active_blocks, SequenceBook):
            slots = active_blocks
            return self.free_in_s(able, n, slots, now, leaves_some, memory_only)
        require_time(now)
        array = active_blocks
        require_length(array.shape[0], n)
        self.reserve(n)
        if n == 0:
            return 0.0
        return seconds_until_free(
            self.timelines, n, self.bookings, &self.model, able, &array[0], leaves_some,
            memory_only, now,
        )

    cdef double free_in_s(
        self, const uint8_t* eligible, Py_ssize_t n, SequenceBook slots, double now,
        bint leaves_some, bint memory_only,
    ) except -1.0:
        require_time(now)
        require_length(slots.book.n_loads, n)
        self.reserve(n)
        if n == 0:
            return 0.0
        book_in_use(&slots.book, self.in_use, <uint32_t>n)
        return seconds_until_free(
            self.timelines, n, self.bookings, &self.model, eligible, self.in_use, leaves_some,
            memory_only, now,
        )

    @boundscheck(False)  # an array of `n` entries; n <= size
    @wraparound(False)
    def seconds_until_relief(self, const uint8_t[::1] eligible not None, double now):
        cdef Py_ssize_t n = eligible.shape[0]
        require_time(now)
        self.reserve(n)
        if n == 0:
            return INFINITY
        return seconds_until_relief(
            self.timelines, n, self.bookings, &self.model, &eligible[0], now
        )

    def stay_s(self, uint32_t tokens):
        return stay_s(self.timelines, self.size, &self.model, tokens)

    def cold_s(self, uint32_t isl):
        return cold_s(&self.model, isl)

    # What was learnt

    def learnt(self):
        return (
            [self.model.speed.prefill.theta[i] for i in range(4)],
            [self.model.speed.decode.theta[i] for i in range(3)],
            self.model.ttft,
            self.model.output,
            self.model.answer,
            self.model.stretch,
        )

    @property
    def late_share(self):
        return self.model.missed

    def slowness(self, uint32_t number):
        return timeline_slowness(self.timeline(number), &self.model.speed)

    def __len__(self):
        return len(self.records)

    # Memory

    cdef int reserve(self, size_t n) except -1:
        """Allocate a timeline for each worker number below n; new ones are not present."""
        if n > self.size:
            self.timelines = <EngineTimeline*>regrown(self.timelines, n, sizeof(EngineTimeline))
            self.candidates = <Candidate*>regrown(self.candidates, n, sizeof(Candidate))
            self.potential = <double*>regrown(self.potential, n, sizeof(double))
            self.in_use = <int64_t*>regrown(self.in_use, n, sizeof(int64_t))
            memset(&self.timelines[self.size], 0, (n - self.size) * sizeof(EngineTimeline))
            self.size = <uint32_t>n
        return 0

    cdef EngineTimeline* timeline(self, uint32_t number) except NULL:
        if number >= self.size or not self.timelines[number].present:
            raise ValueError(f"there is no worker number {number}")
        return &self.timelines[number]

    cdef uint32_t new_record(self, str request_id) except? 0xFFFFFFFF:
        """A zeroed booking, not yet in any queue."""
        cdef uint32_t record = self.first_free
        cdef uint32_t capacity
        if record != NO_BOOKING:
            self.first_free = self.bookings[record].after
            self.ids[record] = request_id
        else:
            if self.used == self.capacity:
                capacity = max(MIN_BOOKINGS, 2 * self.capacity)
                self.bookings = <Booking*>regrown(self.bookings, capacity, sizeof(Booking))
                self.capacity = capacity
            record = self.used
            self.used += 1
            self.ids.append(request_id)
        memset(&self.bookings[record], 0, sizeof(Booking))
        self.records[request_id] = record
        return record

    cdef int drop(self, str request_id) except -1:
        """Forget a request and free its booking, whatever ended it."""
        cdef uint32_t record = self.records.pop(request_id)
        cdef Booking* booking = &self.bookings[record]
        cdef EngineTimeline* timeline = &self.timelines[booking.worker]
        if booking.queued:
            timeline_withdraw(timeline, self.bookings, record)
            timeline_unlink(timeline, self.bookings, record)
        elif not booking.expected:
            end_answer(timeline, booking)
        timeline.context -= booking.context
        timeline.requests -= 1.0
        booking.after = self.first_free
        self.first_free = record
        self.ids[record] = None
        return 0

    def check_integrity(self):
        """Recount everything from the bookings; AssertionError if a sum is wrong. For tests."""
        recount(self.timelines, self.size, self.bookings, self.records, self.ids)
