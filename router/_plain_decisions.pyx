"""Kernel: a request that may go to any worker, placed where nothing but the forecast decides.

What is plain stands in `place` alone. The steps of KvRouter.decide, which take all other requests,
come to the same decision and the same bookings.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t

from array import array

from .policy import Decision

cdef object new_decision = Decision


@cython.final
cdef class PlainDecisions:
    """Of one KvRouter whose policy is a forecast that learns alone, and whose index follows events.
    """

    cdef object _lock
    cdef object _now            # its clock
    cdef object _expire         # what is too old, from `expire_at` of `_source` on
    cdef object _source
    cdef object _registry
    cdef set _inhibited         # of it: ids of those that may get nothing for a while
    cdef object _weighted       # of it: ids of those with a weight below 1
    cdef list _workers          # of it, by number
    cdef object _limits
    cdef object _tenants
    cdef object _actor          # the kernel of its index
    cdef object _predicted      # what of that is predicted
    cdef object _slots
    cdef object _policy
    cdef object _watch          # says whether the policy is to be trusted
    cdef object _events         # watches how late they are; None: there are none
    cdef object _forecast
    cdef object _book
    cdef object _match
    cdef object _random
    cdef uint32_t _block_size
    cdef object _overlaps       # by worker number
    cdef uint32_t[::1] _overlap # the same

    def __init__(self, lock, clock, expire, source, limits, policy, rng):
        self._lock, self._now, self._expire, self._source = lock, clock.now, expire, source
        self._events = source.watch
        registry = self._registry = source.registry
        self._slots = source.slots
        self._inhibited, self._weighted = registry.inhibited_ids, registry.weighted_ids
        self._workers = registry.by_number
        self._actor, self._predicted = source.index.native, source.index.predicted
        self._limits, self._tenants, self._policy = limits, limits.tenants, policy
        self._forecast, self._watch = policy.parts
        self._book, self._match = self._slots.native, self._actor.match_bound
        self._random = rng.random
        self._block_size = self._slots.block_size
        self._reach(0)

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
        with self._lock:
            return self._placed(prompt, hashes, request_id, placement.expected_output_tokens)

    def seconds_until_free(self) -> float:
        """Until a worker should get one more request that may go to any; 0: now, below 0: that
        takes more steps."""
        with self._lock:
            now = self._current()
            if not self._limits.policy_holds or not self._alone():
                return -1.0
            seconds = self._forecast.seconds_until_free(
                self._eligible(now), self._book, now
            )
            return 0.0 if seconds <= 0.0 else -1.0

    cdef object _current(self):
        """The time, at which nothing is left that is too old."""
        now = self._now()
        if now >= self._source.expire_at:
            self._expire()
        return now

    cdef object _eligible(self, now):
        return self._registry.eligible(now) if self._inhibited else self._registry.ready

    cdef bint _alone(self) except -1:
        """Whether load and the forecast decide alone how many requests workers get."""
        return not (
            not self._watch.trusted
            or self._limits.is_limited
            or self._weighted
            or self._source.has_peers
        )

    cdef object _placed(self, prompt, tuple both, str request_id, expected):
        cdef object forecast = self._forecast
        cdef int64_t number, overlap, cached, isl = prompt.isl
        now = self._current()
        if (
            self._policy.temperature
            or not self._alone()
            or self._limits.sheds_all
            or self._tenants.enabled
            or self._actor.lower_tiers
            or self._predicted.records
            or not self._predicted.is_empty
            or self._slots.listener is not None
            or self._book.worker_of(request_id) is not None
        ):
            return None
        eligible = self._eligible(now)
        if self._overlap.shape[0] != len(self._workers):
            self._reach(len(self._workers))
        local, hashes = both
        self._match(local, self._overlaps)
        number = forecast.choose(
            isl, self._block_size, self._overlaps, self._book, hashes, eligible, None, 0.0, now,
            self._random(),
        )
        if number < 0:
            return None
        overlap = self._overlap[number]
        cached = min(overlap * self._block_size, isl)
        worker = self._workers[number]
        booked = self._book.add_request(
            request_id, number, hashes, isl, isl - cached, expected or 0, now
        )
        try:
            if booked:
                forecast.book(
                    request_id, number, isl, max(1, isl - cached), now, forecast.chosen_blocks,
                    self._block_size,
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
            self._book.free(request_id)
            forecast.end(request_id, now, 0)
            raise

    cdef int _reach(self, capacity) except -1:
        self._overlaps = array("I", bytes(sizeof(uint32_t) * capacity))
        self._overlap = self._overlaps
        return 0
