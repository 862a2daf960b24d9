"""The dispatcher: takes a request to a worker and its answer back.

Invariants: a request is booked once per attempt and freed exactly once after it, whatever
happens. A message is passed on once and in order. Once one was passed on, the request stays
with its worker: nothing is silently repeated. Only with a migration limit its rest, what was not
generated yet, is asked of another one. Whose fault a failure is says workers/failures.py.
"""

import asyncio
import itertools
import math
import secrets
from collections import ChainMap, Counter
from collections.abc import Iterable
from typing import cast

from ...base.clock import Clock
from ...base.errors import InvalidRequestError, NoWorkersError, StatusCode
from ...base.identity import WorkerWithDpRank
from ...base.limit_hits import LimitHits
from ...router.admission import NO_OBJECTIVES, NORMAL, Admission, Objectives, Urgency
from ...router.affinity import Session
from ...router.kv_router import KvRouter
from ...router.policy import Decision
from ...workers.channels import Metadata
from ...workers.failures import EngineCallError
from ...workers.health import HealthMonitor
from ..access import ANONYMOUS, Caller, check_id, generation_id, own_id
from ..request_limits import RequestLimits
from .attempts import Attempts, RetryBudget
from .decisions import Decisions, RouterDecisions
from .generate_request import GenerateFacts, restore_id, with_request_id, with_retention
from .hedging import Hedging
from .ledger import AttemptLedger
from .migrations import Migrations
from .observers import DispatchObserver, NoObserver
from .plain_calls import PlainCalls
from .prefill_estimate import PrefillEstimate
from .relay import Relay
from .reply import Put, Reply, Write
from .request import ABORT_TIMEOUT_S, NO_TRACE, Aborts, Flight, Tracing
from .request_reader import RequestReader
from .status import ClientGoneError, RequestAbortedError, RequestTimeoutError, status_of
from .watch import FlightWatch


class Dispatcher:
    """Requests in flight between clients and workers.

    At most `max_attempts` workers are tried, as long as none has answered. `silence_s` is how
    long a worker may owe a message before it is given up; None: as long as its connection lives.
    `limits` are the other bounds, counted in `hits` when they are hit.
    `reader` reads requests, and is closed with the dispatcher.
    `decisions` say where requests go; not given: the router's, with an `admission` in their turn.
    """

    def __init__(
        self,
        router: KvRouter,
        monitor: HealthMonitor,
        clock: Clock,
        *,
        max_attempts: int = 3,
        silence_s: float | None = None,
        limits: RequestLimits | None = None,
        observer: DispatchObserver | None = None,
        admission: Admission | None = None,
        decisions: Decisions | None = None,
        hits: LimitHits | None = None,
        reader: RequestReader | None = None,
        tracing: Tracing = NO_TRACE,
    ) -> None:
        limits = limits or RequestLimits()
        self._router = router
        self._sessions = router.sessions
        self._monitor = monitor
        self._now = clock.now
        self._max_attempts = max_attempts
        self._observer = observer or NoObserver()
        if decisions is None:
            decisions = RouterDecisions(router, clock, admission)
        self._decisions = decisions
        bookings, load_fell = decisions.bookings, decisions.load_fell
        self._tracing = tracing
        self._flights: dict[str, Flight] = {}
        self._ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())
        estimate = PrefillEstimate()
        self.budget = RetryBudget(limits.retry_budget, limits.retry_budget_least)
        self.hits = hits or LimitHits()
        self.reader = reader or RequestReader(router.block_size, hits=self.hits)
        self.aborts = Aborts()
        self.plain = PlainCalls(monitor, clock, self._observer, max_attempts, tracing)
        self._ledger = AttemptLedger(bookings, monitor, clock, self.budget, estimate, load_fell)
        self._relay = Relay(router, monitor, clock, self._ledger, self._observer, self.aborts)
        self.prefetcher = self._relay.prefetcher
        if isinstance(decisions, RouterDecisions):
            decisions.on_held = self.prefetcher.on_held
        self._hedging = Hedging(
            limits.hedge_after_s,
            router,
            self._ledger,
            self._relay,
            self.budget,
            self.hits,
            self._decisions,
            self._flights,
        )
        self._relay.on_begun = self._hedging.drop
        self.migrations = Migrations(limits.migration_limit, monitor, self.reader)
        self._watch = FlightWatch(
            ChainMap(self._flights, self._hedging.hedges),
            bookings,
            monitor,
            clock,
            limits,
            silence_s=silence_s,
            budget=self.budget,
            estimate=estimate,
            hits=self.hits,
            decisions=self._decisions,
        )

    @property
    def in_flight(self) -> int:
        return len(self._flights) + self.plain.in_flight

    @property
    def flights(self) -> Iterable[Flight]:
        """Requests in flight, oldest first. Look at them without giving up the event loop."""
        return self._flights.values()

    @property
    def hedges(self) -> Counter[str]:
        """How second attempts ended: won, lost, failed."""
        return self._hedging.counts

    async def generate(
        self,
        request: bytes,
        respond: Write,
        *,
        put: Put | None = None,
        timeout: float | None = None,
        metadata: Metadata = (),
        pinned: WorkerWithDpRank | None = None,
        urgency: Urgency = NORMAL,
        objectives: Objectives = NO_OBJECTIVES,
        call_metadata: Metadata = (),
        session: Session | None = None,
        caller: Caller = ANONYMOUS,
        stops_held: bool = False,
    ) -> Decision:
        """Have a worker answer a serialized GenerateRequest; return what was decided on it.

        Every message of the worker goes to `respond` as it is; of a stream that migrated, as if one
        worker had said all of it. `put` is tried before it, and is quicker where a message need not
        wait. `call_metadata`: all that came with the call, of which `metadata` goes on.
        `stops_held`: `respond` itself ends the answer at stop strings.
        Raises what `status_of` knows:
        InvalidRequestError, NoWorkersError, WorkerError, RequestTimeoutError, or the engine's own
        status. Cancel the task to give the request up; the worker is told.

        An id that the caller has in flight already is refused: an abort or a release under it could
        hit the wrong one of the two. A request without an id is given one, which the answers carry.
        """
        flight = None
        code, said = StatusCode.OK, ""
        trace = self._tracing.begin(metadata)
        try:
            facts = self.reader.generate_at_once(request)
            if facts is None:
                facts = await self.reader.generate(request)
            if session is not None:
                affinity = self._router.config.affinity
                request = with_retention(request, facts, session, metadata, affinity)
            flight = self._admit(request, facts, pinned, timeout, caller)
            flight.urgency, flight.trace = urgency, trace
            namespace, tenants = facts.prompt.cache_namespace, self._router.limits.tenants.config
            flight.tenant = tenants.tenant_of(call_metadata, caller.name, namespace)
            if session is not None and self._sessions.enabled:
                flight.session = session
                self._sessions.begin(session)
            flight.objectives = self._router.limits.objectives(facts.prompt.isl, objectives)
            reply = Reply(respond, put)
            if self.migrations.limit and (noted := self.migrations.follow(flight)) is not None:
                reply.changes.append(noted)
            if caller.name:
                own = own_id(flight.request_id, caller)
                reply.changes.append(restore_id(flight.request_id, own))
            return await self._serve(flight, reply, metadata, stops_held)
        except asyncio.CancelledError as error:
            code = StatusCode.CANCELLED
            if flight is None or not self._relay.is_late(flight):
                raise
            code = StatusCode.DEADLINE_EXCEEDED
            if flight.taken_back is None or cast("asyncio.Task[object]", flight.task).uncancel():
                raise  # by its client's deadline: nobody is there to be told
            raise RequestTimeoutError(flight.taken_back.text) from error
        except BaseException as error:
            code, said = status_of(error)
            if (
                isinstance(error, ClientGoneError)
                and flight is not None
                and self._relay.is_late(flight)
            ):
                code = StatusCode.DEADLINE_EXCEEDED
            raise
        finally:
            if flight is not None:
                del self._flights[flight.request_id]
                if flight.hedging or flight.hedged:
                    self._hedging.drop(flight)
                if flight.moves:
                    self.migrations.settle(flight)
                self.prefetcher.on_over(flight.request_id)
                if flight.session is not None:
                    self._end_session(flight, code)
                if code is not StatusCode.OK:
                    self._ledger.on_request_failed(flight, code, said)
            self._observer.on_end(flight, code)
            trace.ended(flight, code, said)

    def has(self, request_id: str, caller: Caller) -> bool:
        """Whether a request that the caller gave this id is in flight here."""
        return generation_id(caller, request_id) in self._flights

    async def abort(self, request_id: str, caller: Caller = ANONYMOUS) -> tuple[bool, str]:
        """Stop a request that the caller has in flight: (whether there was one, a word on it)."""
        flight = self._flights.get(generation_id(caller, request_id))
        if flight is None:
            return False, f"request {request_id} not found"
        flight.aborted = True
        self._hedging.drop(flight)
        if flight.client is None or flight.call is None:
            error = RequestAbortedError(f"request {request_id} was aborted")
            self._decisions.give_up(flight.request_id, error)
            return True, "not started yet"
        try:
            return await flight.client.abort(flight.request_id, timeout=ABORT_TIMEOUT_S)
        except EngineCallError as error:
            # The worker does not answer: at least let go of it.
            if flight.call is not None:
                flight.call.cancel()
            return True, f"cancelled; its worker did not answer: {error.details()}"

    def set_limits(
        self, limits: RequestLimits, *, max_attempts: int, silence_s: float | None
    ) -> None:
        """Use other limits from now on, also for requests in flight."""
        self._max_attempts = self.plain.max_attempts = max_attempts
        self.budget.share, self.budget.least = limits.retry_budget, limits.retry_budget_least
        self._watch.set_limits(limits, silence_s)
        self._hedging.after_s = limits.hedge_after_s
        self.migrations.limit = limits.migration_limit

    def start(self) -> None:
        """Begin to look after what is in flight."""
        self._watch.start()

    async def close(self) -> None:
        """Stop watching, and wait for aborts on their way."""
        await self._watch.close()
        await self._hedging.close()
        await self.aborts.close()
        await self.prefetcher.close()
        self.reader.close()

    def _admit(
        self,
        body: bytes,
        facts: GenerateFacts,
        pinned: WorkerWithDpRank | None,
        timeout: float | None,
        caller: Caller,
    ) -> Flight:
        unfit, refusal = self._monitor.limits.check(facts.prompt.isl, facts.largest_token)
        if refusal is not None:
            raise InvalidRequestError(refusal)
        check_id(facts.request_id)
        request_id = generation_id(caller, facts.request_id or next(self._ids))
        if request_id in self._flights:
            text = f"request id {facts.request_id!r} is in use"
            raise InvalidRequestError(text, field="request_id")
        if request_id != facts.request_id:
            body = with_request_id(body, request_id)
        now = self._now()
        flight = self._flights[request_id] = Flight(
            request_id,
            body,
            facts,
            now,
            math.inf if timeout is None else now + timeout,
            Attempts(self._max_attempts),
            pinned,
            unfit=unfit,
            task=asyncio.current_task(),
        )
        return flight

    async def _serve(
        self, flight: Flight, reply: Reply, metadata: Metadata, stops_held: bool
    ) -> Decision:
        """Try workers until one has answered."""
        decisions, sessions, session = self._decisions, self._sessions, flight.session
        failure: Exception | None = None
        while True:
            again = failure is not None
            try:
                flight.check_aborted()
                decision = decisions.at_once(flight, again=again)
                if decision is None:
                    decision = await decisions.in_turn(flight, again=again)
            except NoWorkersError:
                if session is not None:
                    sessions.counts["refused"] += 1
                if failure is None:
                    raise
                self.migrations.on_no_worker(flight)
                raise failure from None
            if failure is not None:
                self._observer.on_retry(flight, failure)
            if self._hedging.after_s is not None:
                self._hedging.plan(flight, metadata)
            failure = await self._relay.run(flight, decision, reply, metadata)
            if flight.hedging:
                failure = await self._hedging.settle(flight, failure, reply, metadata)
            if failure is None:
                served = flight.decision or decision
                if session is not None and served is not decision:  # by a hedge
                    sessions.bind(session, served.worker)
                return served
            flight.check_aborted()
            if flight.stream is not None and flight.messages:
                if not await self.migrations.next_request(flight, stops_held, self._has_budget):
                    raise failure
                if not flight.body:  # nothing is left to be generated
                    self._ledger.on_finished(flight)
                    await reply.send(flight.stream.end())
                    return decision
            elif flight.pinned is not None or not self._may_retry(flight):
                self.migrations.on_given_up(flight)
                raise failure

    def _end_session(self, flight: Flight, code: StatusCode) -> None:
        """A request of a session is over; a worker that failed it need not have the next one."""
        assert flight.session is not None
        failed = code is not StatusCode.OK and len(flight.attempts)
        if failed and flight.decision is not None and not flight.attempts.is_own_fault:
            self._sessions.unbind(flight.session, flight.decision.worker)
        self._sessions.end(flight.session)

    def _may_retry(self, flight: Flight) -> bool:
        """Whether to try another worker; takes from the budget if that makes work twice."""
        if flight.messages or not flight.attempts.may_go_on:
            return False
        return self._has_budget(flight)

    def _has_budget(self, flight: Flight) -> bool:
        """Whether a further attempt may be made, as far as the work goes that it makes twice."""
        if flight.attempts.repeats_work and not flight.retrying:
            if not self.budget.take(len(self._flights)):
                self.hits.hit("retry_budget")
                return False
            flight.retrying = True
        return True
