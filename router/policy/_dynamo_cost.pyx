"""The cost of every worker in one pass, and the draw among them. Faces: dynamo_cost.py, draw.py."""

from cython cimport boundscheck, cdivision, wraparound
from libc.math cimport INFINITY, exp, isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t

import numpy

cdef object new_array = numpy.empty
cdef object FLOAT64 = numpy.dtype(numpy.float64)

cdef struct Weights:            # see cost.CostParams
    double credit
    double credit_decay
    double prefill_scale
    double request_weight
    double host_weight
    double disk_weight
    bint track_prefill

cdef struct Inputs:             # arrays by worker number; NULL: zero for all
    const uint32_t* overlaps        # blocks of the prompt cached on the device
    const uint32_t* host            # and further ones in host memory
    const uint32_t* disk            # on disk
    const int64_t* prefill_tokens   # active, without this request
    const double* blocks            # potential decode blocks, with this request
    const int64_t* requests         # active, without this request
    int64_t isl                     # prompt tokens, > 0
    double block_size
    double request_blocks           # the prompt's blocks, rounded up
    int64_t least_prefill           # least active prefill tokens of an eligible worker

cdef struct Terms:              # of one candidate; the columns of `evaluate(..., explain=True)`
    double raw_prefill              # blocks to prefill if nothing were cached
    double credit                   # what a block cached on the device takes off them
    double overlap                  # blocks taken off in all
    double decode                   # potential decode blocks
    double requests                 # active requests
    double cost

cdef enum:
    COLUMNS = 6                 # doubles in Terms


@boundscheck(False)  # every array has `n` entries, checked below
@wraparound(False)
def evaluate(
    params,
    uint32_t isl,
    uint32_t block_size,
    const uint32_t[::1] overlaps,
    const int64_t[::1] prefill_tokens,
    const double[::1] potential_blocks,
    const int64_t[::1] active_requests,
    const uint8_t[::1] eligible not None,
    const uint32_t[::1] host_overlaps,
    const uint32_t[::1] disk_overlaps,
    bint explain,
):
    cdef Py_ssize_t n = eligible.shape[0]
    cdef Py_ssize_t number
    cdef Weights weights
    cdef Inputs inputs
    cdef Terms terms
    cdef double[::1] costs
    cdef double[:, ::1] table
    if isl == 0:
        raise ValueError("isl must be at least 1")
    if block_size == 0:
        raise ValueError("block_size must be at least 1")
    if (
        (overlaps is not None and overlaps.shape[0] != n)
        or (prefill_tokens is not None and prefill_tokens.shape[0] != n)
        or (potential_blocks is not None and potential_blocks.shape[0] != n)
        or (active_requests is not None and active_requests.shape[0] != n)
        or (host_overlaps is not None and host_overlaps.shape[0] != n)
        or (disk_overlaps is not None and disk_overlaps.shape[0] != n)
    ):
        raise ValueError(f"every array must have an entry for each of {n} worker numbers")
    if explain:
        array = new_array((n, COLUMNS), FLOAT64)
    else:
        array = new_array(n, FLOAT64)
    if n == 0:
        return array

    weights.credit = params.overlap_score_credit
    weights.credit_decay = params.credit_decay
    weights.prefill_scale = params.prefill_load_scale
    weights.request_weight = params.decode_active_request_weight
    weights.host_weight = params.host_cache_hit_weight
    weights.disk_weight = params.disk_cache_hit_weight
    weights.track_prefill = params.track_prefill_tokens

    inputs.overlaps = &overlaps[0] if overlaps is not None else NULL
    inputs.host = &host_overlaps[0] if host_overlaps is not None else NULL
    inputs.disk = &disk_overlaps[0] if disk_overlaps is not None else NULL
    inputs.prefill_tokens = &prefill_tokens[0] if prefill_tokens is not None else NULL
    inputs.blocks = &potential_blocks[0] if potential_blocks is not None else NULL
    inputs.requests = &active_requests[0] if active_requests is not None else NULL
    inputs.isl = isl
    inputs.block_size = block_size
    inputs.request_blocks = (<int64_t>isl + block_size - 1) // block_size
    inputs.least_prefill = least_prefill(inputs.prefill_tokens, &eligible[0], n)

    if explain:
        table = array
        for number in range(n):
            terms = evaluate_one(&weights, &inputs, number)
            table[number, 0] = terms.raw_prefill
            table[number, 1] = terms.credit
            table[number, 2] = terms.overlap
            table[number, 3] = terms.decode
            table[number, 4] = terms.requests
            table[number, 5] = terms.cost
    else:
        costs = array
        for number in range(n):
            costs[number] = INFINITY
            if eligible[number]:
                costs[number] = evaluate_one(&weights, &inputs, number).cost
    return array


@cdivision(True)  # block_size and request_blocks are at least 1
cdef inline Terms evaluate_one(
    const Weights* weights, const Inputs* inputs, Py_ssize_t number
) noexcept nogil:
    cdef Terms terms
    cdef int64_t active = inputs.prefill_tokens[number] if inputs.prefill_tokens != NULL else 0
    cdef double device = blocks_at(inputs.overlaps, number)
    cdef double cached = device * inputs.block_size
    cdef double excess = 0.0

    terms.decode = inputs.blocks[number] if inputs.blocks != NULL else 0.0
    terms.requests = <double>inputs.requests[number] if inputs.requests != NULL else 0.0
    terms.raw_prefill = 0.0
    if weights.track_prefill:
        # Uncached and cached tokens both: the credit below says what being cached is worth.
        terms.raw_prefill = (active + max(<double>inputs.isl, cached)) / inputs.block_size
        if weights.credit_decay > 0.0:
            excess = max(0.0, <double>(active - inputs.least_prefill)) / inputs.block_size
            excess /= inputs.request_blocks
    terms.credit = weights.credit / (1.0 + weights.credit_decay * excess)
    terms.overlap = (
        terms.credit * device
        + weights.host_weight * blocks_at(inputs.host, number)
        + weights.disk_weight * blocks_at(inputs.disk, number)
    )
    terms.cost = (
        weights.prefill_scale * max(0.0, terms.raw_prefill - terms.overlap)
        + terms.decode
        + weights.request_weight * terms.requests
    )
    return terms


cdef inline double blocks_at(const uint32_t* blocks, Py_ssize_t number) noexcept nogil:
    return <double>blocks[number] if blocks != NULL else 0.0


cdef int64_t least_prefill(
    const int64_t* prefill_tokens, const uint8_t* eligible, Py_ssize_t n
) noexcept nogil:
    cdef int64_t least = -1
    cdef Py_ssize_t number
    if prefill_tokens == NULL:
        return 0
    for number in range(n):
        if eligible[number] and (least < 0 or prefill_tokens[number] < least):
            least = prefill_tokens[number]
    return max(least, 0)


@boundscheck(False)  # one array, indexed below its length
@wraparound(False)
@cdivision(True)  # scale is greater than 0 where it divides
def pick(const double[::1] costs not None, double temperature, double u):
    cdef Py_ssize_t n = costs.shape[0]
    cdef Py_ssize_t i, last
    cdef int64_t candidates = 0
    cdef int64_t ties = 0
    cdef double low = INFINITY
    cdef double high = -INFINITY
    cdef double scale, total, cost
    if not temperature >= 0.0:
        raise ValueError("temperature must be at least 0")
    if not 0.0 <= u < 1.0:
        raise ValueError("u must be in [0, 1)")
    for i in range(n):
        cost = costs[i]
        if not isfinite(cost):
            continue
        candidates += 1
        high = max(high, cost)
        if cost < low:
            low = cost
            ties = 1
        elif cost == low:
            ties += 1
    if candidates == 0:
        return -1
    scale = (high - low) * temperature
    if temperature == 0.0 or not 0.0 < scale < INFINITY:
        # One draw for all ties: the same distribution as a reservoir's, at one random number.
        if scale == INFINITY:
            low, ties = high, candidates
        ties = <int64_t>(u * ties)
        for i in range(n):
            if isfinite(costs[i]) and costs[i] <= low:
                if ties == 0:
                    return i
                ties -= 1
    total = 0.0
    for i in range(n):
        if isfinite(costs[i]):
            total += exp((low - costs[i]) / scale)
    u *= total
    total = 0.0
    last = -1
    for i in range(n):
        if isfinite(costs[i]):
            cost = exp((low - costs[i]) / scale)
            total += cost
            if cost > 0.0:
                last = i
                if u < total:
                    return i
    return last  # rounding may leave u a hair above the last sum
