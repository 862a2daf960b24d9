"""Looks after requests in flight: bookings, time-outs, and workers that have gone silent."""

import asyncio
import math
from collections.abc import Mapping

from ...base.clock import Clock
from ...base.errors import NoWorkersError
from ...base.limit_hits import LimitHits
from ...process.supervised import stopped, supervise
from ...router.steps import by_steps
from ...workers.health import HealthMonitor
from ..request_limits import RequestLimits
from .attempts import RetryBudget
from .decisions import Bookings, Decisions
from .prefill_estimate import PrefillEstimate
from .request import Flight, TakenBack

LOOK_EVERY_S = 0.5
TOUCH_EVERY_S = 1.0
"""How often bookings in flight are renewed; far below any sensible expiry."""
TOUCHED_AT_ONCE = 1024
SUSPECT_AFTER_S = 1.0
"""A worker that owes messages and sends none for so long is probed."""


class FlightWatch:
    """Looks at all flights now and then, from `start` to `close`."""

    def __init__(
        self,
        flights: Mapping[str, Flight],
        bookings: Bookings,
        monitor: HealthMonitor,
        clock: Clock,
        limits: RequestLimits,
        *,
        silence_s: float | None,
        budget: RetryBudget,
        estimate: PrefillEstimate,
        hits: LimitHits,
        decisions: Decisions,
    ) -> None:
        self._flights = flights
        self._bookings = bookings
        self._monitor = monitor
        self._now = clock.now
        self._budget = budget
        self._estimate = estimate
        self._hits = hits
        self._decisions = decisions
        self.set_limits(limits, silence_s)
        self._task: asyncio.Task[None] | None = None

    def set_limits(self, limits: RequestLimits, silence_s: float | None) -> None:
        """Hold requests, also those in flight, to these limits from now on."""
        self._silence = _or_never(silence_s)
        self._attempt = _or_never(limits.attempt_timeout_s)
        self._write = _or_never(limits.write_timeout_s)
        self._total = _or_never(limits.total_timeout_s)
        self._queue = _or_never(limits.queue_timeout_s)
        self._stuck = _or_never(limits.stuck_timeout_s)
        shortest = min(self._silence, self._attempt, self._write, self._total, self._queue)
        self._pause = min(LOOK_EVERY_S, TOUCH_EVERY_S, shortest / 4, self._stuck / 4)

    def start(self) -> None:
        self._monitor.on_down.append(self.move)
        self._task = supervise("flights", self._run)

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self.move in self._monitor.on_down:
            self._monitor.on_down.remove(self.move)
        await stopped(self._task)

    def move(self, worker_id: int) -> None:
        """Take requests without a message back from a worker that is out of order.

        As many as the retry budget has room for: the worker may be only overloaded, and all it
        has on top of what the others have would overload those too.
        """
        if not self._monitor.any_ready:
            return
        for flight in self._flights.values():
            if (
                flight.call is not None
                and flight.decision is not None
                and flight.decision.worker.worker_id == worker_id
                and not flight.messages
                and flight.pinned is None
                and flight.taken_back is None
            ):
                if not flight.retrying:
                    if not self._budget.take(len(self._flights)):
                        self._hits.hit("retry_budget")
                        return
                    flight.retrying = True
                flight.take_back(TakenBack.WORKER_DOWN)

    async def _run(self) -> None:
        touched = self._now()
        while True:
            await asyncio.sleep(self._pause)
            now = self._now()
            self._look(now)
            if now - touched >= TOUCH_EVERY_S:
                touched = now
                self._estimate.forget(now)
                self._decisions.load_fell()  # workers come and go, and bookings of others expire
                bookings = [flight.booking_id for flight in self._flights.values()]
                for some in by_steps(bookings, TOUCHED_AT_ONCE):
                    self._bookings.touch_all(some)
                    await asyncio.sleep(0)

    def _look(self, now: float) -> None:
        active: dict[int, float] = {}  # worker -> when it last did something, if it owes us
        oldest: dict[int, float] = {}  # worker -> since when a stream has no message
        unanswered: set[int] = set()
        for flight in list(self._flights.values()):
            self._check(flight, now)
            if flight.call is None or flight.decision is None:
                continue
            worker_id = flight.decision.worker.worker_id
            active[worker_id] = max(active.get(worker_id, 0.0), flight.since)
            if not flight.messages:
                unanswered.add(worker_id)
            if not flight.messages and flight.facts.streaming:
                oldest[worker_id] = min(oldest.get(worker_id, math.inf), flight.sent_at)
        for worker_id, last in active.items():
            if now - last >= SUSPECT_AFTER_S:
                self._monitor.suspect(worker_id, now - last)
        for worker_id, since in oldest.items():
            if now - since >= self._stuck:
                self._monitor.reports.stuck(worker_id, since)
        for worker_id in unanswered:
            if not self._monitor.is_ready(worker_id):
                self.move(worker_id)  # those for which there was no budget before

    def _check(self, flight: Flight, now: float) -> None:
        """End what lasts too long."""
        if flight.call is None:
            waits = now - flight.arrived
            if waits > min(self._queue, self._total) and not len(flight.attempts):
                self._leave_queue(flight, waits)
            return
        if now - flight.arrived > self._total:
            self._end(flight, TakenBack.TOTAL)
        elif flight.writing:
            if now - flight.since > self._write:
                self._end(flight, TakenBack.WRITE)
        elif now - flight.since > self._silence:
            self._end(flight, TakenBack.SILENCE)
        elif not flight.messages and flight.facts.streaming:
            waited = now - flight.sent_at
            if waited > self._attempt:
                self._end(flight, TakenBack.ATTEMPT)
            elif flight.counts_prefill and waited > self._estimate.release_after_s(
                flight.uncached_tokens
            ):
                flight.counts_prefill = False
                self._bookings.release_prefill(flight.booking_id)
                self._decisions.load_fell()

    def _end(self, flight: Flight, why: TakenBack) -> None:
        if flight.take_back(why) and why.limit is not None:
            self._hits.hit(why.limit)

    def _leave_queue(self, flight: Flight, waited: float) -> None:
        error = NoWorkersError(
            f"all workers are saturated and the request has waited for {waited:.0f} s",
            overloaded=True,
        )
        if self._decisions.give_up(flight.request_id, error):
            self._hits.hit("queue_timeout_s")


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
