"""Checks of what the forecast's methods are given; ValueError, before anything is changed."""

from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint32_t

from ._forecast_cost cimport Prompt, felt_share, paid_share
from ._model cimport Model, cold_s


cdef inline int read_prompt(
    Prompt* prompt,
    uint32_t isl,
    uint32_t block_size,
    const uint32_t[::1] overlaps,
    const double[::1] blocks,
    const int64_t[::1] in_use,
    Py_ssize_t n,
    double now,
    double load,
    const Model* model,
) except -1:
    """Check the arguments of an estimate for n worker numbers, and fill `prompt` from them.

    `load` is the mean number of a worker's requests.
    """
    require_time(now)
    if isl == 0:
        raise ValueError("isl must be at least 1")
    if overlaps is not None:
        require_length(overlaps.shape[0], n)
    if blocks is not None:
        require_length(blocks.shape[0], n)
    if in_use is not None:
        require_length(in_use.shape[0], n)
    prompt.isl = isl
    prompt.felt = felt_share(load)
    prompt.paid = paid_share(load)
    prompt.spreads = False  # until workers were looked at
    prompt.cold = cold_s(model, isl)
    prompt.block_size = block_size
    prompt.overlaps = &overlaps[0] if overlaps is not None and n else NULL
    prompt.blocks = &blocks[0] if blocks is not None and n else NULL
    prompt.in_use = &in_use[0] if in_use is not None and n else NULL
    return 0


cdef inline int require_length(Py_ssize_t length, Py_ssize_t n) except -1:
    if length != n:
        raise ValueError(f"every array must have an entry for each of {n} worker numbers")
    return 0


cdef inline int require_time(double now) except -1:
    if not isfinite(now):
        raise ValueError(f"now must be finite, not {now}")
    return 0
