"""Kernel: a request that may go to any worker, placed where nothing but the forecast decides.

What is plain stands in `place` alone. The steps of KvRouter.decide, which take all other requests,
come to the same decision and the same bookings.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from ..indexer.event_index._actor cimport IndexActor
from ..slots._sequences cimport SequenceBook
from .policy._forecast cimport Forecast

from .policy import Decision

cdef object new_decision = Decision


@cython.final
cdef class PlainDecisions:
    """Of one KvRouter whose policy is a forecast that learns alone, and whose index follows events.
    """

    cdef object _acquire        # the lock
    cdef object _release
    cdef object _now            # its clock
    cdef object _expire         # what is too old, from `expire_at` of `_source` on
    cdef object _source
    cdef object _registry
    cdef set _inhibited         # of it: ids of those that may get nothing for a while
    cdef object _weighted       # of it: ids of those with a weight below 1
    cdef list _workers          # of it, by number
    cdef object _limits
    cdef object _tenants
    cdef IndexActor _actor      # the kernel of its index
    cdef object _predicted      # what of that is predicted
    cdef object _slots
    cdef object _policy
    cdef object _watch          # says whether the policy is to be trusted
    cdef object _events         # watches how late they are; None: there are none
    cdef Forecast _forecast
    cdef SequenceBook _book
    cdef object _random
    cdef uint32_t _block_size
    cdef uint32_t* _overlaps    # by worker number
    cdef Py_ssize_t _size       # of them
    cdef object _mask           # who is eligible, an array by worker number,
    cdef const uint8_t[::1] _eligible   # and a view of it, which would take longer to make

    def __dealloc__(self):
        free(self._overlaps)

    def __init__(self, lock, clock, expire, source, limits, policy, rng):
        self._acquire, self._release = lock.acquire, lock.release
        self._now, self._expire, self._source = clock.now, expire, source
        self._events = source.watch
        registry = self._registry = source.registry
        self._slots = source.slots
        self._inhibited, self._weighted = registry.inhibited_ids, registry.weighted_ids
        self._workers = registry.by_number
        self._actor, self._predicted = source.index.native, source.index.predicted
        self._limits, self._tenants, self._policy = limits, limits.tenants, policy
        self._forecast, self._watch = policy.parts
        self._book = self._slots.native
        self._random = rng.random
        self._block_size = self._slots.block_size

    def place(self, placement not None):
        """The decision, booked; None: it is not plain, and nothing was done."""
        cdef object prompt = placement.prompt
        cdef str request_id = placement.request_id
        cdef object asked = placement.objectives
        if (
            not request_id
            or placement.session is not None
            or placement.pinned is not None
            or placement.excluded
            or placement.allowed
            or placement.tenant
            or placement.runners_up
            or placement.retried
            or placement.computed is not None
            or placement.owner is not None
            or (asked.ttft_ms is not None and not asked.is_default_ttft)
        ):
            return None
        cdef tuple hashes = prompt.packed_hashes()
        self._acquire()
        try:
            return self._placed(prompt, hashes, request_id, placement.expected_output_tokens)
        finally:
            self._release()

    def seconds_until_free(self) -> float:
        """Until a worker should get one more request that may go to any; 0: now, below 0: that
        takes more steps."""
        cdef double seconds, now
        cdef Py_ssize_t n
        self._acquire()
        try:
            now = self._current()
            if not self._limits.policy_holds or not self._alone():
                return -1.0
            n = self._find_eligible(now)
            seconds = self._forecast.free_in_s(
                &self._eligible[0] if n else NULL, n, self._book, now, False, False
            )
            return 0.0 if seconds <= 0.0 else -1.0
        finally:
            self._release()

    cdef double _current(self) except? -1.0:
        """The time, at which nothing is left that is too old."""
        cdef double now = self._now()
        if now >= <double>self._source.expire_at:
            self._expire()
        return now

    cdef Py_ssize_t _find_eligible(self, double now) except -1:
        """How many worker numbers there are; `_eligible` says which of them may get requests."""
        mask = self._registry.eligible(now) if self._inhibited else self._registry.ready
        if mask is not self._mask:
            self._eligible = mask
            self._mask = mask
        return self._eligible.shape[0]

    cdef bint _alone(self) except -1:
        """Whether load and the forecast decide alone how many requests workers get."""
        return not (
            not self._watch.trusted
            or self._limits.is_limited
            or self._weighted
            or self._source.has_peers
        )

    cdef object _placed(self, prompt, tuple both, str request_id, expected):
        cdef Forecast forecast = self._forecast
        cdef SequenceBook book = self._book
        cdef int64_t number, overlap, cached, isl = prompt.isl
        cdef uint32_t output_tokens = expected or 0
        cdef double now = self._current()
        cdef bytes local, hashes
        cdef const uint64_t* sequence
        cdef uint64_t blocks
        cdef Py_ssize_t n
        cdef bint booked
        if (
            self._policy.temperature
            or not self._alone()
            or self._limits.sheds_all
            or self._tenants.enabled
            or self._actor.has_lower_tiers()
            or self._predicted.records
            or not self._predicted.is_empty
            or self._slots.listener is not None
            or book._record(request_id) >= 0
        ):
            return None
        n = self._find_eligible(now)
        if self._size != len(self._workers):
            self._reach(len(self._workers))
        if n != self._size:
            raise ValueError(f"{n} of {self._size} worker numbers are known")
        local, hashes = both
        blocks = <uint64_t>len(hashes) // sizeof(uint64_t)
        sequence = <const uint64_t*><const char*>hashes
        if n:
            self._actor.bound_overlaps(
                <const uint64_t*><const char*>local,
                <uint32_t>(<uint64_t>len(local) // sizeof(uint64_t)), NULL, self._overlaps, NULL,
                <uint32_t>n,
            )
        number = forecast.choose_of(
            <uint32_t>isl, self._block_size, self._overlaps, book, sequence, <int64_t>blocks,
            &self._eligible[0] if n else NULL, n, NULL, 0.0, now, self._random(),
        )
        if number < 0:
            return None
        overlap = self._overlaps[number]
        cached = min(overlap * self._block_size, isl)
        worker = self._workers[number]
        booked = book.book_request(
            request_id, number, sequence, blocks, <uint32_t>isl, <uint32_t>(isl - cached),
            output_tokens, now,
        )
        try:
            if booked:
                forecast.book_request(
                    request_id, <uint32_t>number, <uint32_t>isl, <uint32_t>max(1, isl - cached),
                    now, forecast.chosen_blocks, self._block_size,
                )
            if self._events is not None:  # source.on_booked, where nothing is predicted or shared
                self._events.on_booked(request_id, worker, prompt, now)
            return new_decision(
                worker,
                number,
                overlap,
                (isl + self._block_size - 1) // self._block_size,
                cached,
                request_id if booked else None,
                0,
                0,
            )
        except BaseException:  # the caller does not know of the booking
            book.drop(request_id)
            forecast.end(request_id, now, 0)
            raise

    cdef int _reach(self, Py_ssize_t size) except -1:
        cdef void* grown = realloc(self._overlaps, max(size, 1) * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError
        self._overlaps, self._size = <uint32_t*>grown, size
        return 0
