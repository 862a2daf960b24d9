"""The cost of one worker, and the draw among costs, in plain Python."""

import math


def cost(
    params,
    isl,
    block_size,
    overlap=0,
    active_prefill=0,
    blocks=0.0,
    requests=0,
    least_prefill=0,
    host=0,
    disk=0,
):
    credit = params.overlap_score_credit
    cached = overlap * block_size
    prefill = (active_prefill + max(0, isl - cached) + cached) / block_size
    if not params.track_prefill_tokens:
        prefill = 0.0
    elif params.credit_decay > 0:
        excess = max(0, active_prefill - least_prefill) / block_size / math.ceil(isl / block_size)
        credit /= 1 + params.credit_decay * excess
    saved = (
        credit * overlap + params.host_cache_hit_weight * host + params.disk_cache_hit_weight * disk
    )
    load = params.decode_active_request_weight * requests
    return params.prefill_load_scale * max(0, prefill - saved) + blocks + load


def pick(costs, temperature, u):
    """The index drawn by the uniform number u; -1 if no cost is finite."""
    finite = [i for i, each in enumerate(costs) if math.isfinite(each)]
    if not finite:
        return -1
    low = min(costs[i] for i in finite)
    high = max(costs[i] for i in finite)
    scale = (high - low) * temperature
    if temperature == 0 or not 0 < scale < math.inf:
        # Too close to be weighed, or so hot that their differences do not count.
        ties = finite if scale == math.inf else [i for i in finite if costs[i] == low]
        return ties[int(u * len(ties))]
    weights = [math.exp(-(costs[i] - low) / scale) for i in finite]
    passed = 0.0
    for i, weight in zip(finite, weights, strict=True):
        passed += weight
        if u * sum(weights) < passed:
            return i
    return finite[-1]
