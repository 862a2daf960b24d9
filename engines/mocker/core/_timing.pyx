"""Owns a latency model and evaluates it. The face is timing.py."""

cimport cython


cdef enum:
    FASTEST_NS = 1000  # extrapolated times are no shorter


cdef double timing_prefill_ms(const Timing* timing, uint64_t tokens) noexcept nogil:
    cdef double n = <double>tokens, share
    cdef uint32_t at
    if tokens == 0:
        return 0
    if timing.n_prefill == 0:
        return (4.209989e-7 * n + 1.518344e-2) * n + 16.50142
    at = bracket(timing.prefill_isl, timing.n_prefill, n)
    share = share_of(timing.prefill_isl, at, n)
    return bounded(between(timing.prefill_ttft_ms[at], timing.prefill_ttft_ms[at + 1], share))


cdef double timing_attention_ms(const Timing* timing, uint64_t attended) noexcept nogil:
    return timing.attention_ms * <double>attended / 2


cdef double timing_decode_ms(
    const Timing* timing, uint64_t tokens, uint32_t requests
) noexcept nogil:
    cdef double n = <double>tokens, share, context, low, high
    cdef uint32_t at, beside, width = timing.n_contexts
    cdef const double* row
    if requests == 0:
        return 0
    if timing.n_prefill == 0:
        share = n / timing.total_tokens
        if share > 1.0:
            share = 1.0
        n = (-25.74 * share + 54.01) * share + 5.74
        return (n if n > 1.0 else 1.0) / timing.decode_speedup
    context = n / requests
    at = bracket(timing.decode_tokens, timing.n_tokens, n)
    beside = bracket(timing.decode_contexts, width, context)
    share = share_of(timing.decode_contexts, beside, context)
    row = timing.decode_itl_ms + <size_t>at * width + beside
    low = between(row[0], row[1], share)
    high = between(row[width], row[width + 1], share)
    return bounded(
        between(low, high, share_of(timing.decode_tokens, at, n))
    ) / timing.decode_speedup


cdef inline uint32_t bracket(const double* points, uint32_t n, double x) noexcept nogil:
    """The i for which x is between points i and i + 1; at the ends the nearest such pair."""
    cdef uint32_t low = 0, high = n - 2, middle
    while low < high:
        middle = (low + high + 1) // 2
        if points[middle] <= x:
            low = middle
        else:
            high = middle - 1
    return low


cdef inline double share_of(const double* points, uint32_t at, double x) noexcept nogil:
    return (x - points[at]) / (points[at + 1] - points[at])


cdef inline double between(double low, double high, double share) noexcept nogil:
    return low + (high - low) * share


cdef inline double bounded(double milliseconds) noexcept nogil:
    """Measured points lie above 0; a line through them need not."""
    return milliseconds if milliseconds > FASTEST_NS * 1e-6 else FASTEST_NS * 1e-6


@cython.final
cdef class StepTiming:
    """See timing.py."""

    def __cinit__(
        self, double total_tokens, double decode_speedup, arrays=None, double attention_ms=0.0
    ):
        """`arrays`: the five of a profile, checked, as timing.py loads them."""
        cdef const double[::1] isl, ttft, tokens, contexts
        cdef const double[:, ::1] itl
        self.timing.total_tokens = total_tokens
        self.timing.decode_speedup = decode_speedup
        self.timing.attention_ms = attention_ms
        if arrays is None:
            return
        isl, ttft, tokens, contexts, itl = arrays
        if min(isl.shape[0], tokens.shape[0], contexts.shape[0]) < 2:
            raise ValueError("two points at least in every direction")
        if ttft.shape[0] != isl.shape[0] or (
            itl.shape[0] != tokens.shape[0] or itl.shape[1] != contexts.shape[0]
        ):
            raise ValueError("the shapes of the arrays do not match")
        self.arrays = arrays
        self.timing.n_prefill = <uint32_t>isl.shape[0]
        self.timing.n_tokens = <uint32_t>tokens.shape[0]
        self.timing.n_contexts = <uint32_t>contexts.shape[0]
        self.timing.prefill_isl = &isl[0]
        self.timing.prefill_ttft_ms = &ttft[0]
        self.timing.decode_tokens = &tokens[0]
        self.timing.decode_contexts = &contexts[0]
        self.timing.decode_itl_ms = &itl[0, 0]

    def prefill_ms(self, uint64_t tokens):
        return timing_prefill_ms(&self.timing, tokens)

    def attention_ms(self, uint64_t tokens, uint64_t context):
        return timing_attention_ms(&self.timing, tokens * (2 * context + tokens))

    def decode_ms(self, uint64_t tokens, uint32_t requests):
        return timing_decode_ms(&self.timing, tokens, requests)
