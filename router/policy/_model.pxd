"""Model: what was learnt of a fleet from first tokens and from the ends of answers."""

from libc.math cimport fmin
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._latency cimport fit_add, fit_predict
from ._timeline cimport (
    ATTENDED_TOKENS,
    CHUNK_TOKENS,
    CONTEXT_TOKENS,
    Booking,
    EngineTimeline,
    Speed,
    timeline_mean_decode_s,
)

cdef enum:
    MIN_OUTPUT_TOKENS = 8       # of an answer that says how long a token takes
    MIN_SAMPLES = 30            # prefills seen before the model is relied on

cdef extern from *:
    """
    #define FORECAST_RECENT 0.01
    #define FORECAST_LONG_ANSWER 10.0
    """
    const double RECENT "FORECAST_RECENT"   # share of the newest value in a running mean
    const double LONG_ANSWER "FORECAST_LONG_ANSWER"     # times the usual one, at most

cdef struct Model:              # of the fleet
    Speed speed
    double ttft                 # running means: of the time to first token, seconds
    double output               # of the tokens of an answer
    double answer               # of the seconds of an answer, from its first token on
    double prefill_weight       # see ForecastParams
    double decode_weight
    uint64_t first_tokens       # that were reported


cdef inline bint can_compare(const Model* model) noexcept nogil:
    """Whether enough is known of the fleet to say which worker is slow, or how long to wait."""
    return model.speed.prefill.samples >= MIN_SAMPLES


cdef inline void learn_prefill(
    Model* model, EngineTimeline* timeline, int64_t tokens, double attended, uint32_t steps,
    double now,
) noexcept nogil:
    """Learn that so many tokens, in so many steps, took from the anchor to `now`.

    `attended`: their contexts, summed.
    """
    cdef double x[4]
    cdef double took = now - timeline.anchor_at
    x[0] = steps
    x[1] = tokens / CHUNK_TOKENS
    x[2] = steps * timeline_mean_decode_s(timeline, &model.speed, now)
    x[3] = attended / ATTENDED_TOKENS
    if can_compare(model):
        timeline.seen_s += took
        timeline.expected_s += fit_predict(&model.speed.prefill, x)
    fit_add(&model.speed.prefill, x, took)


cdef inline void learn_first_token(
    Model* model, const EngineTimeline* timeline, Booking* booking, double now
) noexcept nogil:
    """Learn how long a first token took; the timeline was advanced to `now`."""
    model.first_tokens += 1
    model.ttft += RECENT * (now - booking.booked_at - model.ttft)
    booking.first_at = now
    booking.context_s = timeline.context_s
    booking.requests_s = timeline.requests_s
    booking.prefill_s = timeline.prefill_s


cdef inline void learn_decode(
    Model* model, const EngineTimeline* timeline, const Booking* booking, double now,
    uint32_t output_tokens,
) noexcept nogil:
    """Learn from an answer that ends now. 0 output tokens: not counted, so take the usual number.

    The seconds in which prompts were computed there are taken off: they say nothing of decoding.
    """
    cdef double x[4]
    cdef double took = now - booking.first_at
    cdef double stalled = timeline.prefill_s - booking.prefill_s
    cdef double tokens = output_tokens if output_tokens > 0 else model.output
    if took <= 0.0:
        return
    if output_tokens > 0:
        model.output += RECENT * (output_tokens - model.output)
    # A request that nobody ended has expired: it says little of how long an answer takes.
    model.answer += RECENT * (fmin(took, LONG_ANSWER * model.answer) - model.answer)
    if tokens < MIN_OUTPUT_TOKENS or stalled > 0.9 * took:
        return
    x[0] = 1.0
    x[1] = (timeline.context_s - booking.context_s) / took / CONTEXT_TOKENS
    x[2] = (timeline.requests_s - booking.requests_s) / took
    x[3] = 0.0
    fit_add(&model.speed.decode, x, (took - stalled) / (tokens - 1))
