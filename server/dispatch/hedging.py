"""Hedging: a request that no worker has begun to answer is sent to a second one as well.

The first to answer serves it; the other attempt is cancelled, and its booking freed. Off by
default.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...base.clock import Clock
from ...base.errors import NoWorkersError, RouterError
from ...base.limit_hits import LimitHits
from ...router.decider import Decider
from ...router.pairs import PairDecision
from ...router.placement import Placement
from ...workers.channels import Metadata
from ...workers.failures import EngineCallError, Origin, Retry
from .engine_calls import Answers, EngineCalls
from .ledger import AttemptLedger
from .request import Attempt, Hedge, Request, TakenBack
from .retries import RetryBudget
from .status import OvertakenError, RequestAbortedError

_BOOKING = "\x02"
"""Marks the booking of a second attempt: no request's id begins with a control character."""


class Hedging:
    """Makes hedges, at most one for a request and as many as the retry budget allows.

    `requests` are those in flight. `counts` has how hedges ended: won, lost (the other worker was
    first, or the client left), failed.
    """

    def __init__(
        self,
        after_s: float | None,
        decider: Decider,
        clock: Clock,
        calls: EngineCalls,
        ledger: AttemptLedger,
        budget: RetryBudget,
        hits: LimitHits,
        requests: Mapping[str, Request],
    ) -> None:
        self.after_s = after_s
        self._decider = decider
        self._now = clock.now
        self._calls = calls
        self._ledger = ledger
        self._budget = budget
        self._hits = hits
        self._requests = requests
        self.counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    def plan(self, request: Request, metadata: Metadata) -> None:
        """An attempt begins: begin a second one after a while."""
        placement, hedge = request.placement, request.hedge
        if self.after_s is None or placement.pinned is not None:
            return
        if hedge is not None and hedge.task is not None:
            return
        if placement.session is not None and self._decider.router.sessions.hard:
            return
        loop = asyncio.get_running_loop()
        request.hedge = Hedge(loop.call_later(self.after_s, self._begin, request, metadata))

    def drop(self, request: Request) -> None:
        """The request needs no second attempt any more. Idempotent."""
        hedge = request.hedge
        if hedge is None or not hedge.is_open:
            return
        hedge.is_open = False
        if hedge.timer is not None:
            hedge.timer.cancel()
            hedge.timer = None
        if hedge.task is None:
            return
        hedge.dropped = True
        if not hedge.task.done():
            hedge.task.cancel()
        elif hedge.won:  # but the other worker has begun to answer, or the client left
            release = self._release(request, hedge)
            self._keep(asyncio.create_task(release, name="hedge"))

    async def settle(
        self, request: Request, failure: Exception | None
    ) -> tuple[Exception | None, Answers | None]:
        """The first attempt is over while a hedge is open: what came of both.

        With answers the hedge has won: it is the request's attempt now, and they are to be relayed.
        """
        hedge, first = request.hedge, request.attempt
        assert hedge is not None and first is not None
        if hedge.task is None or failure is None or first.messages:
            self.drop(request)
            return failure, None
        if not isinstance(failure, OvertakenError):
            if request.aborted or request.failures.last.verdict.retry is Retry.NO:
                self.drop(request)
                return failure, None
        await asyncio.wait((hedge.task,))
        if hedge.dropped:
            return RequestAbortedError(f"request {request.request_id} was aborted"), None
        hedge.is_open = False
        if hedge.task.cancelled():
            return failure, None
        second = hedge.task.result()
        if second is not None:
            return failure if hedge.answers is None else second, None
        assert hedge.attempt is not None and hedge.answers is not None
        self.counts["won"] += 1
        if request.retrying:
            self._budget.give_back()
        request.retrying = True
        request.attempt = hedge.attempt
        return None, _again(hedge.first, hedge.answers)

    async def close(self) -> None:
        """Wait for hedges on their way out."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, request: Request, metadata: Metadata) -> None:
        """The time is over: hedge, if that may be of use."""
        hedge, first = request.hedge, request.attempt
        assert hedge is not None and first is not None
        hedge.timer = None
        if first.messages or first.call is None or first.taken_back or request.aborted:
            return
        placement = replace(
            request.placement,
            request_id=f"{_BOOKING}{request.request_id}",
            excluded=request.placement.excluded | request.failures.worker_ids | {first.worker_id},
            session=None,
        )
        if not self._decider.is_open(placement):
            return  # the workers have enough to do
        hedge.task = asyncio.create_task(
            self._run(request, hedge, first, placement, metadata), name="hedge"
        )
        self._keep(hedge.task)

    async def _run(
        self,
        request: Request,
        hedge: Hedge,
        first: Attempt,
        placement: Placement,
        metadata: Metadata,
    ) -> Exception | None:
        """Send the request, and wait for the first message. None if it came."""
        calls = self._calls
        if not self._budget.take(len(self._requests)):
            self._hits.hit("retry_budget")
            return NoWorkersError("there is no budget for a second attempt")
        began = self._now()
        try:
            decision = self._decider.router.place(placement)
        except BaseException as error:
            self._budget.give_back()
            if isinstance(error, RouterError):  # there is no second worker
                return error
            raise
        try:
            attempt = hedge.attempt = calls.new_attempt(
                placement, PairDecision(decision), began, first.queue_s
            )
        except BaseException:
            self._budget.give_back()
            self._ledger.release(placement.request_id, None)
            raise
        try:
            hedge.answers = calls.send(request, attempt, metadata)
            if hedge.answers is None:
                return calls.failed(request, attempt, Origin.CONNECT, "it has no address")
            message = await anext(hedge.answers, None)
            if message is None:
                attempt.call = None
                return calls.failed(request, attempt, Origin.EMPTY, "it ended without an answer")
            hedge.first, hedge.won = message, True
            request.take_back(first, TakenBack.OVERTAKEN)
            return None
        except EngineCallError as error:
            return calls.failed_by(request, attempt, error)
        except asyncio.CancelledError:
            return None if hedge.dropped else calls.taken_back(request, attempt)
        finally:
            if not hedge.won:
                await self._release(request, hedge)

    async def _release(self, request: Request, hedge: Hedge) -> None:
        """The second attempt has no use any more."""
        attempt, answers = hedge.attempt, hedge.answers
        assert attempt is not None
        self._budget.give_back()
        self.counts["lost" if hedge.dropped else "failed"] += 1
        if hedge.dropped and answers is not None:
            self._ledger.on_cancelled(request, attempt, late=False)
        self._ledger.on_ended(attempt)
        if attempt.call is not None and answers is not None:
            await self._calls.stop(request, attempt, answers)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _again(first: bytes, rest: Answers) -> Answers:
    """A message that was read already, and those after it."""
    try:
        yield first
        async for message in rest:
            yield message
    finally:
        await rest.aclose()
