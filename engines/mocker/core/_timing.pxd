# _timing.pxd: how long a step takes. The face is timing.py.
from libc.stdint cimport uint32_t, uint64_t

cdef struct Timing:
    double total_tokens      # what the whole cache holds
    double decode_speedup
    double attention_ms      # for a prompt token and a token of its context
    uint32_t n_prefill       # measured prompt lengths; 0: the polynomials hold
    uint32_t n_tokens        # measured sums of lengths
    uint32_t n_contexts      # measured mean lengths
    const double* prefill_isl
    const double* prefill_ttft_ms
    const double* decode_tokens
    const double* decode_contexts
    const double* decode_itl_ms  # [n_tokens][n_contexts]

# Milliseconds to compute `tokens` prompt tokens of one step, all requests together.
cdef double timing_prefill_ms(const Timing* timing, uint64_t tokens) noexcept nogil
# Milliseconds more for what they attend to: twice the sum of their contexts.
cdef double timing_attention_ms(const Timing* timing, uint64_t attended) noexcept nogil
# Milliseconds to compute a token for each of `requests`, which are `tokens` long together.
cdef double timing_decode_ms(
    const Timing* timing, uint64_t tokens, uint32_t requests
) noexcept nogil


cdef class StepTiming:
    cdef Timing timing
    cdef object arrays       # what the pointers point into
