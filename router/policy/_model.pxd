# cython: language_level=3
"""What a fleet teaches: the speed of its steps, and what is usual there."""

from libc.math cimport fmin
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._timeline cimport CHUNK, CONTEXT, Booking, Lane, Speed, lane_decoded_s
from ._latency cimport fit_add, fit_predict

cdef enum:
    FEWEST_TOKENS = 8           # of an answer that says how long a token takes
    FEWEST_SAMPLES = 30         # that make a model

cdef extern from *:
    """
    #define FORECAST_RECENT 0.01
    #define FORECAST_LONG_ANSWER 10.0
    """
    const double RECENT "FORECAST_RECENT"   # share of the newest one in a running mean
    const double LONG_ANSWER "FORECAST_LONG_ANSWER"     # times the usual one, at most

cdef struct Model:              # of the fleet
    Speed speed
    double ttft                 # running means: of the time to first token, seconds
    double output               # of the tokens of an answer
    double answer               # of the seconds of an answer, from its first token on
    double prefill_weight       # see ForecastParams
    double decode_weight
    uint64_t told               # first tokens reported


cdef inline bint can_compare(const Model* model) noexcept nogil:
    """Whether enough is known of the fleet to say who is slow, or how long to wait."""
    return model.speed.prefill.samples >= FEWEST_SAMPLES


cdef inline void learn_prefill(
    Model* model, Lane* lane, int64_t tokens, uint32_t steps, double now
) noexcept nogil:
    """So many tokens of the stream, in so many steps, have taken since the anchor."""
    cdef double x[3]
    cdef double took = now - lane.anchor_at
    x[0] = steps
    x[1] = tokens / CHUNK
    x[2] = steps * lane_decoded_s(lane, &model.speed, now)
    if can_compare(model):
        lane.seen_s += took
        lane.expected_s += fit_predict(&model.speed.prefill, x)
    fit_add(&model.speed.prefill, x, took)


cdef inline void learn_first_token(
    Model* model, const Lane* lane, Booking* booking, double now
) noexcept nogil:
    """A first token is out; the lane was advanced to now."""
    model.told += 1
    model.ttft += RECENT * (now - booking.booked_at - model.ttft)
    booking.first_at = now
    booking.context_s = lane.context_s
    booking.requests_s = lane.requests_s
    booking.prefill_s = lane.prefill_s


cdef inline void learn_decode(
    Model* model, const Lane* lane, const Booking* booking, double now, uint32_t output_tokens
) noexcept nogil:
    """A request has ended; 0 tokens: nobody has counted them, so it was one of the usual."""
    cdef double x[3]
    cdef double took = now - booking.first_at
    cdef double stalled = lane.prefill_s - booking.prefill_s
    cdef double tokens = output_tokens if output_tokens > 0 else model.output
    if took <= 0.0:
        return
    if output_tokens > 0:
        model.output += RECENT * (output_tokens - model.output)
    # A request that nobody ended has expired: it says little of how long an answer takes.
    model.answer += RECENT * (fmin(took, LONG_ANSWER * model.answer) - model.answer)
    if tokens < FEWEST_TOKENS or stalled > 0.9 * took:
        return
    x[0] = 1.0
    x[1] = (lane.context_s - booking.context_s) / took / CONTEXT
    x[2] = (lane.requests_s - booking.requests_s) / took
    fit_add(&model.speed.decode, x, (took - stalled) / (tokens - 1))
