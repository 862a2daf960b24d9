"""EngineTimeline: the steps that one engine is expected to take for the prompts sent to it.

The prompt tokens that were sent to a worker and have to be computed there form a stream, in the
order of booking; an engine's step takes up to `budget` of them. The timeline follows the steps
through the stream by the latency model. A first token corrects it: it says that a step ended.

Invariants: done <= done + running <= end; the queue is sorted by `end`; by the forecast, the
requests before `first_waiting` are computed, it and those behind it are not.
"""

from cython cimport cdivision
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint32_t

from ._latency cimport Part, fit_predict
from ._speed cimport (
    EQUAL_RATIO,
    EQUAL_SPEED,
    MIN_STEP_S,
    SLOWEST,
    Speed,
    attended_s,
    decode_step_s,
    token_s,
)

cdef enum:
    NO_BOOKING = 0xFFFFFFFF

cdef extern from *:
    """
    #define FORECAST_LATELY_S 1.5
    """
    const double LATELY_S "FORECAST_LATELY_S"   # seconds over which `computing` and `step_rate` are

cdef struct Booking:            # a request in flight
    int64_t end                 # position in the stream behind its last prompt token
    int64_t tokens              # prompt tokens to compute, by the forecast
    double cached               # and those before them
    int64_t claim               # prompt tokens that are cached there by the index
    int64_t found               # and by the engine; -1: it did not report them
    int64_t step_end            # end of the step that is forecast to compute that token; -1: none
    uint32_t step               # that step's number after the anchor
    uint32_t worker
    uint32_t before             # neighbours in the queue, NO_BOOKING at the ends
    uint32_t after
    bint queued                 # no first token was reported
    bint expected               # its prompt is computed elsewhere, and no first token was reported
    double context              # prompt tokens
    double booked_at
    double cold                 # cold_s of it at that time
    double own_s                # time that its own steps were foreseen to take
    double foreseen_s           # time to first token that was foreseen then
    double soonest_s            # and the least of any worker that it might have gone to
    double filled               # blocks in use there then, see filled_blocks
    double first_at             # time of its first token, and the timeline's integrals then:
    double context_s
    double requests_s
    double prefill_s

cdef struct EngineTimeline:
    bint present                # the worker number is in use
    int64_t budget              # prompt tokens in a step, at most
    double blocks               # KV-cache blocks of the worker; 0: unknown
    int64_t done                # tokens of the stream computed when the running step began
    int64_t running             # tokens that the running step computes; 0: no step runs
    int64_t end                 # end of the stream
    double began                # when the running step began, or the last one ended
    double ends                 # when the running step ends; INFINITY if none runs
    double attended             # context of each token that the running step computes, summed
    double waiting_attended     # the same of those tokens of the queue behind it
    double anchor_at            # last time at which the position in the stream was known
    int64_t anchor              # that position
    uint32_t steps              # steps since then
    double anchor_context_s     # the integrals then
    double anchor_requests_s
    uint32_t head               # the queue of bookings, NO_BOOKING if it is empty
    uint32_t tail
    uint32_t first_waiting      # first of the queue that is not computed, by the forecast
    double context              # prompt tokens of all bookings
    double requests             # number of all bookings
    double waiting_context      # the same of those from `first_waiting` on
    double waiting
    double queued_context       # and of those in the queue
    double queued
    double answering            # requests whose first token was reported,
    double first_ats            # and the times of those tokens, summed
    double integrated_to        # the integrals below are up to this time
    double context_s            # tokens of context that decode x seconds
    double requests_s           # requests that decode x seconds
    double prefill_s            # seconds in which a step with prompt tokens ran
    double computing            # share of the last LATELY_S in which one did, old ones faded,
    double step_rate            # and how many of them that is a second
    double seen_s               # seconds that prefills took, old ones faded,
    double computed[4]          # and what they computed, as samples of the fit of prefills
    double lately               # times what was expected that the last of them took
    bint sampled                # the anchor is the end of a step that was learnt from, and there
    double sample[4]            # what that step was taken to do,
    double sample_s             # the seconds that it took,
    double sample_weight        # and what it weighed then
    Part prefills               # of the fleet's fits, what this worker took
    Part decodes
    double claimed              # prompt tokens that were cached by the index, old ones faded,
    double confirmed            # and that the engine found of them
    bint reports                # it has ever reported that it found any

cdef struct Backlog:            # what an engine has to compute before a prompt that is sent now
    int64_t tokens              # that its running step does not compute
    int64_t steps               # that those take
    double seconds              # until they are computed, the rest of the running step included


cdef inline double timeline_slowness(
    const EngineTimeline* timeline, const Speed* speed
) noexcept nogil:
    """How many times slower this worker is than the fleet's model.

    Small differences count as none: with them, an idle fleet would always choose the same worker.
    From twice as large ones on they count in full. Nor does being faster: a worker that seems so may
    only have more cached than is known, and would be sent more, and then have still more cached.
    """
    cdef double prior = 4.0 * speed.prefill.mean
    cdef double expected = fit_predict(&speed.prefill, timeline.computed)
    cdef double slowness
    if expected <= 0.0 or prior <= 0.0:
        return 1.0
    if timeline.seen_s + prior <= EQUAL_RATIO * (expected + prior):
        return 1.0
    slowness = (timeline.seen_s + prior) / (expected + prior)
    return min(SLOWEST, slowness, max(1.0, 1.0 + 2.0 * (slowness - 1.0 - EQUAL_SPEED)))


cdef inline double timeline_decode_s(
    const EngineTimeline* timeline, const Speed* speed
) noexcept nogil:
    """Seconds that the requests which decode there now add to a step."""
    return decode_step_s(
        speed,
        timeline.requests - timeline.waiting,
        timeline.context - timeline.waiting_context,
    )


cdef inline double timeline_mean_decode_s(
    const EngineTimeline* timeline, const Speed* speed, double now
) noexcept nogil:
    """Seconds that decodes added to a step, on average, between the anchor and a later `now`."""
    cdef double passed = now - timeline.anchor_at
    return decode_step_s(
        speed,
        (timeline.requests_s - timeline.anchor_requests_s) / passed,
        (timeline.context_s - timeline.anchor_context_s) / passed,
    )


cdef inline void timeline_anchor(
    EngineTimeline* timeline, int64_t position, double now
) noexcept nogil:
    """Note that the engine is known to be at `position`; the timeline was advanced to `now`."""
    timeline.done = timeline.anchor = position
    timeline.anchor_at = now
    timeline.anchor_context_s = timeline.context_s
    timeline.anchor_requests_s = timeline.requests_s
    timeline.steps = 0


cdef inline double empty_step_s(
    const EngineTimeline* timeline, const Speed* speed, double slowness
) noexcept nogil:
    """Seconds that a step takes on top of its prompt tokens."""
    cdef double decodes = speed.prefill.theta[2] * timeline_decode_s(timeline, speed)
    return slowness * max(MIN_STEP_S, speed.prefill.theta[0] + decodes)


@cdivision(True)  # a budget is at least 1
cdef inline int64_t steps_of(const EngineTimeline* timeline, int64_t tokens) noexcept nogil:
    """Steps that compute `tokens` of a prompt, 0 or more of them."""
    if tokens <= timeline.budget:  # mostly, and a division takes as long as the rest
        return tokens > 0
    return (tokens + timeline.budget - 1) // timeline.budget


cdef inline double booking_attended(
    const Booking* booking, int64_t begin, int64_t end
) noexcept nogil:
    """The contexts of those of its tokens that stand in the stream from begin to end, summed."""
    cdef int64_t first = booking.end - booking.tokens
    begin = begin if begin > first else first
    end = end if end < booking.end else booking.end
    if end <= begin:
        return 0.0
    return (end - begin) * (booking.cached - first + (begin + end) / 2.0)


cdef inline double stream_attended(
    const Booking* bookings, uint32_t record, int64_t begin, int64_t end
) noexcept nogil:
    """The same over all bookings from `record` on."""
    cdef double found = 0.0
    while record != NO_BOOKING and bookings[record].end - bookings[record].tokens < end:
        found += booking_attended(&bookings[record], begin, end)
        record = bookings[record].after
    return found


cdef inline void timeline_integrate(EngineTimeline* timeline, double now) noexcept nogil:
    cdef double passed = now - timeline.integrated_to
    cdef double newest
    if passed > 0.0:
        timeline.context_s += (timeline.context - timeline.queued_context) * passed
        timeline.requests_s += (timeline.requests - timeline.queued) * passed
        newest = passed / (LATELY_S + passed)
        timeline.computing -= newest * timeline.computing
        timeline.step_rate -= newest * timeline.step_rate
        if timeline.running > 0:
            timeline.prefill_s += passed
            timeline.computing += newest
            timeline.step_rate += newest / (timeline.ends - timeline.began)
        timeline.integrated_to = now


cdef inline void timeline_begin_step(
    EngineTimeline* timeline, const Booking* bookings, const Speed* speed, double slowness,
    double at,
) noexcept nogil:
    """Begin a step at that time with what is left of the stream, or none.

    A step that had begun is begun anew, with what came behind it. In an empty queue nothing is
    left, though a request that ended in its first step took its tokens with it.
    """
    cdef int64_t left = timeline.end - timeline.done if timeline.head != NO_BOOKING else 0
    timeline.waiting_attended += timeline.attended
    timeline.attended = 0.0
    timeline.running = left if left < timeline.budget else timeline.budget
    timeline.began = at
    timeline.ends = INFINITY
    if timeline.running > 0:
        timeline.attended = stream_attended(
            bookings, timeline.first_waiting, timeline.done, timeline.done + timeline.running
        )
        timeline.waiting_attended -= timeline.attended
        timeline.ends = at + (
            empty_step_s(timeline, speed, slowness)
            + timeline.running * token_s(speed, slowness)
            + timeline.attended * attended_s(speed, slowness)
        )


cdef inline double timeline_advance(
    EngineTimeline* timeline, Booking* bookings, const Speed* speed, double now
) noexcept nogil:
    """Follow the steps that have ended by now. Returns the worker's slowness."""
    cdef double slowness = timeline_slowness(timeline, speed)
    cdef Booking* booking
    while timeline.ends <= now:
        timeline_integrate(timeline, timeline.ends)
        timeline.done += timeline.running
        timeline.steps += 1
        while timeline.first_waiting != NO_BOOKING:
            booking = &bookings[timeline.first_waiting]
            if booking.end > timeline.done:
                break
            booking.step_end = timeline.done
            booking.step = timeline.steps
            timeline.waiting_context -= booking.context
            timeline.waiting -= 1.0
            timeline.first_waiting = booking.after
        timeline.attended = 0.0
        timeline_begin_step(timeline, bookings, speed, slowness, timeline.ends)
    timeline_integrate(timeline, now)
    return slowness


cdef inline void timeline_append(
    EngineTimeline* timeline, Booking* bookings, uint32_t record, int64_t tokens,
    const Speed* speed, double now,
) noexcept nogil:
    """Put a new booking at the end of the queue; the timeline was advanced to `now`."""
    cdef Booking* booking = &bookings[record]
    if timeline.head == NO_BOOKING:
        timeline.end = 0
        timeline.sampled = False
        timeline_anchor(timeline, 0, now)
    timeline.end += tokens
    booking.end = timeline.end
    booking.tokens = tokens
    booking.cached = booking.context - tokens
    booking.step_end = -1
    booking.queued = True
    booking.booked_at = now
    booking.before = timeline.tail
    booking.after = NO_BOOKING
    if timeline.tail == NO_BOOKING:
        timeline.head = record
    else:
        bookings[timeline.tail].after = record
    timeline.tail = record
    if timeline.first_waiting == NO_BOOKING:
        timeline.first_waiting = record
    timeline.context += booking.context
    timeline.requests += 1.0
    timeline.waiting_context += booking.context
    timeline.waiting += 1.0
    timeline.waiting_attended += booking_attended(booking, timeline.end - tokens, timeline.end)
    timeline.queued_context += booking.context
    timeline.queued += 1.0
    if timeline.running == 0 or timeline.began >= now:  # a step that begins now can take it along
        timeline_begin_step(timeline, bookings, speed, timeline_slowness(timeline, speed), now)


cdef inline void timeline_unlink(
    EngineTimeline* timeline, Booking* bookings, uint32_t record
) noexcept nogil:
    """Take a booking out of the queue: its first token is out, or it ended."""
    cdef Booking* booking = &bookings[record]
    cdef int64_t begins = timeline.done + timeline.running
    timeline.attended -= booking_attended(booking, timeline.done, begins)
    timeline.waiting_attended -= booking_attended(booking, begins, booking.end)
    if booking.step_end < 0:
        timeline.waiting_context -= booking.context
        timeline.waiting -= 1.0
        if timeline.first_waiting == record:
            timeline.first_waiting = booking.after
    if booking.before == NO_BOOKING:
        timeline.head = booking.after
    else:
        bookings[booking.before].after = booking.after
    if booking.after == NO_BOOKING:
        timeline.tail = booking.before
    else:
        bookings[booking.after].before = booking.before
    booking.queued = False
    timeline.queued_context -= booking.context
    timeline.queued -= 1.0
    if timeline.head == NO_BOOKING:
        timeline.running = 0
        timeline.ends = INFINITY
        timeline.waiting_context = timeline.waiting = 0.0  # what rounding has left
        timeline.attended = timeline.waiting_attended = 0.0
        timeline.queued_context = timeline.queued = 0.0


cdef inline void timeline_withdraw(
    EngineTimeline* timeline, Booking* bookings, uint32_t record
) noexcept nogil:
    """Take those tokens of a queued booking out of the stream that no step has begun with."""
    cdef Booking* booking = &bookings[record]
    cdef int64_t begins = timeline.done + timeline.running
    cdef int64_t left
    if booking.before != NO_BOOKING and bookings[booking.before].end > begins:
        begins = bookings[booking.before].end
    left = booking.end - begins
    if left <= 0:
        return
    timeline.waiting_attended -= booking_attended(booking, begins, booking.end)
    booking.tokens -= left
    timeline.end -= left
    while record != NO_BOOKING:
        bookings[record].end -= left
        record = bookings[record].after


cdef inline void timeline_correct(
    EngineTimeline* timeline, Booking* bookings, int64_t position, const Speed* speed, double now
) noexcept nogil:
    """Go to where the engine is known to be in its stream: at the end of a step."""
    cdef uint32_t record = timeline.head
    timeline_anchor(timeline, position, now)
    timeline.first_waiting = NO_BOOKING
    timeline.waiting_context = timeline.waiting = 0.0
    timeline.attended = timeline.waiting_attended = 0.0
    while record != NO_BOOKING:
        if bookings[record].end > position:
            timeline.waiting_attended += booking_attended(
                &bookings[record], position, bookings[record].end
            )
            bookings[record].step_end = -1
            if timeline.first_waiting == NO_BOOKING:
                timeline.first_waiting = record
            timeline.waiting_context += bookings[record].context
            timeline.waiting += 1.0
        else:
            bookings[record].step_end = position
            bookings[record].step = 0
        record = bookings[record].after
    timeline_begin_step(timeline, bookings, speed, timeline_slowness(timeline, speed), now)


cdef inline Backlog timeline_backlog(
    const EngineTimeline* timeline, double per_step, double per_token, double per_attended,
    double now,
) noexcept nogil:
    """What is to be computed first; the timeline was advanced to `now`.

    A step that begins now can take another prompt along, so its tokens count as not yet running.
    """
    cdef Backlog found
    cdef double attended = 0.0
    found.tokens = 0
    if timeline.running > 0:
        found.tokens = timeline.end - timeline.done
        attended = timeline.waiting_attended
        if timeline.began < now:
            found.tokens -= timeline.running
        else:
            attended += timeline.attended
    found.steps = steps_of(timeline, found.tokens)
    found.seconds = found.steps * per_step + found.tokens * per_token + attended * per_attended
    if timeline.running > 0 and timeline.began < now:
        found.seconds += timeline.ends - now
    return found
