"""The cheapest worker for a prompt, found without all of every worker's cost.

Missed objectives take two exponentials of each worker, and only add to its cost. So the rest, which
is the least that a worker can cost, is found for all of them, and missed objectives only of those
whose least is not above the lowest cost that was found. The worker is the one that the costs of
`estimate_fleet` and a draw among them would come to, to the last bit.
"""

from libc.math cimport INFINITY, isfinite
from libc.stdint cimport int64_t, uint8_t

from ...slots._book cimport Book, load_blocks
from ._forecast_cost cimport Estimate, Prompt, estimate_misses, estimate_seconds, foreseen_s
from ._forecast_cost cimport memory_s
from ._model cimport Model
from ._timeline cimport Booking, EngineTimeline

cdef struct Fleet:              # what a choice is made among; arrays by worker number
    Py_ssize_t n
    EngineTimeline* timelines
    Booking* bookings
    const uint8_t* eligible
    const double* unheard       # requests that other routers may have sent there; NULL: none
    double unheard_s            # what each of them counts for
    double soonest_s            # is made the least time to first token of those eligible

cdef struct Candidate:
    double seconds              # its cost without missed objectives and unheard requests
    double cost                 # the same with unheard requests, until missed objectives are added
    double slowness

cdef struct Misses:             # those that were found last, and for what: idle workers are alike
    double slowness
    double requests
    double context
    double cost


cdef inline int64_t choose_cheapest(
    const Prompt* prompt, Fleet* fleet, const Model* learnt, double now, double u,
    Candidate* candidates,
) noexcept nogil:
    """The number of the eligible worker with the lowest finite cost; -1 if there is none.

    `u` in [0, 1) says which of those that cost the same. There is a candidate for each worker, to
    work with.
    """
    cdef Model model = learnt[0]  # a copy: the compiler then knows that nothing below changes it
    cdef Misses last
    cdef Py_ssize_t number, first = -1
    cdef int64_t ties = 0
    cdef double lowest = INFINITY
    fleet.soonest_s = INFINITY
    for number in range(fleet.n):
        candidates[number].cost = INFINITY
        if fleet.eligible[number] and fleet.timelines[number].present:
            look_at(&candidates[number], prompt, fleet, &model, number, now)
            if candidates[number].cost < lowest:
                lowest, first = candidates[number].cost, number
    if first < 0:
        return -1
    last.requests = -1.0  # of no worker
    add_misses(&candidates[first], &last, prompt, fleet, &model, first)
    lowest = candidates[first].cost
    for number in range(fleet.n):
        if number != first and candidates[number].cost <= lowest < INFINITY:
            add_misses(&candidates[number], &last, prompt, fleet, &model, number)
        if not isfinite(candidates[number].cost):
            continue
        if candidates[number].cost < lowest:
            lowest, ties = candidates[number].cost, 1
        elif candidates[number].cost == lowest:
            ties += 1
    ties = <int64_t>(u * ties)
    for number in range(fleet.n):
        if candidates[number].cost == lowest < INFINITY:
            if ties == 0:
                return number
            ties -= 1
    return -1


cdef inline void look_at(
    Candidate* candidate, const Prompt* prompt, Fleet* fleet, const Model* model,
    Py_ssize_t number, double now,
) noexcept nogil:
    """Fill in what is sure without missed objectives."""
    cdef Estimate found
    candidate.slowness = estimate_seconds(
        &found, prompt, number, &fleet.timelines[number], fleet.bookings, model, now
    )
    candidate.seconds = candidate.cost = found.cost
    fleet.soonest_s = min(fleet.soonest_s, foreseen_s(&found))
    if fleet.unheard != NULL:
        candidate.cost += fleet.unheard_s * fleet.unheard[number]


cdef inline void add_misses(
    Candidate* candidate, Misses* last, const Prompt* prompt, const Fleet* fleet,
    const Model* model, Py_ssize_t number,
) noexcept nogil:
    """Make the cost the whole one."""
    cdef const EngineTimeline* timeline = &fleet.timelines[number]
    cdef Estimate found
    if (
        last.requests != timeline.requests
        or last.context != timeline.context
        or last.slowness != candidate.slowness
    ):
        last.requests, last.context = timeline.requests, timeline.context
        last.slowness = candidate.slowness
        found.cost = 0.0
        estimate_misses(&found, prompt, timeline, model, candidate.slowness)
        last.cost = found.cost
    candidate.cost = candidate.seconds + last.cost
    if fleet.unheard != NULL:
        candidate.cost += fleet.unheard_s * fleet.unheard[number]


cdef inline bint may_wait_for_memory(
    const Fleet* fleet, const Model* model, const Book* book, int64_t asked
) noexcept nogil:
    """Whether the prompt's blocks may have to wait for room somewhere, if a worker has none of
    them yet.

    If not, how many it has in use does not matter: see memory_s.
    """
    cdef Py_ssize_t number
    cdef const EngineTimeline* timeline
    for number in range(fleet.n):
        timeline = &fleet.timelines[number]
        if fleet.eligible[number] and timeline.requests > 0.0 and timeline.blocks > 0.0:
            if memory_s(timeline, model, load_blocks(&book.loads[number]) + asked) > 0.0:
                return True
    return False
