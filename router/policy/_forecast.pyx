# cython: language_level=3
"""Owns the lanes of a fleet and what it has learnt of its speed. The face is forecast.py."""

cimport cython
from cython cimport boundscheck, wraparound
from libc.math cimport INFINITY, isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

import numpy

from ._estimate cimport Estimate, lane_estimate
from ._timeline cimport (
    CHUNK,
    CONTEXT,
    NOBODY,
    Booking,
    Lane,
    lane_advance,
    lane_factor,
    lane_join,
    lane_place,
    lane_unlink,
    lane_withdraw,
)
from ._latency cimport fit_init
from ._model cimport Model, can_compare, learn_decode, learn_first_token, learn_prefill
from ._free_time cimport fleet_room_in

cdef object new_array = numpy.empty
cdef object FLOAT64 = numpy.dtype(numpy.float64)

cdef enum:
    COLUMNS = 6             # doubles in Estimate
    USUAL_BUDGET = 8192     # prompt tokens in a step, where a worker does not tell

cdef const double FADE_SPEED = 0.98  # of what is known of speeds, at a sample of each worker

@cython.final
cdef class Forecast:
    """See forecast.py."""

    cdef Lane* lanes
    cdef readonly uint32_t size
    cdef uint32_t present       # workers
    cdef Booking* bookings
    cdef uint32_t room          # bookings allocated
    cdef uint32_t used          # of them, in use or free
    cdef uint32_t vacant        # first free one, linked by `after`
    cdef dict records           # request id -> booking
    cdef list ids               # booking -> request id
    cdef Model model            # what it has learnt

    def __cinit__(self, params):
        self.vacant = NOBODY
        self.records = {}
        self.ids = []
        self.model.prefill_weight = params.prefill_weight
        self.model.decode_weight = params.decode_weight
        fit_init(&self.model.speed.prefill, params.step_s, params.token_s * CHUNK, 1.0)
        fit_init(&self.model.speed.decode, params.step_s / 2, params.context_s * CONTEXT, 0.0)
        self.model.ttft = params.ttft_s
        self.model.output = params.output_tokens
        self.model.answer = params.output_tokens * params.step_s

    def __dealloc__(self):
        free(self.lanes)
        free(self.bookings)

    # Workers

    def add_worker(self, uint32_t number, budget, blocks):
        self.reach(<size_t>number + 1)
        if self.lanes[number].present:
            raise ValueError(f"worker number {number} is in use")
        memset(&self.lanes[number], 0, sizeof(Lane))
        self.lanes[number].present = True
        self.present += 1
        self.lanes[number].head = self.lanes[number].tail = self.lanes[number].undone = NOBODY
        self.lanes[number].ends = INFINITY
        self.describe_worker(number, budget, blocks)

    def describe_worker(self, uint32_t number, budget, blocks):
        self.lane(number).budget = budget or USUAL_BUDGET
        self.lane(number).blocks = blocks or 0

    def remove_worker(self, uint32_t number):
        self.lane(number).present = False
        self.present -= 1
        for request_id, record in list(self.records.items()):
            if self.bookings[<uint32_t>record].worker == number:
                self.drop(request_id)

    # Requests

    def book(self, str request_id not None, uint32_t number, uint32_t isl, uint32_t tokens,
             double now):
        cdef Lane* lane = self.lane(number)
        cdef Booking* booking
        cdef uint32_t record
        cdef double factor
        require_time(now)
        if tokens == 0 or tokens > isl:
            raise ValueError(f"{tokens} of {isl} tokens cannot be computed")
        if request_id in self.records:
            return False
        record = self.new_record(request_id)
        booking = &self.bookings[record]
        booking.worker = number
        booking.context = isl
        factor = lane_factor(lane, self.model.speed.prefill.mean)
        lane_advance(lane, self.bookings, &self.model.speed, factor, now)
        lane_join(lane, self.bookings, record, tokens, &self.model.speed, factor, now)
        return True

    def first_token(self, str request_id not None, double now):
        cdef Lane* lane
        cdef Booking* booking
        cdef uint32_t record
        cdef int64_t place
        cdef uint32_t steps
        cdef double factor
        cdef bint first
        found = self.records.get(request_id)
        require_time(now)
        if found is None:
            return False
        record = found
        booking = &self.bookings[record]
        if not booking.queued:
            return False
        lane = &self.lanes[booking.worker]
        factor = lane_factor(lane, self.model.speed.prefill.mean)
        lane_advance(lane, self.bookings, &self.model.speed, factor, now)
        place, steps = booking.step_end, booking.step
        if place < 0:  # sooner than forecast: the running step or a later one has done it
            place, steps = lane.done + lane.running, lane.steps + 1
            while place < booking.end:
                place, steps = min(place + lane.budget, lane.end), steps + 1
        first = lane.head == record
        lane_unlink(lane, self.bookings, record)
        if lane.anchor_at < now:
            if first and place > lane.anchor:
                if can_compare(&self.model):
                    self.fade_speeds()
                learn_prefill(&self.model, lane, place - lane.anchor, max(steps, 1), now)
            lane_place(
                lane, self.bookings, place, &self.model.speed,
                lane_factor(lane, self.model.speed.prefill.mean), now,
            )
        learn_first_token(&self.model, lane, booking, now)
        return True

    def end(self, str request_id not None, double now, uint32_t output_tokens):
        cdef Lane* lane
        cdef Booking* booking
        found = self.records.get(request_id)
        require_time(now)
        if found is None:
            return False
        booking = &self.bookings[<uint32_t>found]
        lane = &self.lanes[booking.worker]
        lane_advance(
            lane, self.bookings, &self.model.speed,
            lane_factor(lane, self.model.speed.prefill.mean), now,
        )
        if not booking.queued:
            learn_decode(&self.model, lane, booking, now, output_tokens)
        self.drop(request_id)
        return True

    # Costs

    @boundscheck(False)  # arrays of `n` entries, checked below
    @wraparound(False)
    def score(
        self,
        uint32_t isl,
        uint32_t block_size,
        const uint32_t[::1] overlaps,
        const double[::1] blocks,
        const uint8_t[::1] eligible not None,
        double now,
        bint explain,
    ):
        cdef Py_ssize_t n = eligible.shape[0]
        cdef Py_ssize_t number
        cdef int64_t cached
        cdef Estimate estimate
        cdef double[::1] costs
        cdef double[:, ::1] table
        require_time(now)
        if isl == 0:
            raise ValueError("isl must be at least 1")
        if (
            (overlaps is not None and overlaps.shape[0] != n)
            or (blocks is not None and blocks.shape[0] != n)
        ):
            raise ValueError(f"every array must have an entry for each of {n} worker numbers")
        self.reach(n)
        array = new_array((n, COLUMNS), FLOAT64) if explain else new_array(n, FLOAT64)
        if n == 0:
            return array
        if explain:
            table = array
        else:
            costs = array
        for number in range(n):
            if not explain:
                costs[number] = INFINITY
                if not eligible[number]:
                    continue
            elif not self.lanes[number].present:
                table[number, :] = INFINITY
                continue
            cached = <int64_t>overlaps[number] * block_size if overlaps is not None else 0
            estimate = lane_estimate(
                &self.lanes[number],
                self.bookings,
                &self.model,
                isl,
                isl - min(cached, <int64_t>isl - 1),
                blocks[number] if blocks is not None else 0.0,
                now,
            )
            if explain:
                table[number, 0] = estimate.wait
                table[number, 1] = estimate.prefill
                table[number, 2] = estimate.memory
                table[number, 3] = estimate.delay
                table[number, 4] = estimate.decode
                table[number, 5] = estimate.cost
            else:
                costs[number] = estimate.cost
        return array

    @boundscheck(False)  # arrays of `n` entries, checked below
    @wraparound(False)
    def room_in(
        self,
        const uint8_t[::1] eligible not None,
        const int64_t[::1] active_blocks not None,
        double now,
    ):
        cdef Py_ssize_t n = eligible.shape[0]
        require_time(now)
        if active_blocks.shape[0] != n:
            raise ValueError(f"every array must have an entry for each of {n} worker numbers")
        self.reach(n)
        if n == 0:
            return 0.0
        return fleet_room_in(
            self.lanes, n, self.bookings, &self.model, &eligible[0], &active_blocks[0], now
        )

    cdef void fade_speeds(self) noexcept nogil:
        """Forget a little of how slow each worker was: who gets no requests shows no better."""
        cdef double kept = FADE_SPEED ** (1.0 / self.present)
        cdef uint32_t number
        for number in range(self.size):
            self.lanes[number].seen_s *= kept
            self.lanes[number].expected_s *= kept

    def learnt(self):
        """(prefill, decode, ttft, output tokens, answer): for those who look into it."""
        return (
            [self.model.speed.prefill.theta[i] for i in range(3)],
            [self.model.speed.decode.theta[i] for i in range(3)],
            self.model.ttft,
            self.model.output,
            self.model.answer,
        )

    @property
    def told(self):
        return self.model.told

    def slowness(self, uint32_t number):
        return lane_factor(self.lane(number), self.model.speed.prefill.mean)

    def __len__(self):
        return len(self.records)

    # Care

    cdef int reach(self, size_t n) except -1:
        """Have so many lanes; numbers that were never heard of have left before we came."""
        cdef Lane* grown
        if n > self.size:
            grown = <Lane*>realloc(self.lanes, n * sizeof(Lane))
            if grown == NULL:
                raise MemoryError
            memset(&grown[self.size], 0, (n - self.size) * sizeof(Lane))
            self.lanes = grown
            self.size = <uint32_t>n
        return 0

    cdef Lane* lane(self, uint32_t number) except NULL:
        if number >= self.size or not self.lanes[number].present:
            raise ValueError(f"there is no worker number {number}")
        return &self.lanes[number]

    cdef uint32_t new_record(self, str request_id) except? 0xFFFFFFFF:
        cdef uint32_t record = self.vacant
        cdef uint32_t room
        cdef Booking* grown
        if record != NOBODY:
            self.vacant = self.bookings[record].after
            self.ids[record] = request_id
        else:
            if self.used == self.room:
                room = max(64, 2 * self.room)
                grown = <Booking*>realloc(self.bookings, room * sizeof(Booking))
                if grown == NULL:
                    raise MemoryError
                self.bookings = grown
                self.room = room
            record = self.used
            self.used += 1
            self.ids.append(request_id)
        memset(&self.bookings[record], 0, sizeof(Booking))
        self.records[request_id] = record
        return record

    cdef int drop(self, str request_id) except -1:
        """The one way out."""
        cdef uint32_t record = self.records.pop(request_id)
        cdef Booking* booking = &self.bookings[record]
        cdef Lane* lane = &self.lanes[booking.worker]
        if booking.queued:
            lane_withdraw(lane, self.bookings, record)
            lane_unlink(lane, self.bookings, record)
        lane.context -= booking.context
        lane.requests -= 1.0
        booking.after = self.vacant
        self.vacant = record
        self.ids[record] = None
        return 0

    def check_integrity(self):
        """Recount everything; AssertionError where the sums do not say so. For tests."""
        cdef uint32_t number, record, before
        cdef Lane* lane
        cdef Booking* booking
        queued = 0
        for number in range(self.size):
            lane = &self.lanes[number]
            if not lane.present:
                continue
            assert lane.done <= lane.done + lane.running <= lane.end
            assert lane.running <= lane.budget
            mine = [r for r in self.records.values() if self.bookings[<uint32_t>r].worker == number]
            assert lane.requests == len(mine)
            assert lane.context == sum(self.bookings[<uint32_t>r].context for r in mine)
            record, before = lane.head, NOBODY
            waiting = []
            while record != NOBODY:
                booking = &self.bookings[record]
                assert booking.queued and booking.worker == number and booking.before == before
                assert self.records[self.ids[record]] == record
                assert before == NOBODY or self.bookings[before].end <= booking.end
                assert booking.end <= lane.end
                if booking.step_end < 0:
                    waiting.append(record)
                else:
                    assert not waiting
                before, record = record, booking.after
                queued += 1
            assert lane.tail == before
            assert lane.undone == (waiting[0] if waiting else <uint32_t>NOBODY)
            assert lane.waiting == len(waiting)
            assert lane.waiting_context == sum(
                self.bookings[<uint32_t>r].context for r in waiting
            )
            mine = [r for r in mine if self.bookings[<uint32_t>r].queued]
            assert lane.queued == len(mine)
            assert lane.queued_context == sum(self.bookings[<uint32_t>r].context for r in mine)
        assert queued == sum(self.bookings[<uint32_t>r].queued for r in self.records.values())


cdef inline int require_time(double now) except -1:
    if not isfinite(now):
        raise ValueError(f"now must be finite, not {now}")
    return 0
