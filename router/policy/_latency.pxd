"""Fit: a latency model of four numbers, learnt online by least squares: seconds = x . theta.

Old samples fade by FADE, and PRIOR samples' worth of `start` keeps the fit where they say nothing.
A sample far off the usual error counts as if it were OUTLIER times that error away: a stall or a
late report must not turn the model over. The last number may have nothing to say, and resembles
others where it has: where it came out negative, the rest is solved without it.

What a slow worker took counts divided by how slow it is, or the fit would be of a fleet's mean, and
its fast workers, which are never said to be faster, would be taken for slower than they are. A
sample is divided by what is known of its worker now, not when it was added: each worker's are summed
apart as they were seen.
"""

from libc.math cimport fabs

cdef enum:
    N = 4                   # numbers in a model

cdef extern from *:
    """
    #define FORECAST_FADE 0.999
    #define FORECAST_PRIOR 0.01
    #define FORECAST_OUTLIER 6.0
    #define FORECAST_SLOW 0.02
    """
    const double FADE "FORECAST_FADE"    # weight of everything before, at each sample
    const double PRIOR "FORECAST_PRIOR"     # samples, of size one
    const double OUTLIER "FORECAST_OUTLIER"   # usual errors
    const double SLOW "FORECAST_SLOW"     # share of the newest sample in a running mean

cdef struct Fit:
    double start[4]         # what is believed before the first sample
    double theta[4]         # what is believed now, none of them negative
    double moments[4][4]    # sum of x x', faded
    double products[4]      # sum of x y
    double error            # usual absolute error, seconds
    double mean             # of y, seconds
    long samples

cdef struct Part:           # of a fit, what one worker took; zeroed while it has no samples
    double products[4]      # sum of x y as seen, faded until the fit had
    long samples            # this number of them
    double slowness         # by which they are divided in the fit


cdef inline void fit_init(
    Fit* fit, double first, double second, double third, double fourth
) noexcept nogil:
    cdef int i, j
    fit.start[0] = first
    fit.start[1] = second
    fit.start[2] = third
    fit.start[3] = fourth
    for i in range(N):
        fit.theta[i] = fit.start[i]
        fit.products[i] = 0.0
        for j in range(N):
            fit.moments[i][j] = 0.0
    fit.error = 0.0
    fit.mean = 0.0
    fit.samples = 0


cdef inline double fit_predict(const Fit* fit, const double* x) noexcept nogil:
    return (
        fit.theta[0] * x[0] + fit.theta[1] * x[1] + fit.theta[2] * x[2] + fit.theta[3] * x[3]
    )


cdef inline void fit_divide(Fit* fit, Part* part, double slowness) noexcept nogil:
    """Divide a worker's samples, those before included, by how slow it is known to be now."""
    cdef double kept, change = 0.0
    cdef int i
    if part.samples > 0:
        kept = FADE ** (fit.samples - part.samples)
        change = 1.0 / slowness - 1.0 / part.slowness
        for i in range(N):
            part.products[i] *= kept
            fit.products[i] += change * part.products[i]
    part.samples = fit.samples
    part.slowness = slowness


cdef inline double fit_add(
    Fit* fit, Part* part, const double* x, double y, double slowness
) noexcept nogil:
    """Learn that `x` took a worker so slow `y` seconds. Returns the weight of the sample."""
    cdef double usual = y / slowness  # of the usual worker
    cdef double error = fabs(usual - fit_predict(fit, x))
    cdef double weight = 1.0
    cdef int i, j
    fit_divide(fit, part, slowness)
    if fit.samples == 0:
        fit.error = error
        fit.mean = usual
    elif error > OUTLIER * fit.error > 0.0:
        weight = OUTLIER * fit.error / error
        error = OUTLIER * fit.error
    fit.samples += 1
    fit.error += SLOW * (error - fit.error)
    fit.mean += SLOW * (usual - fit.mean)
    part.samples = fit.samples
    for i in range(N):
        part.products[i] = FADE * part.products[i] + weight * x[i] * y
        fit.products[i] = FADE * fit.products[i] + weight * x[i] * usual
        for j in range(N):
            fit.moments[i][j] = FADE * fit.moments[i][j] + weight * x[i] * x[j]
    fit_solve(fit)
    return weight


cdef inline void fit_amend(
    Fit* fit, Part* part, const double* x, double y, double weight, const double* was, double was_y
) noexcept nogil:
    """Learn that what was added as `was` taking `was_y` was `x` and `y`.

    The sample had that weight when it was the newest of its worker's, which it still is.
    """
    cdef double change
    cdef double faded = weight * FADE ** (fit.samples - part.samples)
    cdef int i, j
    for i in range(N):
        change = x[i] * y - was[i] * was_y
        part.products[i] += weight * change
        fit.products[i] += faded * change / part.slowness
        for j in range(N):
            fit.moments[i][j] += faded * (x[i] * x[j] - was[i] * was[j])
    fit_solve(fit)


cdef inline void fit_solve(Fit* fit) noexcept nogil:
    """Solve for all numbers, and again without the last one if that came out negative."""
    cdef int n = N, i
    if solve_leading(fit, n) < 0.0:
        n -= 1
        solve_leading(fit, n)
        fit.theta[n] = 0.0
    for i in range(n):
        fit.theta[i] = max(0.0, fit.theta[i])


cdef inline double solve_leading(Fit* fit, int n) noexcept nogil:
    """(moments + PRIOR) theta = products + PRIOR start of the first n numbers; the last of them.

    By elimination: the matrix is positive definite.
    """
    cdef double a[4][5]
    cdef double share
    cdef int i, j, k
    for i in range(n):
        for j in range(n):
            a[i][j] = fit.moments[i][j]
        a[i][i] += PRIOR
        a[i][n] = fit.products[i] + PRIOR * fit.start[i]
    for i in range(n):
        for j in range(i + 1, n):
            share = a[j][i] / a[i][i]
            for k in range(i, n + 1):
                a[j][k] -= share * a[i][k]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            a[i][n] -= a[i][k] * a[k][n]
        a[i][n] /= a[i][i]
    for i in range(n):
        fit.theta[i] = a[i][n]
    return fit.theta[n - 1]
