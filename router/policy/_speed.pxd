"""Speed: how long the fleet's usual engine takes, in the units that its fits are learnt in."""

from ._latency cimport Fit, fit_predict

cdef extern from *:
    """
    #define FORECAST_CONTEXT_TOKENS 1e5
    #define FORECAST_CHUNK_TOKENS 8192.0
    #define FORECAST_ATTENDED_TOKENS 8.192e7
    #define FORECAST_MIN_STEP_S 1e-6
    #define FORECAST_SLOWEST 8.0
    #define FORECAST_EQUAL_SPEED 0.1
    #define FORECAST_EQUAL_RATIO (1.0 + FORECAST_EQUAL_SPEED - 1e-4)
    """
    const double CONTEXT_TOKENS "FORECAST_CONTEXT_TOKENS"   # the fits' unit of contexts
    const double CHUNK_TOKENS "FORECAST_CHUNK_TOKENS"   # the fits' unit of prompt tokens
    const double ATTENDED_TOKENS "FORECAST_ATTENDED_TOKENS"     # of prompt tokens times context
    const double SLOWEST "FORECAST_SLOWEST"     # times the fleet's model a worker is at most
    const double MIN_STEP_S "FORECAST_MIN_STEP_S"       # seconds of a step, at least
    const double EQUAL_SPEED "FORECAST_EQUAL_SPEED"     # relative difference that is noise
    const double EQUAL_RATIO "FORECAST_EQUAL_RATIO"     # just below 1 + EQUAL_SPEED: no division

cdef struct Speed:              # of the fleet
    Fit prefill                 # steps, CHUNK_TOKENS, seconds of the decodes beside,
                                # ATTENDED_TOKENS -> seconds
    Fit decode                  # 1, CONTEXT_TOKENS, requests, 0 -> seconds of a step of decodes


cdef inline double decode_step_s(
    const Speed* speed, double requests, double context
) noexcept nogil:
    """Seconds of a step in which `requests` decode, at the fleet's usual speed."""
    cdef double x[4]
    x[0] = min(1.0, requests)  # a mean over time may be less than one request
    x[1] = context / CONTEXT_TOKENS
    x[2] = requests
    x[3] = 0.0
    return fit_predict(&speed.decode, x)


cdef inline double token_s(const Speed* speed, double slowness) noexcept nogil:
    """Seconds that a prompt token adds to a step."""
    return slowness * speed.prefill.theta[1] / CHUNK_TOKENS


cdef inline double attended_s(const Speed* speed, double slowness) noexcept nogil:
    """Seconds that a prompt token adds to a step for each token that it attends to."""
    return slowness * speed.prefill.theta[3] / ATTENDED_TOKENS
