# cython: language_level=3
"""A lane: the forecast of one engine's prefill, as the steps it will take.

The prompt tokens that were sent to a worker and have to be computed there are a stream, in the
order of booking; an engine's step takes up to `budget` of them. The forecast follows the steps
through the stream by the latency model. A first token puts it right: a step ended there and then.

Invariants: done <= done + running <= end; the queue is sorted by `end`; the requests before
`undone` are forecast to be computed, it and those behind it are not.
"""

from libc.math cimport INFINITY, fmax, fmin
from libc.stdint cimport int64_t, uint32_t

from ._latency cimport Fit, fit_predict

cdef enum:
    NOBODY = 0xFFFFFFFF         # no record

cdef extern from *:
    """
    #define FORECAST_CONTEXT 1e5
    #define FORECAST_CHUNK 8192.0
    #define FORECAST_SHORTEST 1e-6
    #define FORECAST_EVEN 0.1
    """
    const double CONTEXT "FORECAST_CONTEXT"       # tokens: the unit of contexts in a model
    const double CHUNK "FORECAST_CHUNK"      # tokens: the unit of prompt tokens in a model
    const double SHORTEST "FORECAST_SHORTEST"     # seconds of a step, at least
    const double EVEN "FORECAST_EVEN"           # workers that differ by less are equal

cdef struct Speed:              # of the fleet
    Fit prefill                 # steps, CHUNKs of tokens, seconds of the decodes beside -> seconds
    Fit decode                  # 1, CONTEXT, requests -> seconds of a step without prefill

cdef struct Booking:            # a request in flight
    int64_t end                 # place in the stream behind its last prompt token
    int64_t step_end            # and behind the step that is forecast to compute that token
    uint32_t step               # that step's number after the anchor
    uint32_t worker
    uint32_t before             # neighbours in the queue, NOBODY at the ends
    uint32_t after
    bint queued                 # its first token is not out
    double context              # prompt tokens
    double booked_at
    double first_at             # its first token, and the lane's integrals then:
    double context_s
    double requests_s
    double prefill_s

cdef struct Lane:
    bint present                # the worker number is in use
    int64_t budget              # prompt tokens in a step, at most
    double blocks               # KV-cache blocks of the worker; 0: unknown
    int64_t done                # tokens of the stream computed when the running step began
    int64_t running             # and those it computes; 0: there are none left, by the forecast
    int64_t end                 # the stream's end
    double began                # the running step, or since when none is left
    double ends                 # the running step
    double anchor_at            # the last moment at which the place in the stream was known
    int64_t anchor
    uint32_t steps              # since then
    double anchor_context_s     # the integrals then
    double anchor_requests_s
    uint32_t head               # the queue of bookings, NOBODY if there are none
    uint32_t tail
    uint32_t undone             # the first of them that is not computed, by the forecast
    double context              # prompt tokens of all bookings
    double requests             # how many they are
    double waiting_context      # of those from `undone` on
    double waiting
    double queued_context       # of those in the queue: their first token is not out
    double queued
    double at                   # the integrals below are up to here
    double context_s            # context decoding, by seconds
    double requests_s           # requests decoding, by seconds
    double prefill_s            # seconds in which a prefill was due
    double seen_s               # seconds that prefills took, faded,
    double expected_s           # and that the fleet's model had expected


cdef inline double lane_factor(const Lane* lane, double mean_s) noexcept nogil:
    """How much slower than the fleet's model this worker is; `mean_s` of a usual sample.

    Little differences are noise: if they counted, an idle fleet would always choose the same one.
    """
    cdef double prior = 4.0 * mean_s
    cdef double factor
    if lane.expected_s <= 0.0 or prior <= 0.0:
        return 1.0
    factor = (lane.seen_s + prior) / (lane.expected_s + prior)
    if factor > 1.0:
        return fmax(1.0, factor - EVEN)
    return fmin(1.0, factor + EVEN)


cdef inline double decodes_s(const Speed* speed, double requests, double context) noexcept nogil:
    """Seconds that so many requests add to a step by decoding; at the fleet's usual speed."""
    cdef double x[3]
    x[0] = fmin(1.0, requests)  # on average there may have been less than one
    x[1] = context / CONTEXT
    x[2] = requests
    return fit_predict(&speed.decode, x)


cdef inline double lane_decodes_s(const Lane* lane, const Speed* speed) noexcept nogil:
    """The same of those that decode there now."""
    return decodes_s(speed, lane.requests - lane.waiting, lane.context - lane.waiting_context)


cdef inline double lane_decoded_s(const Lane* lane, const Speed* speed, double now) noexcept nogil:
    """The same of those that decoded there, on average, since the anchor: not later than `now`."""
    cdef double passed = now - lane.anchor_at
    return decodes_s(
        speed,
        (lane.requests_s - lane.anchor_requests_s) / passed,
        (lane.context_s - lane.anchor_context_s) / passed,
    )


cdef inline void lane_anchor(Lane* lane, int64_t place, double now) noexcept nogil:
    """The engine is known to be there in its stream; the lane was advanced to now."""
    lane.done = lane.anchor = place
    lane.anchor_at = now
    lane.anchor_context_s = lane.context_s
    lane.anchor_requests_s = lane.requests_s
    lane.steps = 0


cdef inline double empty_step_s(const Lane* lane, const Speed* speed, double factor) noexcept nogil:
    """Seconds that a step takes on top of its prompt tokens."""
    cdef double decodes = speed.prefill.theta[2] * lane_decodes_s(lane, speed)
    return factor * fmax(SHORTEST, speed.prefill.theta[0] + decodes)


cdef inline double token_s(const Speed* speed, double factor) noexcept nogil:
    return factor * speed.prefill.theta[1] / CHUNK


cdef inline double step_s(const Lane* lane, const Speed* speed, double factor) noexcept nogil:
    """Seconds of a step with the tokens that are running."""
    return empty_step_s(lane, speed, factor) + lane.running * token_s(speed, factor)


cdef inline void lane_integrate(Lane* lane, double now) noexcept nogil:
    cdef double passed = now - lane.at
    if passed > 0.0:
        lane.context_s += (lane.context - lane.queued_context) * passed
        lane.requests_s += (lane.requests - lane.queued) * passed
        if lane.running > 0:
            lane.prefill_s += passed
        lane.at = now


cdef inline void begin_step(
    Lane* lane, const Speed* speed, double factor, double at
) noexcept nogil:
    """The step that begins then, with what is left of the stream."""
    cdef int64_t left = lane.end - lane.done
    lane.running = left if left < lane.budget else lane.budget
    lane.began = at
    lane.ends = at + step_s(lane, speed, factor) if lane.running > 0 else INFINITY


cdef inline void lane_advance(
    Lane* lane, Booking* bookings, const Speed* speed, double factor, double now
) noexcept nogil:
    """Follow the steps that have ended by now."""
    cdef Booking* booking
    while lane.ends <= now:
        lane_integrate(lane, lane.ends)
        lane.done += lane.running
        lane.steps += 1
        while lane.undone != NOBODY and bookings[lane.undone].end <= lane.done:
            booking = &bookings[lane.undone]
            booking.step_end = lane.done
            booking.step = lane.steps
            lane.waiting_context -= booking.context
            lane.waiting -= 1.0
            lane.undone = booking.after
        begin_step(lane, speed, factor, lane.ends)
    lane_integrate(lane, now)


cdef inline void lane_join(
    Lane* lane, Booking* bookings, uint32_t record, int64_t tokens,
    const Speed* speed, double factor, double now,
) noexcept nogil:
    """A request is booked; the lane was advanced to now."""
    cdef Booking* booking = &bookings[record]
    if lane.head == NOBODY:
        lane.end = 0
        lane_anchor(lane, 0, now)
    lane.end += tokens
    booking.end = lane.end
    booking.step_end = -1
    booking.queued = True
    booking.booked_at = now
    booking.before = lane.tail
    booking.after = NOBODY
    if lane.tail == NOBODY:
        lane.head = record
    else:
        bookings[lane.tail].after = record
    lane.tail = record
    if lane.undone == NOBODY:
        lane.undone = record
    lane.context += booking.context
    lane.requests += 1.0
    lane.waiting_context += booking.context
    lane.waiting += 1.0
    lane.queued_context += booking.context
    lane.queued += 1.0
    if lane.running == 0 or lane.began >= now:  # a step that begins now can take it along
        begin_step(lane, speed, factor, now)


cdef inline void lane_unlink(Lane* lane, Booking* bookings, uint32_t record) noexcept nogil:
    """Out of the queue, not off the worker: its first token is out, or it ended."""
    cdef Booking* booking = &bookings[record]
    if booking.step_end < 0:
        lane.waiting_context -= booking.context
        lane.waiting -= 1.0
        if lane.undone == record:
            lane.undone = booking.after
    if booking.before == NOBODY:
        lane.head = booking.after
    else:
        bookings[booking.before].after = booking.after
    if booking.after == NOBODY:
        lane.tail = booking.before
    else:
        bookings[booking.after].before = booking.before
    booking.queued = False
    lane.queued_context -= booking.context
    lane.queued -= 1.0
    if lane.head == NOBODY:
        lane.running = 0
        lane.ends = INFINITY
        lane.waiting_context = lane.waiting = 0.0  # what rounding has left
        lane.queued_context = lane.queued = 0.0


cdef inline void lane_withdraw(Lane* lane, Booking* bookings, uint32_t record) noexcept nogil:
    """What it has not begun to compute of a queued request will not be computed."""
    cdef Booking* booking = &bookings[record]
    cdef int64_t begins = lane.done + lane.running
    cdef int64_t left
    if booking.before != NOBODY and bookings[booking.before].end > begins:
        begins = bookings[booking.before].end
    left = booking.end - begins
    if left <= 0:
        return
    lane.end -= left
    while record != NOBODY:
        bookings[record].end -= left
        record = bookings[record].after


cdef inline void lane_place(
    Lane* lane, Booking* bookings, int64_t place,
    const Speed* speed, double factor, double now,
) noexcept nogil:
    """The engine is known to be there in its stream, at the end of a step."""
    cdef uint32_t record = lane.head
    lane_anchor(lane, place, now)
    lane.undone = NOBODY
    lane.waiting_context = lane.waiting = 0.0
    while record != NOBODY:
        if bookings[record].end > place:
            bookings[record].step_end = -1
            if lane.undone == NOBODY:
                lane.undone = record
            lane.waiting_context += bookings[record].context
            lane.waiting += 1.0
        else:
            bookings[record].step_end = place
            bookings[record].step = 0
        record = bookings[record].after
    begin_step(lane, speed, factor, now)


cdef inline int64_t lane_ahead(const Lane* lane, double now) noexcept nogil:
    """Prompt tokens there that the running step does not compute; the lane was advanced to now."""
    if lane.running == 0:
        return 0
    return lane.end - lane.done - (lane.running if lane.began < now else 0)
