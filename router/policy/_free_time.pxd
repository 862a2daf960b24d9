# cython: language_level=3
"""When a fleet needs its next request: until then it had better wait in the router."""

from libc.math cimport INFINITY, fmax, fmin
from libc.stdint cimport int64_t, uint8_t

from ._timeline cimport (
    NOBODY,
    Booking,
    Lane,
    empty_step_s,
    lane_advance,
    lane_ahead,
    lane_factor,
    token_s,
)
from ._model cimport Model, can_compare

cdef extern from *:
    """
    #define FORECAST_LEAD 0.5
    """
    const double LEAD "FORECAST_LEAD"   # of an empty step: so long before, a request may come


cdef inline double fleet_room_in(
    Lane* lanes, Py_ssize_t n, Booking* bookings, const Model* model,
    const uint8_t* eligible, const int64_t* active_blocks, double now,
) noexcept nogil:
    """Seconds until one of the eligible lanes has room; 0 if there are none of them.

    INFINITY if every cache is booked out. A worker that owes a first token for longer than is
    usual counts only where there is no other: the costs would not choose it.
    """
    cdef Py_ssize_t number
    cdef Lane* lane
    cdef double soonest = INFINITY
    cdef double factor
    cdef bint nobody = True, late = False
    for number in range(n):
        lane = &lanes[number]
        if not (eligible[number] and lane.present):
            continue
        nobody = False
        if lane.requests > 0.0 and active_blocks[number] >= lane.blocks > 0.0:
            continue
        factor = lane_factor(lane, model.speed.prefill.mean)
        lane_advance(lane, bookings, &model.speed, factor, now)
        if lane.running == 0 and lane.head != NOBODY and now - lane.began > model.ttft:
            late = True
            continue
        soonest = fmin(soonest, lane_room_in(lane, model, factor, now))
        if soonest == 0.0:
            break
    return 0.0 if nobody or (late and soonest == INFINITY) else soonest


cdef inline double lane_room_in(
    const Lane* lane, const Model* model, double factor, double now
) noexcept nogil:
    """Seconds until it needs another prompt to go on computing prompts without a pause.

    The lane was advanced to now.
    """
    cdef double per_step, wait = 0.0
    cdef int64_t ahead
    if lane.running == 0 or not can_compare(model):
        return 0.0
    per_step = empty_step_s(lane, &model.speed, factor)
    ahead = lane_ahead(lane, now)
    if lane.began < now:
        wait = lane.ends - now
    wait += (ahead + lane.budget - 1) // lane.budget * per_step
    wait += ahead * token_s(&model.speed, factor)
    return fmax(0.0, wait - LEAD * per_step)
