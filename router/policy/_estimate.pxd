# cython: language_level=3
"""What a request would cost a worker, in seconds, by its lane and by what was learnt."""

from libc.math cimport ceil, fmax, fmin
from libc.stdint cimport int64_t, uint32_t

from ._timeline cimport (
    CONTEXT,
    NOBODY,
    Booking,
    Lane,
    empty_step_s,
    lane_advance,
    lane_ahead,
    lane_decodes_s,
    lane_factor,
    token_s,
)
from ._model cimport Model

cdef enum:
    MOST_DELAYED = 16           # requests in a step that are asked how long they wait

cdef extern from *:
    """
    #define FORECAST_LATE 0.5
    """
    const double LATE "FORECAST_LATE"   # of how late a first token is: it takes so much longer

cdef struct Estimate:           # of one candidate, in seconds
    double wait                 # until its prefill can begin
    double prefill              # its own steps
    double memory               # until there is room for its blocks
    double delay                # that those in its first step suffer, weighed by how they wait
    double decode               # that it and those decoding there cost each other
    double cost


cdef inline Estimate lane_estimate(
    Lane* lane, Booking* bookings, const Model* model,
    int64_t isl, int64_t tokens, double blocks, double now,
) noexcept nogil:
    """`tokens` of the prompt are not cached there; `blocks` in use there if it got the request."""
    cdef Estimate found
    cdef double factor = lane_factor(lane, model.speed.prefill.mean)
    cdef double per_step, per_token, ttft
    cdef double over = blocks - lane.blocks
    cdef int64_t ahead, steps, steps_ahead
    lane_advance(lane, bookings, &model.speed, factor, now)
    per_step = empty_step_s(lane, &model.speed, factor)
    per_token = token_s(&model.speed, factor)
    ahead = lane_ahead(lane, now)
    steps_ahead = (ahead + lane.budget - 1) // lane.budget
    found.wait = steps_ahead * per_step + ahead * per_token
    if lane.running > 0:
        if lane.began < now:
            found.wait += lane.ends - now
    elif lane.head != NOBODY and model.told > 0:
        found.wait += per_step / 4 + fmin(LATE * (now - lane.began), model.answer)
    elif lane.requests > 0:  # a step of decodes alone is under way
        found.wait += factor * lane_decodes_s(lane, &model.speed) / 2
    steps = (ahead + tokens + lane.budget - 1) // lane.budget
    found.prefill = (steps - steps_ahead) * per_step + tokens * per_token
    found.delay = 0.0
    if ahead > 0:
        ahead -= (steps_ahead - 1) * lane.budget
        found.delay = (
            min(tokens, lane.budget - ahead) * per_token
            * delayed(lane, bookings, model, ahead, now + found.wait)
        )
    found.memory = 0.0
    if lane.blocks > 0.0 and over > 0.0 and lane.requests > 0.0:
        # As many answers have to end as hold those blocks, if each holds the same.
        found.memory = ceil(over / lane.blocks * lane.requests) * model.answer / lane.requests
    # Half of all pairs: requests that decode together do so for half of an answer on average.
    found.decode = factor * model.output / 2 * (
        model.speed.decode.theta[1] / CONTEXT
        * (lane.context + lane.requests * (isl + model.output / 2))
        + model.speed.decode.theta[2] * 2 * lane.requests
    )
    ttft = found.wait + found.prefill + found.memory
    found.cost = ttft + found.delay + (
        model.prefill_weight * found.prefill + model.decode_weight * found.decode
    ) / (1.0 + ttft / model.ttft)
    return found


cdef inline double delayed(
    const Lane* lane, const Booking* bookings, const Model* model, int64_t last, double done_at
) noexcept nogil:
    """How many requests end in the last step, of `last` tokens so far, which is over at `done_at`.

    One who waits longer than usual counts for more, in proportion.
    """
    cdef uint32_t record = lane.tail
    cdef double weight = 0.0
    cdef int count = 0
    while record != NOBODY and bookings[record].end > lane.end - last and count < MOST_DELAYED:
        weight += fmax(1.0, (done_at - bookings[record].booked_at) / model.ttft)
        record = bookings[record].before
        count += 1
    return weight
