"""Hedging: a request that no worker has begun to answer is sent to a second one as well.

The first to speak has it; the other attempt is cancelled, and its booking freed. Off by default.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from ...base.errors import NoWorkersError, RouterError
from ...base.limit_hits import LimitHits
from ...router.kv_router import KvRouter
from ...router.policy import Decision
from ...workers.channels import Metadata
from ...workers.failures import EngineCallError, Origin, Retry
from .attempts import RetryBudget
from .decisions import Decisions
from .ledger import AttemptLedger
from .relay import Relay, Sent
from .reply import Reply
from .request import Flight, TakenBack
from .status import OvertakenError, RequestAbortedError

_BOOKING = "\x02"
"""Marks the booking of a second attempt: no request's id begins with a control character."""


class Hedge:
    """The second attempt of a request, while another one has not begun to answer."""

    def __init__(self, twin: Flight) -> None:
        self.twin = twin
        """the request, as if it were on this attempt alone"""
        self.task: asyncio.Task[Exception | None] | None = None
        """waits for its first message; a failure if none came"""
        self.decision: Decision | None = None
        self.sent: Sent | None = None
        self.first = b""
        self.won = False
        """that message came, and nothing from the other worker before it"""
        self.dropped = False
        """nobody waits for it any more"""

    def take_over(self, flight: Flight) -> Sent:
        """Make this the request's attempt, as if it had been sent so from the beginning."""
        twin, sent = self.twin, self.sent
        assert sent is not None
        flight.booking_id, flight.decision = twin.booking_id, twin.decision
        flight.client, flight.call, flight.taken_back = twin.client, twin.call, twin.taken_back
        flight.sent_at, flight.since = twin.sent_at, twin.since
        flight.uncached_tokens, flight.counts_prefill = twin.uncached_tokens, twin.counts_prefill
        flight.prefill_timer = twin.prefill_timer
        return replace(sent, answers=_again(self.first, sent.answers))


class Hedging:
    """Makes hedges, at most one for a request and as many as the retry budget has room for.

    `flights` are the requests in flight, `hedges` the second attempts of some of them. `counts` has
    how they ended: won, lost (the other worker was first, or the client left), failed.
    """

    def __init__(
        self,
        after_s: float | None,
        router: KvRouter,
        ledger: AttemptLedger,
        relay: Relay,
        budget: RetryBudget,
        hits: LimitHits,
        decisions: Decisions,
        flights: Mapping[str, Flight],
    ) -> None:
        self.after_s = after_s
        self._router = router
        self._ledger = ledger
        self._relay = relay
        self._budget = budget
        self._hits = hits
        self._decisions = decisions
        self._flights = flights
        self.hedges: dict[str, Flight] = {}
        self._under_way: dict[str, Hedge] = {}  # by the request's id
        self.counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    def plan(self, flight: Flight, metadata: Metadata) -> None:
        """An attempt begins: think of a second one after a while."""
        if self.after_s is None or flight.pinned is not None or flight.hedged:
            return
        if flight.session is not None and self._router.sessions.hard:
            return
        flight.hedging = True
        loop = asyncio.get_running_loop()
        flight.hedge_timer = loop.call_later(self.after_s, self._begin, flight, metadata)

    def drop(self, flight: Flight) -> None:
        """The request needs no second attempt any more."""
        if flight.hedge_timer is not None:
            flight.hedge_timer.cancel()
            flight.hedge_timer = None
        flight.hedging = False
        hedge = self._under_way.pop(flight.request_id, None)
        if hedge is None:
            return
        hedge.dropped = True
        assert hedge.task is not None
        if not hedge.task.done():
            hedge.task.cancel()
        elif hedge.won:  # and yet nobody wants it
            self._keep(asyncio.create_task(self._release(hedge), name="hedge"))

    async def settle(
        self, flight: Flight, failure: Exception | None, reply: Reply, metadata: Metadata
    ) -> Exception | None:
        """The first attempt is over, and a second one is there: what came of both."""
        hedge = self._under_way.get(flight.request_id)
        if hedge is None or failure is None or flight.messages:
            self.drop(flight)
            return failure
        if not isinstance(failure, OvertakenError):
            if flight.aborted or flight.attempts.last.verdict.retry is Retry.NO:
                self.drop(flight)
                return failure
        assert hedge.task is not None
        await asyncio.wait((hedge.task,))
        if hedge.dropped:
            return RequestAbortedError(f"request {flight.request_id} was aborted")
        del self._under_way[flight.request_id]
        flight.hedging = False
        if hedge.task.cancelled():
            return failure
        second = hedge.task.result()
        if second is not None:
            return second if hedge.sent is not None else failure
        self.counts["won"] += 1
        self.hedges.pop(hedge.twin.booking_id, None)
        if flight.retrying:
            self._budget.give_back()
        flight.retrying = True
        sent = hedge.take_over(flight)
        assert hedge.decision is not None
        return await self._relay.run(flight, hedge.decision, reply, metadata, sent)

    async def close(self) -> None:
        """Wait for hedges on their way out."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, flight: Flight, metadata: Metadata) -> None:
        """The time is over: hedge, if that may be of use."""
        flight.hedge_timer = None
        if flight.messages or flight.call is None or flight.taken_back or flight.aborted:
            return
        if not self._decisions.is_open(flight.tenant):
            return  # whoever is there has enough to do
        assert flight.decision is not None
        others = flight.attempts.worker_ids | {flight.decision.worker.worker_id}
        twin = Flight(
            flight.request_id,
            flight.body,
            flight.facts,
            flight.arrived,
            flight.deadline,
            flight.attempts,
            unfit=flight.unfit | others,
            tenant=flight.tenant,
            booking_id=f"{_BOOKING}{flight.request_id}",
            retrying=True,
        )
        flight.hedged = True
        hedge = self._under_way[flight.request_id] = Hedge(twin)
        hedge.task = asyncio.create_task(self._run(flight, hedge, metadata), name="hedge")
        self._keep(hedge.task)

    async def _run(self, flight: Flight, hedge: Hedge, metadata: Metadata) -> Exception | None:
        """Send the request, and wait for the first message. None if it came."""
        twin, relay = hedge.twin, self._relay
        if not self._budget.take(len(self._flights)):
            self._hits.hit("retry_budget")
            return NoWorkersError("there is no budget for a second attempt")
        try:
            hedge.decision = twin.decision = await self._decisions.second(twin)
        except BaseException as error:
            self._budget.give_back()
            if isinstance(error, RouterError):  # there is no second worker
                return error
            raise
        try:
            self.hedges[twin.booking_id] = twin
            hedge.sent = relay.send(twin, hedge.decision, metadata)
            if hedge.sent is None:
                return relay.failed(twin, Origin.CONNECT, "it has no address")
            first = await anext(hedge.sent.answers, None)
            if first is None:
                hedge.sent.running = False
                return relay.failed(twin, Origin.EMPTY, "it ended without an answer")
            hedge.first, hedge.won = first, True
            flight.take_back(TakenBack.OVERTAKEN)
            return None
        except EngineCallError as error:
            assert hedge.sent is not None
            return relay.failed_by(twin, hedge.sent, error)
        except asyncio.CancelledError:
            return None if hedge.dropped else relay.taken_back(twin)
        finally:
            if not hedge.won:
                await self._release(hedge)

    async def _release(self, hedge: Hedge) -> None:
        """The second attempt has no use any more."""
        twin, sent = hedge.twin, hedge.sent
        self.hedges.pop(twin.booking_id, None)
        self._budget.give_back()
        self.counts["lost" if hedge.dropped else "failed"] += 1
        if hedge.dropped and hedge.decision is not None and sent is not None:
            worker_id = hedge.decision.worker.worker_id
            self._ledger.on_cancelled(twin, worker_id, late=False)
        self._ledger.on_ended(twin)
        if sent is not None and sent.running:
            await self._relay.stop(twin, sent)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _again(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A message that was read already, and those after it."""
    try:
        yield first
        async for message in rest:
            yield message
    finally:
        await rest.aclose()
