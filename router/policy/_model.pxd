"""Model: what was learnt of a fleet from first tokens and from the ends of answers."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._latency cimport fit_add, fit_amend, fit_init, fit_predict
from ._speed cimport ATTENDED_TOKENS, CHUNK_TOKENS, CONTEXT_TOKENS, Speed, attended_s, token_s
from ._timeline cimport (
    Booking,
    EngineTimeline,
    booking_attended,
    empty_step_s,
    timeline_mean_decode_s,
    timeline_slowness,
)

cdef enum:
    MIN_OUTPUT_TOKENS = 8       # of an answer that says how long a token takes
    COLD_BUDGET = 8192          # prompt tokens in a step of the usual engine
    MIN_SAMPLES = 30            # prefills, or answers, seen before the model is relied on

cdef extern from *:
    """
    #define FORECAST_RECENT 0.01
    #define FORECAST_FADE_SPEED 0.98
    #define FORECAST_LONG_ANSWER 10.0
    #define FORECAST_KEPT_CLAIMS 0.97
    #define FORECAST_KEPT_EXTRA 0.995
    #define FORECAST_CLAIM_PRIOR 5e4
    #define FORECAST_STRETCH_RECENT 0.02
    #define FORECAST_MOST_STRETCH 4.0
    #define FORECAST_MOST_SLOWER 2.0
    #define FORECAST_SAME_STEP 0.5
    #define FORECAST_MISSED_RECENT 0.02
    """
    const double RECENT "FORECAST_RECENT"   # share of the newest value in a running mean
    const double FADE_SPEED "FORECAST_FADE_SPEED"   # of speeds, at a sample of each worker
    const double KEPT_CLAIMS "FORECAST_KEPT_CLAIMS"     # of a worker's claims, at each new one
    const double KEPT_EXTRA "FORECAST_KEPT_EXTRA"       # of what was found beyond claims
    const double CLAIM_PRIOR "FORECAST_CLAIM_PRIOR"     # tokens' worth of trust in the index
    const double LONG_ANSWER "FORECAST_LONG_ANSWER"     # times the usual one, at most
    const double STRETCH_RECENT "FORECAST_STRETCH_RECENT"   # share of the newest stretch
    const double MOST_STRETCH "FORECAST_MOST_STRETCH"   # that one answer counts with
    const double MOST_SLOWER "FORECAST_MOST_SLOWER"     # times, that one prefill alone may teach
    const double MISSED_RECENT "FORECAST_MISSED_RECENT"     # share of the newest answer in `missed`
    const double SAME_STEP "FORECAST_SAME_STEP"     # empty steps: first tokens nearer are of one step

cdef struct Model:              # of the fleet
    Speed speed
    double ttft                 # running means: of the time to first token, seconds
    double output               # of the tokens of an answer
    double answer               # of the seconds of an answer, from its first token on
    double stretch              # decode steps' time that a token takes, prompts beside included
    double missed               # share of the answers of late that missed their ITL objective
    double unclaimed            # prompt tokens not reported as cached, old ones faded,
    double extra                # and that engines found cached of them
    double prefill_weight       # see ForecastParams
    double decode_weight
    double miss_weight
    double itl_objective        # seconds
    double lead                 # seconds of prompts that an engine may have without a hold
    int64_t block_size          # of the latest booking that gave one; 0: unknown
    uint64_t first_tokens       # that were reported
    uint64_t answers            # that ended after their first token


cdef inline int model_init(Model* model, params) except -1:
    """Believe what the ForecastParams say, until something was seen; the model is zeroed."""
    model.prefill_weight = params.prefill_weight
    model.decode_weight = params.decode_weight
    model.miss_weight = params.miss_weight
    model.itl_objective = params.itl_objective_s
    model.lead = params.lead_s
    fit_init(&model.speed.prefill, params.step_s, params.token_s * CHUNK_TOKENS, 1.0, 0.0)
    fit_init(&model.speed.decode, params.step_s / 2, params.context_s * CONTEXT_TOKENS, 0.0, 0.0)
    model.ttft = params.ttft_s
    model.output = params.output_tokens
    model.answer = params.output_tokens * params.step_s
    model.stretch = 1.0
    return 0


cdef inline bint can_compare(const Model* model) noexcept nogil:
    """Whether enough is known of the fleet to say which worker is slow, or how long to wait."""
    return model.speed.prefill.samples >= MIN_SAMPLES


cdef inline double cold_s(const Model* model, int64_t isl) noexcept nogil:
    """Seconds of a prompt on an idle engine of the fleet's usual speed with nothing cached."""
    cdef int64_t steps = (isl + COLD_BUDGET - 1) // COLD_BUDGET
    return steps * model.speed.prefill.theta[0] + isl * (
        token_s(&model.speed, 1.0) + attended_s(&model.speed, 1.0) * isl / 2
    )


cdef inline int64_t believed_tokens(
    const Model* model, const EngineTimeline* timeline, int64_t isl, int64_t claim
) noexcept nogil:
    """Prompt tokens that a worker has to compute, where the index says that `claim` are cached.

    A claim counts for as much as this worker's claims came true. What engines find beyond claims
    counts for all workers alike: where it is found, more would be sent, and still more be found.
    """
    cdef double trust = 1.0, extra = 0.0
    cdef int64_t cached
    if timeline.confirmed != timeline.claimed:  # else a division is spared
        trust = (timeline.confirmed + CLAIM_PRIOR) / (timeline.claimed + CLAIM_PRIOR)
    if model.extra != 0.0:
        extra = model.extra / (model.unclaimed + CLAIM_PRIOR)
    cached = <int64_t>(trust * claim + extra * (isl - claim))
    return isl - min(cached, isl - 1)  # the last one is computed in any case


cdef inline void learn_cached(
    Model* model, EngineTimeline* timeline, const Booking* booking
) noexcept nogil:
    """Learn what an engine found of a prompt, beside what the index had claimed."""
    cdef int64_t isl = <int64_t>booking.context
    cdef int64_t beyond = max(0, booking.found - booking.claim)
    timeline.claimed = KEPT_CLAIMS * timeline.claimed + booking.claim
    timeline.confirmed = KEPT_CLAIMS * timeline.confirmed + min(booking.found, booking.claim)
    model.unclaimed = KEPT_EXTRA * model.unclaimed + isl - booking.claim
    model.extra = KEPT_EXTRA * model.extra + beyond


cdef inline void fade_speeds(
    EngineTimeline* timelines, uint32_t size, uint32_t workers
) noexcept nogil:
    """Weaken what is known of every worker's speed, where `workers` are present.

    Otherwise a worker that once was slow, and so gets no requests, could never show better.
    """
    cdef double kept = FADE_SPEED ** (1.0 / workers)
    cdef uint32_t number
    cdef int i
    for number in range(size):
        timelines[number].seen_s *= kept
        for i in range(4):
            timelines[number].computed[i] *= kept
        timelines[number].claimed *= kept
        timelines[number].confirmed *= kept


cdef inline void learn_slowness(
    EngineTimeline* timeline, const double* x, double took, double expected
) noexcept nogil:
    """Learn that a prefill `x` took `took` seconds where the fleet's model expected others.

    By itself it shows no worker much slower: a stall, of whatever on the way, is over by the next,
    and would else keep requests away from an idle engine for a minute.
    """
    cdef int i
    timeline.seen_s += min(took, max(MOST_SLOWER, timeline.lately) * expected)
    for i in range(4):
        timeline.computed[i] += x[i]
    timeline.lately = took / expected if expected > 0.0 else 1.0


cdef inline bint is_same_step(
    const EngineTimeline* timeline, const Speed* speed, double now
) noexcept nogil:
    """Whether a first token that comes now is of the step whose end was learnt from last.

    The first tokens of a step come one after the other, sooner than another step could end.
    """
    cdef double slowness
    if not timeline.sampled:
        return False
    slowness = timeline_slowness(timeline, speed)
    return now - timeline.anchor_at < SAME_STEP * empty_step_s(timeline, speed, slowness)


cdef inline double learn_prefill(
    Model* model, EngineTimeline* timeline, const Booking* booking, int64_t position,
    double attended, int64_t steps, double now, bint held_up, bint same_step,
) noexcept nogil:
    """Learn that the tokens of the stream from the anchor to `position` took until `now`.

    They were forecast to take `steps` steps, and to attend to `attended` tokens; the booking is
    the first of them. Where its engine reported how many of its tokens it found cached, those it
    computed count.
    What is of the `same_step` as the tokens before it was computed with them: their sample is
    amended. Else a whole prompt would seem to be computed in no time.
    Returns how much longer than foreseen they took, of which nothing is learnt here where blocks
    were loaded meanwhile, or memory was waited for: they were `held_up`.
    """
    cdef double x[4]
    cdef double was[4]
    cdef int64_t tokens = position - timeline.anchor
    cdef int64_t computed
    cdef int i
    if booking.found >= 0:
        computed = <int64_t>booking.context - booking.found
        tokens = max(1, tokens + computed - booking.tokens)
        steps += (computed + timeline.budget - 1) // timeline.budget
        steps = max(1, steps - (booking.tokens + timeline.budget - 1) // timeline.budget)
        attended -= booking_attended(booking, 0, booking.end)
        attended += (booking.context**2 - <double>booking.found**2) / 2
        attended = max(0.0, attended)
    cdef double took = now - timeline.anchor_at
    x[0], x[1], x[3] = steps, tokens / CHUNK_TOKENS, attended / ATTENDED_TOKENS
    if same_step:
        for i in range(4):
            was[i] = timeline.sample[i]
        x[0], x[1], x[2], x[3] = was[0], was[1] + x[1], was[2], was[3] + x[3]
        took += timeline.sample_s
    else:
        x[2] = steps * timeline_mean_decode_s(timeline, &model.speed, now)
    cdef double expected = fit_predict(&model.speed.prefill, x)
    cdef double slowness = timeline_slowness(timeline, &model.speed)
    if not held_up:  # else it would take the time of transfers, or of answers, for that of steps
        if same_step:
            if can_compare(model):
                timeline.seen_s += took - timeline.sample_s
                for i in range(4):
                    timeline.computed[i] += x[i] - was[i]
            fit_amend(
                &model.speed.prefill, &timeline.prefills, x, took, timeline.sample_weight, was,
                timeline.sample_s,
            )
        else:
            if can_compare(model):
                learn_slowness(timeline, x, took, expected)
            timeline.sample_weight = fit_add(
                &model.speed.prefill, &timeline.prefills, x, took, slowness
            )
        for i in range(4):
            timeline.sample[i] = x[i]
        timeline.sample_s = took
    timeline.sampled = not held_up
    return took - slowness * expected


cdef inline void learn_first_token(
    Model* model, EngineTimeline* timeline, Booking* booking, double now
) noexcept nogil:
    """Learn how long a first token took; the timeline was advanced to `now`."""
    model.first_tokens += 1
    model.ttft += RECENT * (now - booking.booked_at - model.ttft)
    begin_answer(timeline, booking, now)


cdef inline void begin_answer(
    EngineTimeline* timeline, Booking* booking, double now
) noexcept nogil:
    """Note where the timeline, which was advanced to `now`, stood at a first token."""
    booking.first_at = now
    timeline.answering += 1.0
    timeline.first_ats += now
    booking.context_s = timeline.context_s
    booking.requests_s = timeline.requests_s
    booking.prefill_s = timeline.prefill_s


cdef inline void end_answer(EngineTimeline* timeline, const Booking* booking) noexcept nogil:
    """Count an answer that began no more."""
    timeline.answering -= 1.0
    timeline.first_ats -= booking.first_at
    if timeline.answering == 0.0:
        timeline.first_ats = 0.0  # what rounding has left


cdef inline void learn_decode(
    Model* model, EngineTimeline* timeline, const Booking* booking, double now,
    uint32_t output_tokens, double* foreseen_s, double* took_s,
) noexcept nogil:
    """Learn from an answer that ends now. 0 output tokens: not counted, so take the usual number.

    The seconds in which prompts were computed there are taken off: they say nothing of decoding.
    Where they were counted, `took_s` is what a token took, and `foreseen_s` what the model says.
    """
    cdef double x[4]
    cdef double took = now - booking.first_at
    cdef double step_s, stretch
    cdef double slowness = timeline_slowness(timeline, &model.speed)
    cdef double stalled = timeline.prefill_s - booking.prefill_s
    cdef double tokens = output_tokens if output_tokens > 0 else model.output
    if took <= 0.0:
        return
    if output_tokens > 0:
        model.output += RECENT * (output_tokens - model.output)
    # A request that was not ended has expired: it says little of how long an answer takes.
    model.answers += 1
    model.answer += RECENT * (min(took, LONG_ANSWER * model.answer) - model.answer)
    if tokens < MIN_OUTPUT_TOKENS:
        return
    if output_tokens > 0:
        model.missed += MISSED_RECENT * ((took > (tokens - 1) * model.itl_objective) - model.missed)
    if stalled > 0.9 * took:
        return
    x[0] = 1.0
    x[1] = (timeline.context_s - booking.context_s) / took / CONTEXT_TOKENS
    x[2] = (timeline.requests_s - booking.requests_s) / took
    x[3] = 0.0
    step_s = fit_predict(&model.speed.decode, x) * slowness
    if output_tokens > 0 and can_compare(model):
        foreseen_s[0] = step_s
        took_s[0] = (took - stalled) / (tokens - 1)
        if step_s > 0.0:
            stretch = min(MOST_STRETCH, took / (tokens - 1) / step_s)
            model.stretch += STRETCH_RECENT * (stretch - model.stretch)
    fit_add(&model.speed.decode, &timeline.decodes, x, (took - stalled) / (tokens - 1), slowness)
