"""Looks after requests in flight: bookings, time-outs, and workers that have gone silent."""

import asyncio
import math
from collections.abc import Iterator, Mapping

from ...base.clock import Clock
from ...base.errors import NoWorkersError
from ...base.limit_hits import LimitHits
from ...base.lost_time import LostTime
from ...process.supervised import stopped, supervise
from ...router.decider import Decider
from ...router.steps import by_steps
from ...workers.health import HealthMonitor
from ..request_limits import DispatchLimits
from .ledger import AttemptLedger
from .request import Attempt, Request, TakenBack
from .retries import RetryBudget

LOOK_EVERY_S = 0.5
TOUCH_EVERY_S = 1.0
"""How often bookings in flight are renewed; far below any sensible expiry."""
TOUCHED_AT_ONCE = 1024
SUSPECT_AFTER_S = 1.0
"""A worker that is to send messages and sends none for this long is probed."""


class RequestWatch:
    """Looks at all requests in flight now and then, from `start` to `close`."""

    def __init__(
        self,
        requests: Mapping[str, Request],
        decider: Decider,
        monitor: HealthMonitor,
        clock: Clock,
        limits: DispatchLimits,
        ledger: AttemptLedger,
        budget: RetryBudget,
        hits: LimitHits,
        lost: LostTime,
    ) -> None:
        """`lost` notes each look: no time-out counts a stall of this process."""
        self._lost, self._waited = lost, lost.waited
        self._requests = requests
        self._decider = decider
        self._monitor = monitor
        self._now = clock.now
        self._ledger = ledger
        self._budget = budget
        self._hits = hits
        self.set_limits(limits)
        self._task: asyncio.Task[None] | None = None

    def set_limits(self, limits: DispatchLimits) -> None:
        """Hold requests, also those in flight, to these limits from now on."""
        bounds = limits.requests
        self._silence = _or_never(limits.silence_s)
        self._attempt = _or_never(bounds.attempt_timeout_s)
        self._write = _or_never(bounds.write_timeout_s)
        self._total = _or_never(bounds.total_timeout_s)
        self._queue = _or_never(bounds.queue_timeout_s)
        self._stuck = _or_never(bounds.stuck_timeout_s)
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
        for request, attempt in self._running():
            if (
                attempt.worker_id != worker_id
                or attempt.messages
                or attempt.taken_back is not None
                or request.placement.pinned is not None
                or request.carrier is not None
            ):
                continue
            if attempt is request.attempt and not request.retrying:
                if not self._budget.take(len(self._requests)):
                    self._hits.hit("retry_budget")
                    return
                request.retrying = True
            request.take_back(attempt, TakenBack.WORKER_DOWN)

    def _running(self) -> Iterator[tuple[Request, Attempt]]:
        """The attempts that workers have, those of hedges among them."""
        for request in list(self._requests.values()):
            attempt, hedge = request.attempt, request.hedge
            if attempt is not None and attempt.call is not None:
                yield request, attempt
            if hedge is not None and hedge.is_open and hedge.attempt is not None:
                if hedge.attempt.call is not None:
                    yield request, hedge.attempt

    async def _run(self) -> None:
        touched = self._now()
        while True:
            self._lost.expect(self._now() + self._pause)
            await asyncio.sleep(self._pause)
            now = self._now()
            if not self._lost.on_look(now):
                self._look(now)
            if now - touched >= TOUCH_EVERY_S:
                touched = now
                self._ledger.forget(now)
                self._decider.poll()  # workers come and go, and bookings of others expire
                for some in by_steps(self._touched_legs(), TOUCHED_AT_ONCE):
                    self._decider.router.touch_all(some)
                    await asyncio.sleep(0)

    def _touched_legs(self) -> list[str]:
        """Keep the bookings of prefill workers; the ids of all others. (A name in `_run` would
        hold the last attempt of a server without requests.)"""
        bookings = []
        for _, attempt in self._running():
            bookings.append(attempt.booking_id)
            if attempt.leg is not None:
                attempt.leg.touch()
        return bookings

    def _look(self, now: float) -> None:
        for request in list(self._requests.values()):
            if request.attempt is None:
                waited = self._waited(request.arrived, now)
                if waited > min(self._queue, self._total):
                    self._leave_queue(request, waited)
        active: dict[int, float] = {}  # worker -> when it last did something, if it is to send some
        oldest: dict[int, float] = {}  # worker -> since when a stream has no message
        unanswered: set[int] = set()
        for request, attempt in self._running():
            self._check(request, attempt, now)
            if attempt.leg is not None and attempt.leg.is_computing:
                if (silent_s := self._waited(attempt.leg.began, now)) >= SUSPECT_AFTER_S:
                    attempt.leg.suspect(silent_s)
                unanswered.add(attempt.worker_id)
                continue  # the decode worker does not have it yet
            worker_id, since = attempt.worker_id, attempt.silent_since
            if since is None:
                since = request.last_message_at
            active[worker_id] = max(active.get(worker_id, 0.0), since)
            if not attempt.messages:
                unanswered.add(worker_id)
                if request.facts.streaming:
                    oldest[worker_id] = min(oldest.get(worker_id, math.inf), attempt.sent_at)
        for worker_id, last in active.items():
            if (silent_s := self._waited(last, now)) >= SUSPECT_AFTER_S:
                self._monitor.suspect(worker_id, silent_s)
        for worker_id, since in oldest.items():
            if (waited := self._waited(since, now)) >= self._stuck:
                self._monitor.reports.stuck(worker_id, now - waited)
        for worker_id in unanswered:
            if not self._monitor.is_ready(worker_id):
                self.move(worker_id)  # those for which there was no budget before

    def _check(self, request: Request, attempt: Attempt, now: float) -> None:
        """End an attempt that lasts too long."""
        waited = self._waited
        if waited(request.arrived, now) > self._total:
            self._end(request, attempt, TakenBack.TOTAL)
        elif attempt.silent_since is None:
            if waited(request.last_message_at, now) > self._write:
                self._end(request, attempt, TakenBack.WRITE)
        elif waited(attempt.silent_since, now) > self._silence:
            self._end(request, attempt, TakenBack.SILENCE)
        elif not attempt.messages and request.facts.streaming:
            silent_s = waited(attempt.sent_at, now)
            if silent_s > self._attempt:
                self._end(request, attempt, TakenBack.ATTEMPT)
            else:
                self._ledger.on_overdue(attempt, silent_s)

    def _end(self, request: Request, attempt: Attempt, why: TakenBack) -> None:
        if request.take_back(attempt, why) and why.limit is not None:
            self._hits.hit(why.limit)

    def _leave_queue(self, request: Request, waited: float) -> None:
        queue = self._decider.queue
        error = NoWorkersError(
            f"all workers are saturated and the request has waited for {waited:.0f} s",
            overloaded=True,
            retry_after_s=None if queue is None else queue.foreseen_wait_s(),
        )
        if self._decider.give_up(request.request_id, error):
            self._hits.hit("queue_timeout_s")


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
