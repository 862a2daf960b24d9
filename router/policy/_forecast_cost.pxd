"""Estimates from timelines and the model: what a prompt costs a worker, and when one is needed.

A term of the cost is added here and nowhere else: a field of Estimate, under the name that
explanations show it by, its computation, and its part in `cost`. docs/routing.md has the reasons.
"""

from libc.math cimport INFINITY, exp, log1p
from libc.stdint cimport int64_t, uint8_t, uint32_t

from ._model cimport MIN_SAMPLES, Model, believed_tokens, can_compare
from ._speed cimport CONTEXT_TOKENS, attended_s, decode_step_s, token_s
from ._timeline cimport (
    NO_BOOKING,
    Backlog,
    Booking,
    EngineTimeline,
    empty_step_s,
    steps_of,
    timeline_advance,
    timeline_backlog,
    timeline_decode_s,
)

cdef enum:
    MAX_DELAYED = 16            # requests in a step whose waiting is looked at

cdef extern from *:
    """
    #define FORECAST_LATE_SHARE 0.5
    #define FORECAST_LEAD_STEPS 0.5
    #define FORECAST_CROWDED 0.8
    #define FORECAST_MUCH_LATER 2.0
    #define FORECAST_BOOKED_OUT 0.95
    #define FORECAST_LEFT_TO_OTHERS 0.85
    #define FORECAST_ITL_SPREAD 0.08
    #define FORECAST_MEMORY_SPREAD 0.04
    #define FORECAST_MEMORY_RANGE 10.0
    #define FORECAST_EVENED_OUT 0.3
    #define FORECAST_MANY 2.0
    #define FORECAST_MOST_HELD 4.0
    #define FORECAST_MOST_COUNTED 4.0
    #define FORECAST_IDLE_MISS 6.0
    #define FORECAST_LEAST_TOKENS 0.05
    #define FORECAST_LEAST_CACHED 4.0
    """
    const double LATE_SHARE "FORECAST_LATE_SHARE"   # of a first token's delay so far, yet to come
    const double CROWDED "FORECAST_CROWDED"     # share of a cache that is as good as full
    const double MUCH_LATER "FORECAST_MUCH_LATER"   # times what was foreseen: it waited for memory
    const double BOOKED_OUT "FORECAST_BOOKED_OUT"   # and at which no request is sent there that can wait
    const double LEFT_TO_OTHERS "FORECAST_LEFT_TO_OTHERS"   # the same of who is to leave some to others
    const double LEAD_STEPS "FORECAST_LEAD_STEPS"   # empty steps before the end of the prompts
    const double ITL_SPREAD "FORECAST_ITL_SPREAD"   # of what is foreseen, in parts of the objective
    const double MEMORY_SPREAD "FORECAST_MEMORY_SPREAD" # of the blocks in use, in parts of a cache
    const double MEMORY_RANGE "FORECAST_MEMORY_RANGE"   # spreads beyond which an error is none
    const double MOST_HELD "FORECAST_MOST_HELD" # usual answers that one under way is taken to have
    const double MOST_COUNTED "FORECAST_MOST_COUNTED"   # missed objectives that one request costs
    const double IDLE_MISS "FORECAST_IDLE_MISS"   # times more that one counts where engines have time over
    const double LEAST_TOKENS "FORECAST_LEAST_TOKENS"   # in the time of a decode step, however many prompts come
    const double LEAST_CACHED "FORECAST_LEAST_CACHED"   # a prompt's part from which on it counts while workers are idle
    const double EVENED_OUT "FORECAST_EVENED_OUT"   # of those who come, who go where it is calmer
    const double MANY "FORECAST_MANY"   # requests of a worker, which leave no engine time over

cdef struct Prompt:             # a request before the workers; arrays by worker number
    int64_t isl                 # prompt tokens, > 0
    int64_t block_size
    const uint32_t* overlaps    # blocks of prefill that the worker's cache saves; NULL: none
    const double* blocks        # in use there if it got the request; NULL: unknown
    const int64_t* in_use       # in use there without it; NULL: none
    double cold                 # see cold_s
    double felt                 # share of half an answer for which a choice is felt, see felt_share
    double paid                 # share of its computing that others pay for, see paid_share
    bint spreads                # what little of it is cached binds it to no worker, see spreads_out

cdef struct Estimate:           # of one candidate; times in seconds
    double wait_s               # until its prefill can begin
    double unsure_s             # by which the running step may have begun later than forecast
    double prefill_s            # its own steps
    double work_s               # what its tokens and their share of empty steps cost those who come
    double memory_s             # until its blocks fit
    double delay_s              # that it causes those in its first step, weighed by their waiting
    double crowding_s           # that those who come during its answer wait longer for room
    double decode_s             # that it and those decoding there cost each other while it is felt
    double missed               # requests, not seconds, that then miss their ITL objective
    double cost                 # in seconds


cdef inline double foreseen_s(const Estimate* found) noexcept nogil:
    """Until its first token, there, if the running step began as forecast."""
    return found.wait_s + found.prefill_s + found.memory_s


cdef inline double ttft_s(const Estimate* found) noexcept nogil:
    """Until its first token, there."""
    return foreseen_s(found) + found.unsure_s


cdef inline double first_token_cost(
    double waiting, double own, double usual, double cold
) noexcept nogil:
    """What a time to first token counts for: more than once where it is longer than it need be.

    Waiting is held against the usual TTFT, its own computing also against what the prompt takes with
    nothing cached: by the usual TTFT alone a prompt that has to be computed would weigh by how
    short those wait that are cached, eightfold where most are, and no session would leave a worker.
    """
    return (waiting + own) * (1.0 + waiting / usual + own / (usual + cold))


cdef inline Backlog foresee(
    Estimate* found, const EngineTimeline* timeline, const Model* model, int64_t isl,
    int64_t tokens, double blocks, double slowness, double now,
) noexcept nogil:
    """Fill in what makes up the time to first token of a prompt with `tokens` to compute.

    The timeline was advanced to `now`. Returns what it has to compute first.
    """
    cdef double per_step = empty_step_s(timeline, &model.speed, slowness)
    cdef double per_token = token_s(&model.speed, slowness)
    cdef double per_attended = attended_s(&model.speed, slowness)
    cdef Backlog ahead = timeline_backlog(timeline, per_step, per_token, per_attended, now)
    cdef int64_t steps = steps_of(timeline, ahead.tokens + tokens)
    found.wait_s = ahead.seconds
    if timeline.running == 0:
        found.wait_s = unforeseen_wait_s(timeline, model, slowness, per_step, now)
    found.work_s = tokens * (
        per_token + per_attended * (isl - tokens / 2.0)  # what each attends to, on average
    )
    found.prefill_s = (steps - ahead.steps) * per_step + found.work_s
    found.work_s += per_step * tokens / timeline.budget
    found.memory_s = memory_s(timeline, model, blocks)
    return ahead


cdef inline double estimate_seconds(
    Estimate* found, const Prompt* prompt, Py_ssize_t number, EngineTimeline* timeline,
    Booking* bookings, const Model* model, double now,
) noexcept nogil:
    """Fill in what the prompt would cost worker `number`, but for `missed` and the whole cost.

    Takes its timeline to `now`. Returns its slowness. `cost` is that without missed objectives,
    which add to it: no worker costs less.
    """
    cdef int64_t cached = prompt.overlaps[number] * prompt.block_size if prompt.overlaps else 0
    if prompt.spreads and cached * LEAST_CACHED < prompt.isl:
        cached = 0
    cdef int64_t tokens = believed_tokens(model, timeline, prompt.isl, min(cached, prompt.isl))
    cdef double slowness = timeline_advance(timeline, bookings, &model.speed, now)
    cdef double blocks = prompt.blocks[number] if prompt.blocks else 0.0
    cdef Backlog ahead = foresee(found, timeline, model, prompt.isl, tokens, blocks, slowness, now)
    cdef double ttft
    found.unsure_s = unsure_s(timeline, model, slowness, now)
    ttft = ttft_s(found)
    found.crowding_s = found.delay_s = 0.0
    if found.memory_s > 0.0:
        found.crowding_s = crowding_s(
            timeline, model, found.memory_s, prompt.in_use[number] if prompt.in_use else 0.0
        )
    if ahead.tokens > 0:
        found.delay_s = delay_s(
            timeline, bookings, model, &ahead, tokens, token_s(&model.speed, slowness),
            now + found.wait_s,
        )
    found.work_s *= prompt.paid
    found.decode_s = prompt.felt * shared_decode_s(timeline, model, slowness, prompt.isl)
    found.cost = (
        first_token_cost(ttft - found.prefill_s, found.prefill_s, model.ttft, prompt.cold)
        + found.delay_s + found.crowding_s
        + model.prefill_weight * found.work_s
        + model.decode_weight * found.decode_s
    )
    return slowness


cdef inline void estimate_misses(
    Estimate* found, const Prompt* prompt, const EngineTimeline* timeline, const Model* model,
    double slowness,
) noexcept nogil:
    """Fill in the rest: `missed`, and its part in the cost.

    Where all engines are busy an answer that is kept in time is paid for by another one. Where
    they have time over it is not: some other worker meets the objective, for computing anew.
    """
    cdef double over = 1.0 - prompt.paid
    cdef double weight = model.miss_weight * (1.0 + IDLE_MISS * over * over)
    found.missed = missed_objectives(timeline, model, slowness, prompt.isl)
    found.cost += weight * found.missed


cdef inline void estimate_fleet(
    const Prompt* prompt, EngineTimeline* timelines, Py_ssize_t n, Booking* bookings,
    const Model* model, double now,
    const uint8_t* eligible, double* costs, double* least_ttft, double* least_missed,
    double* soonest_s, Estimate* estimates,
) noexcept nogil:
    """Fill `costs`, INFINITY where a worker is not eligible, or every worker's `estimates`.

    The other one is NULL. With the costs go the least of the eligible workers' times to first token
    and of `missed_now`, and `soonest_s`, of `foreseen_s`. The former are 0 for a worker without requests: it has none to spare, and
    what it can do would never show. There is one loop for both, so that the compiler inlines the
    estimate: a call for each worker would make it a sixth slower in large fleets.
    """
    cdef Py_ssize_t number
    cdef Estimate estimate
    cdef double slowness, missed
    for number in range(n):
        if costs != NULL:
            costs[number] = INFINITY
            if not eligible[number]:
                continue
        if not timelines[number].present:
            continue
        slowness = estimate_seconds(
            &estimate, prompt, number, &timelines[number], bookings, model, now
        )
        estimate_misses(&estimate, prompt, &timelines[number], model, slowness)
        if costs != NULL:
            costs[number] = estimate.cost
            soonest_s[0] = min(soonest_s[0], foreseen_s(&estimate))
            if timelines[number].requests > 0.0:
                missed = missed_now(&timelines[number], model, slowness, prompt.isl, estimate.work_s)
                least_missed[0] = min(least_missed[0], missed)
                least_ttft[0] = min(least_ttft[0], ttft_s(&estimate))
            else:
                least_missed[0] = least_ttft[0] = 0.0
        else:
            estimates[number] = estimate


cdef inline double unforeseen_wait_s(
    const EngineTimeline* timeline, const Model* model, double slowness, double per_step, double now
) noexcept nogil:
    """Seconds until a prompt can begin where, by the forecast, no step with prompt tokens runs."""
    if timeline.head != NO_BOOKING and model.first_tokens > 0:  # but a first token is overdue
        return per_step / 4 + min(LATE_SHARE * (now - timeline.began), model.answer)
    if timeline.requests > 0:  # a step of decodes alone is under way
        return slowness * timeline_decode_s(timeline, &model.speed) / 2
    return 0.0


cdef inline double unsure_s(
    const EngineTimeline* timeline, const Model* model, double slowness, double now
) noexcept nogil:
    """Seconds by which the running step may have begun later than forecast, an empty one at most.

    An idle engine begins when a prompt has reached it and woken it up, which nothing shows before
    the first token. Without this term prompts that arrive within the first step of a fleet gather
    in the second step of the engines that got theirs first, for the little that this saves. Where
    requests decode, prompts that share a step interrupt them less often: nothing is added there.
    """
    if timeline.running == 0 or timeline.requests > timeline.queued:
        return 0.0
    return min(now - timeline.began, empty_step_s(timeline, &model.speed, slowness))


cdef inline double delay_s(
    const EngineTimeline* timeline, const Booking* bookings, const Model* model,
    const Backlog* ahead, int64_t tokens, double per_token, double done_at,
) noexcept nogil:
    """Seconds by which the prompt delays those whose last step, over at `done_at`, it fills up.

    A second of theirs weighs what one of the prompt's own waiting does: the slope of
    first_token_cost at the TTFT that they then have.
    """
    cdef int64_t last = ahead.tokens - (ahead.steps - 1) * timeline.budget
    cdef uint32_t record = timeline.tail
    cdef double weight = 0.0, waiting, own
    cdef int count = 0
    while count < MAX_DELAYED and record != NO_BOOKING:
        if bookings[record].end <= timeline.end - last:
            break
        own = bookings[record].own_s
        waiting = done_at - bookings[record].booked_at - own
        weight += 1.0 + (2.0 * waiting + own) / model.ttft
        weight += own / (model.ttft + bookings[record].cold)
        record = bookings[record].before
        count += 1
    return min(tokens, timeline.budget - last) * per_token * weight


cdef inline double held_tokens(
    const EngineTimeline* timeline, const Model* model, double now
) noexcept nogil:
    """Tokens of answers that are in the cache now.

    Of those under way as many as come in the time since their first token, at the usual rate and at
    most MOST_HELD usual answers of each; half a usual one of others, and of all while too few
    answers have ended to say how fast they come. Where lengths vary much, most of those that are
    there at a time are long ones, and hold more than half a usual answer.
    """
    cdef double under_way = timeline.answering / 2
    if model.answers >= MIN_SAMPLES and model.answer > 0.0:
        under_way = (timeline.answering * now - timeline.first_ats) / model.answer
        under_way = max(0.0, min(under_way, MOST_HELD * timeline.answering))
    return model.output * (under_way + (timeline.requests - timeline.answering) / 2)


cdef inline double grown_blocks(const Model* model, double blocks, double tokens) noexcept nogil:
    """Blocks in use there with those of `tokens` of answers."""
    return blocks + tokens / model.block_size if model.block_size > 0 else blocks


cdef inline double memory_s(
    const EngineTimeline* timeline, const Model* model, double blocks
) noexcept nogil:
    """Seconds until `blocks` fit in the cache beside answers: until enough of those have ended.

    Half of a usual answer is there of each: while the prompt is there, usual ones take the place of
    those that are under way now. How many blocks answers take is a guess: the wait is its mean over
    a logistic error of that, so that it grows before the cache is full.
    """
    cdef double over = grown_blocks(model, blocks, timeline.requests * model.output / 2)
    if timeline.blocks <= 0.0 or timeline.requests <= 0.0 or blocks <= 0.0:
        return 0.0
    over = (over / timeline.blocks - 1.0) / MEMORY_SPREAD
    if over < -MEMORY_RANGE:
        return 0.0
    if over < MEMORY_RANGE:
        over = log1p(exp(over))
    return over * MEMORY_SPREAD * model.answer


cdef inline double crowding_s(
    const EngineTimeline* timeline, const Model* model, double memory_with_s, double in_use
) noexcept nogil:
    """Seconds that those who come while the prompt is there wait longer for room because of it.

    Each as much as the wait grows by the blocks that it adds. By Little's law as many come during
    a request's stay as are there.
    """
    return timeline.requests * max(0.0, memory_with_s - memory_s(timeline, model, in_use))


cdef inline double stay_s(
    const EngineTimeline* timelines, uint32_t n, const Model* model, uint32_t tokens
) noexcept nogil:
    """Seconds for which `tokens` would fill a cache of the mean size, 0 if none is known.

    They stay as long as an answer takes, in their share of it: the whole one at most.
    """
    cdef uint32_t number
    cdef double blocks = 0.0
    cdef int64_t count = 0
    for number in range(n):
        if timelines[number].present and timelines[number].blocks > 0.0:
            blocks += timelines[number].blocks
            count += 1
    if count == 0 or model.block_size <= 0:
        return 0.0
    return min(1.0, <double>tokens * count / (blocks * model.block_size)) * model.answer


cdef inline double filled_blocks(
    const EngineTimeline* timeline, const Model* model, double blocks, double now
) noexcept nogil:
    """Blocks in use, those of answers added to `blocks`; INFINITY where the size is unknown."""
    if timeline.blocks <= 0.0:
        return INFINITY
    return grown_blocks(model, blocks, held_tokens(timeline, model, now))


cdef inline bint is_crowded(const EngineTimeline* timeline, double filled) noexcept nogil:
    """Whether an engine with `filled` blocks in use may have had to wait for room, or to preempt.

    When answers end cannot be foreseen, nor anything of room while a size is not known.
    """
    return filled > CROWDED * timeline.blocks > 0.0


cdef inline double felt_share(double load) noexcept nogil:
    """For how much of half an answer a worker feels that it got a request and others did not.

    Until then those who come even it out: by Little's law as many come to a worker in an answer's
    time as are there, and EVENED_OUT of them are not bound to it by what it has cached. A
    difference that ends at a rate of 1, and at that of theirs, lasts 1 over the sum.
    """
    return 1.0 / (1.0 + EVENED_OUT * load)


cdef inline double paid_share(double load) noexcept nogil:
    """The share of a prompt's computing that those who come to its worker pay for.

    By Little's law as many come in an answer's time as are there. Where they are few, no other
    request needs the engine's time: a session may well leave a busy worker for an idle one.
    """
    return min(1.0, load / MANY)


cdef inline bint spreads_out(
    const Prompt* prompt, const EngineTimeline* timelines, Py_ssize_t n, const uint8_t* eligible
) noexcept nogil:
    """Whether less than a quarter of a prompt that is cached counts as none, on all workers: while
    there are few requests, and one of those that may take it is idle.

    With what all prompts begin with, a block of it, all would go to the worker that had it first,
    and evict each other there. An idle one alone would then lose to a busy one that has as much.
    """
    cdef Py_ssize_t number
    if prompt.paid >= 1.0:
        return False
    for number in range(n):
        if timelines[number].present and timelines[number].requests == 0.0:
            if eligible == NULL or eligible[number]:
                return True
    return False


cdef inline double shared_decode_s(
    const EngineTimeline* timeline, const Model* model, double slowness, int64_t isl
) noexcept nogil:
    """Seconds that the request and those decoding there add to each other.

    Requests that decode together do so for half of an answer, on average.
    """
    return slowness * model.output / 2 * (
        model.speed.decode.theta[1] / CONTEXT_TOKENS
        * (timeline.context + timeline.requests * (isl + model.output / 2))
        + model.speed.decode.theta[2] * 2 * timeline.requests
    )


cdef inline double missed_objectives(
    const EngineTimeline* timeline, const Model* model, double slowness, int64_t isl
) noexcept nogil:
    """How many more requests miss their ITL objective if the prompt goes there, itself included.

    MOST_COUNTED at most: a worker just below its objective is left alone, but not at any price, or
    those that are beyond theirs already would get all that comes.
    """
    cdef double token = slowness * model.stretch
    cdef double before = miss_chance(
        model, token * decode_step_s(&model.speed, timeline.requests, timeline.context)
    )
    cdef double after = miss_chance(
        model, token * decode_step_s(&model.speed, timeline.requests + 1.0, timeline.context + isl)
    )
    return min(MOST_COUNTED, timeline.requests * (after - before) + after)


cdef inline double missed_now(
    const EngineTimeline* timeline, const Model* model, double slowness, int64_t isl, double work_s
) noexcept nogil:
    """The same for a refusal: as tokens come with the prompts that are computed there now, with
    `work_s` in which those that decode there stand still, and without a limit.

    What answers were stretched by is known when they have ended, which is late where a flood comes.
    Where the objective is missed already each token that takes longer counts as much as at the
    objective, or the more there are that miss it, the less one more would seem to cost.
    """
    cdef double requests = timeline.requests, objective = model.itl_objective
    cdef double step = slowness * decode_step_s(&model.speed, requests, timeline.context)
    cdef double longer = slowness * decode_step_s(&model.speed, requests + 1.0, timeline.context + isl)
    cdef double tokens = timeline.step_rate * longer + 1.0 - timeline.computing  # in the time of a step
    cdef double stretch = max(model.stretch, 1.0 / max(tokens, LEAST_TOKENS))
    cdef double before = stretch * step
    cdef double after = stretch * longer + work_s / max(1.0, model.output)
    cdef double chance = miss_chance(model, after)
    if after > objective:
        return requests * min(1.0, (after - before) / (4.0 * ITL_SPREAD * objective)) + chance
    return requests * (chance - miss_chance(model, before)) + chance


cdef inline double miss_chance(const Model* model, double itl_s) noexcept nogil:
    """That an answer has a mean ITL above the objective where it is foreseen to be `itl_s`."""
    return 1.0 / (1.0 + exp((1.0 - itl_s / model.itl_objective) / ITL_SPREAD))


cdef inline double seconds_until_free(
    EngineTimeline* timelines, Py_ssize_t n, Booking* bookings, const Model* model,
    const uint8_t* eligible, const int64_t* active_blocks, bint leaves_some, bint memory_only,
    double now,
) noexcept nogil:
    """Seconds until one of the eligible workers should get another request; 0 if there are none.

    INFINITY if every cache is booked out; with `memory_only` else 0. `leaves_some`: of a tenant that is to leave some of the
    cache to others, and no prompts for them to wait behind. A worker whose first token is overdue by more than the
    usual TTFT counts only where there is no other: the costs would not choose it.
    """
    cdef Py_ssize_t number
    cdef EngineTimeline* timeline
    cdef double soonest = INFINITY
    cdef double most = LEFT_TO_OTHERS if leaves_some else BOOKED_OUT
    cdef double slowness, grown
    cdef bint has_candidate = False, has_late = False
    for number in range(n):
        timeline = &timelines[number]
        if not (eligible[number] and timeline.present):
            continue
        has_candidate = True
        if timeline.requests > 0.0 and timeline.blocks > 0.0:
            grown = grown_blocks(model, active_blocks[number], held_tokens(timeline, model, now))
            if grown >= most * timeline.blocks:
                continue
        if memory_only:
            return 0.0
        slowness = timeline_advance(timeline, bookings, &model.speed, now)
        if (
            timeline.running == 0
            and timeline.head != NO_BOOKING
            and now - timeline.began > model.ttft
        ):
            has_late = True
            continue
        soonest = min(soonest, timeline_until_free_s(timeline, model, slowness, leaves_some, now))
        if soonest == 0.0:
            break
    return 0.0 if not has_candidate or (has_late and soonest == INFINITY) else soonest


cdef inline double seconds_until_relief(
    EngineTimeline* timelines, Py_ssize_t n, Booking* bookings, const Model* model,
    const uint8_t* eligible, double now,
) noexcept nogil:
    """Seconds until one of the eligible workers has computed its prompts and ended an answer.

    Of those that it has, one ends in that share of a usual answer. 0 where a worker has nothing to
    do; INFINITY if there are none.
    """
    cdef Py_ssize_t number
    cdef EngineTimeline* timeline
    cdef double soonest = INFINITY, slowness, seconds
    for number in range(n):
        timeline = &timelines[number]
        if not (eligible[number] and timeline.present):
            continue
        slowness = timeline_advance(timeline, bookings, &model.speed, now)
        seconds = timeline_backlog(
            timeline, empty_step_s(timeline, &model.speed, slowness),
            token_s(&model.speed, slowness), attended_s(&model.speed, slowness), now,
        ).seconds
        if timeline.requests > 0.0:
            seconds = max(seconds, model.answer / timeline.requests)
        soonest = min(soonest, seconds)
    return soonest


cdef inline double timeline_until_free_s(
    const EngineTimeline* timeline, const Model* model, double slowness, bint leaves_some, double now
) noexcept nogil:
    """Seconds until this worker needs another prompt to go on computing prompts without a pause.

    As much as `lead` it may have in any case, but of who leaves some to others. The timeline was
    advanced to `now`.
    """
    cdef double per_step
    cdef Backlog ahead
    if timeline.running == 0 or not can_compare(model):
        return 0.0
    per_step = empty_step_s(timeline, &model.speed, slowness)
    ahead = timeline_backlog(
        timeline, per_step, token_s(&model.speed, slowness), attended_s(&model.speed, slowness), now
    )
    if leaves_some:
        return ahead.seconds
    return max(0.0, ahead.seconds - max(model.lead, LEAD_STEPS * per_step))
