"""The dispatcher: takes a request to a worker and its answer back.

Invariants: a request is booked once per attempt and freed exactly once after it, whatever
happens. A message is passed on once and in order. Once one was passed on, the request stays
with its worker: nothing is silently repeated. Only with a migration limit its rest, what was not
generated yet, is asked of another one. workers/failures.py classifies failures by cause.
"""

import asyncio
import itertools
import math
import secrets
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from ...base.clock import Clock
from ...base.errors import InvalidRequestError, NoWorkersError, StatusCode
from ...base.identity import WorkerWithDpRank
from ...base.limit_hits import LimitHits
from ...base.lost_time import LostTime
from ...router.admission import NO_OBJECTIVES, NORMAL, Objectives, Urgency
from ...router.affinity import Session
from ...router.decider import Decider
from ...router.pairs import NoCapacityError, PairDecision
from ...router.placement import Computed, Placement
from ...router.policy import Decision
from ...workers.channels import Metadata
from ...workers.failures import EngineCallError, shortened
from ...workers.health import HealthMonitor
from ..access import ANONYMOUS, Caller, check_id, generation_id, own_id
from ..handoff import Handoffs, PrefillLeg, SharedRequest
from ..prefetch import Prefetcher
from ..request_limits import DispatchLimits
from .engine_calls import ABORT_TIMEOUT_S, EngineCalls
from .generate_answer import is_whole
from .generate_request import (
    GenerateFacts,
    ReadRequest,
    restore_id,
    with_request_id,
    with_retention,
)
from .hedging import Hedging
from .ledger import AttemptLedger
from .migrations import Migrations
from .observers import DispatchObserver, NoObserver, OtherCall
from .plain_calls import PlainCalls
from .relay import Relay
from .request import (
    GENERATE,
    NO_TRACE,
    Aborted,
    Attempt,
    Carrier,
    Put,
    Reply,
    Request,
    Tracing,
    Write,
)
from .request_reader import RequestReader
from .retries import FailedAttempts, RetryBudget
from .status import ClientGoneError, RequestAbortedError, RequestTimeoutError, status_of
from .watch import RequestWatch

MOST_CARRIED = 2
"""Attempts of a request that a proxy carries: where it was sent, and where it was served."""


class Dispatcher:
    """Requests in flight between clients and workers, which go where `decider` decides.

    `limits` are bounds on them, counted in `hits` when they are hit. `reader` reads requests, and
    is closed with the dispatcher.
    """

    def __init__(
        self,
        decider: Decider,
        monitor: HealthMonitor,
        clock: Clock,
        limits: DispatchLimits | None = None,
        *,
        observer: DispatchObserver | None = None,
        hits: LimitHits | None = None,
        reader: RequestReader | None = None,
        tracing: Tracing = NO_TRACE,
        handoffs: Handoffs | None = None,
        notes_forecasts: bool = False,
    ) -> None:
        """`handoffs`: the prefill workers in front of these; None: there are none.
        `notes_forecasts`: an observer reads what TTFT the policy foresaw of each attempt."""
        limits = limits or DispatchLimits()
        bounds, router = limits.requests, decider.router
        self._decider = decider
        self._router = router
        self._sessions = router.sessions
        self._monitor = monitor
        self._now = clock.now
        self._max_attempts = limits.max_attempts
        self._observer = observer or NoObserver()
        self._tracing = tracing
        self._requests: dict[str, Request] = {}
        self._ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())
        self.budget = RetryBudget(bounds.retry_budget, bounds.retry_budget_least)
        self.hits = hits or LimitHits()
        self.reader = reader or RequestReader(router.block_size, hits=self.hits)
        self.plain = PlainCalls(monitor, clock, self._observer, limits.max_attempts, tracing)
        self.prefetcher = Prefetcher(router, monitor)
        self.migrations = Migrations(bounds.migration_limit, monitor, self.reader)
        self.handoffs = handoffs or Handoffs(decider, monitor, clock)
        lost = LostTime()
        ledger = self._ledger = AttemptLedger(
            decider, monitor, clock, self.budget, self.handoffs, lost
        )
        self._calls = EngineCalls(router, monitor, clock, ledger, self.prefetcher, notes_forecasts)
        self.aborts = self._calls.aborts
        self._queue_s = bounds.queue_timeout_s
        self._hedging = Hedging(
            bounds.hedge_after_s,
            decider,
            clock,
            self._calls,
            ledger,
            self.budget,
            self.hits,
            self._requests,
        )
        self._relay = Relay(self._calls, self._hedging, ledger, monitor, clock, self._observer)
        self._watch = RequestWatch(
            self._requests, decider, monitor, clock, limits, ledger, self.budget, self.hits, lost
        )

    @property
    def in_flight(self) -> int:
        return len(self._requests) + self.plain.in_flight

    @property
    def requests(self) -> Iterable[Request]:
        """Requests in flight, oldest first. Do not await while iterating."""
        return self._requests.values()

    @property
    def hedges(self) -> Counter[str]:
        """How second attempts ended: won, lost, failed."""
        return self._hedging.counts

    async def generate(
        self,
        message: bytes | ReadRequest,
        respond: Write,
        *,
        put: Put | None = None,
        timeout: float | None = None,
        metadata: Metadata = (),
        pinned: WorkerWithDpRank | None = None,
        computed: Computed | None = None,
        urgency: Urgency = NORMAL,
        objectives: Objectives = NO_OBJECTIVES,
        call_metadata: Metadata = (),
        session: Session | None = None,
        caller: Caller = ANONYMOUS,
        stops_held: bool = False,
        allowed: Collection[int] = (),
        carrier: Carrier | None = None,
        task: "asyncio.Task[Any] | None" = None,
    ) -> PairDecision:
        """Have a worker answer a GenerateRequest, serialized or read already; return the decision.

        Every message of the worker goes to `respond` as it is; of a stream that migrated, as if one
        worker had sent all of it. `put` is tried before it, and is quicker where a message need not
        wait. `call_metadata`: all that came with the call, of which `metadata` goes on.
        `stops_held`: `respond` itself ends the answer at stop strings. `allowed`: ids of the only
        workers that it may go to; empty: all. With a `carrier` its worker is not called: what
        fails is not retried, hedged or moved here. `task`: the one that runs, if its caller knows.
        Raises what `status_of` knows:
        InvalidRequestError, NoWorkersError, WorkerError, RequestTimeoutError, or the engine's own
        status. Cancel the task to give the request up; it is aborted at the worker.

        An id that the caller has in flight already is refused: an abort or a release under it could
        hit the wrong one of the two. A request without an id is given one, which the answers carry.
        """
        request = facts = None
        code, details, given = StatusCode.OK, "", ""
        tracing = self._tracing
        trace = NO_TRACE if tracing is NO_TRACE else tracing.begin(metadata)
        try:
            if isinstance(message, bytes):
                body, facts = message, self.reader.generate_at_once(message)
                if facts is None:
                    facts = await self.reader.generate(message)
            else:
                body, facts = message.body, message.facts
            if facts.has_phase:
                self.handoffs.check_trusted()
            limits, prompt = self._router.limits, facts.prompt
            unfit, refusal = self._monitor.limits.check(
                prompt.isl, facts.largest_token, facts.max_tokens
            )
            if refusal is not None:
                if carrier is None:
                    raise InvalidRequestError(refusal)
                unfit = frozenset()  # the engine counts the tokens itself, and refuses
            request_id = facts.request_id
            if caller.name or request_id < " " or request_id in self._requests:
                request_id = self._new_id(facts, caller)
            if session is not None:
                affinity = self._router.config.affinity
                body = with_retention(body, facts, session, metadata, affinity)
            if request_id != facts.request_id:
                body = with_request_id(body, request_id)
            now = self._now()
            tenants, tenant = limits.tenants.config, ""
            if tenants.tenant_key is not None:
                tenant = tenants.tenant_of(call_metadata, caller.name, prompt.cache_namespace)
            placement = Placement(
                prompt,
                request_id,
                now,
                pinned,
                computed,
                unfit,
                False,
                session if self._sessions.enabled else None,
                tenant,
                urgency,
                limits.objectives(prompt.isl, objectives),
                facts.max_tokens or None,
                allowed,
                runners_up=0 if carrier is None or pinned is not None else carrier.fallbacks,
            )
            moves = self.migrations.limit > 0 and carrier is None
            request = self._requests[request_id] = Request(
                request_id,
                body,
                facts,
                now,
                placement,
                math.inf if timeout is None else now + timeout,
                FailedAttempts(self._max_attempts if carrier is None else MOST_CARRIED),
                task or asyncio.current_task(),
                trace,
                self.migrations.stream_of(body, facts, placement) if moves else None,
                session,
                carrier,
                SharedRequest(body) if self.handoffs.is_possible else None,
            )
            if placement.session is not None:
                self._sessions.begin(placement.session)
            reply = Reply(respond, put)
            if request.stream is not None:
                reply.changes.append(partial(self.migrations.take, request))
            if caller.name:
                reply.changes.append(restore_id(request_id, own_id(request_id, caller)))
            return await self._serve(request, reply, metadata, stops_held)
        except asyncio.CancelledError as error:
            code = StatusCode.CANCELLED
            if request is None or not self._calls.is_late(request, request.attempt):
                raise
            code = StatusCode.DEADLINE_EXCEEDED
            why = None if request.attempt is None else request.attempt.taken_back
            if why is None or cast("asyncio.Task[object]", request.task).uncancel():
                raise  # by its client's deadline: no client is left to get an error
            raise RequestTimeoutError(why.text) from error
        except BaseException as error:
            code, details = status_of(error)
            if isinstance(error, InvalidRequestError):
                given = error.request_id
            if (
                isinstance(error, ClientGoneError)
                and request is not None
                and self._calls.is_late(request, request.attempt)
            ):
                code = StatusCode.DEADLINE_EXCEEDED
            raise
        finally:
            try:
                if request is not None:
                    del self._requests[request.request_id]
                    self._end(request, code, details)
            finally:
                other = None
                if request is None:
                    given = given if facts is None else facts.request_id
                    other = OtherCall(GENERATE, given, details)
                self._observer.on_end(request, code, other)
                if trace is not NO_TRACE:
                    trace.ended(request, code, details)

    def has(self, request_id: str, caller: Caller) -> bool:
        """Whether a request that the caller gave this id is in flight here."""
        return generation_id(caller, request_id) in self._requests

    def decision_of(self, request_id: str, caller: Caller) -> Decision | None:
        """Where a request that the caller gave this id is. None: nowhere, or not in flight."""
        request = self._requests.get(generation_id(caller, request_id))
        return None if request is None else request.decision

    async def abort(self, request_id: str, caller: Caller = ANONYMOUS) -> tuple[bool, str]:
        """Stop a request that the caller has in flight: (whether there was one, a word on it)."""
        request = self._requests.get(generation_id(caller, request_id))
        if request is None:
            return False, f"request {request_id} not found"
        request.aborted = request.aborted or Aborted.ON_DEMAND
        self._hedging.drop(request)
        attempt = request.attempt
        if attempt is None or attempt.client is None or attempt.call is None:
            error = RequestAbortedError(f"request {request_id} was aborted")
            self._decider.give_up(request.request_id, error)
            return True, "not started yet"
        try:
            ran, text = await attempt.client.abort(request.request_id, timeout=ABORT_TIMEOUT_S)
            return ran, shortened(text)
        except EngineCallError as error:
            # The worker does not answer: at least let go of it.
            if attempt.call is not None:
                attempt.call.cancel()
            return True, f"cancelled; its worker did not answer: {shortened(error.public)}"

    async def finish(self, request_id: str, caller: Caller) -> None:
        """Stop a request of which the client has all that it wants: it ended well, whatever its
        worker makes of that."""
        if (request := self._requests.get(generation_id(caller, request_id))) is not None:
            request.aborted = Aborted.READ
            await self.abort(request_id, caller)

    def set_limits(self, limits: DispatchLimits) -> None:
        """Use other limits from now on, also for requests in flight."""
        bounds = limits.requests
        self._max_attempts = self.plain.max_attempts = limits.max_attempts
        self.budget.share, self.budget.least = bounds.retry_budget, bounds.retry_budget_least
        self._watch.set_limits(limits)
        self._queue_s = bounds.queue_timeout_s
        self._hedging.after_s = bounds.hedge_after_s
        self.migrations.limit = bounds.migration_limit

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

    def _new_id(self, facts: GenerateFacts, caller: Caller) -> str:
        """The id that a request is known by; InvalidRequestError if it is in use."""
        check_id(facts.request_id)
        request_id = generation_id(caller, facts.request_id or next(self._ids))
        if request_id in self._requests:
            text = f"request id {facts.request_id!r} is in use"
            raise InvalidRequestError(text, field="request_id")
        return request_id

    async def _serve(
        self, request: Request, reply: Reply, metadata: Metadata, stops_held: bool
    ) -> PairDecision:
        """Try workers until one has answered."""
        decider, session = self._decider, request.placement.session
        failure: Exception | None = None
        while True:
            placement = request.placement
            if failure is not None:
                failed = placement.excluded | request.failures.worker_ids
                placement = replace(placement, excluded=failed, retried=True)
            try:
                if request.aborted:
                    request.check_aborted()
                if decider.is_open(placement):
                    attempt = self._book(request, placement)
                else:
                    on_wait = None
                    if request.carrier is None:
                        on_wait = partial(self.prefetcher.on_held, placement, request.body)
                    async with decider.turn(placement, on_wait):
                        request.check_aborted()  # between its turn and its departure
                        attempt = self._book(request, placement)
                if attempt is None:
                    attempt = await self._book_with_capacity(request, placement)
            except NoWorkersError:
                if session is not None:
                    self._sessions.counts["refused"] += 1
                if failure is None:
                    raise
                self.migrations.on_no_worker(request)
                raise failure from None
            if failure is not None:
                self._observer.on_retry(request, failure)
            if self._hedging.after_s is not None and request.carrier is None:
                self._hedging.plan(request, metadata)
            failure = await self._relay.run(request, attempt, reply, metadata)
            if request.hedge is not None and request.hedge.is_open:
                failure, answers = await self._hedging.settle(request, failure)
                if answers is not None:
                    hedge = request.attempt
                    assert hedge is not None
                    failure = await self._relay.run(request, hedge, reply, metadata, answers)
                    if failure is None and session is not None:
                        self._sessions.bind(session, hedge.decision.worker)
                    attempt = hedge
            if failure is None:
                return attempt.pair
            if request.aborted is Aborted.READ or (
                attempt.messages
                and attempt.silent_since is not None  # its client has the last one
                and request.facts.sequences == 1
                and is_whole(request.last_message)
            ):
                self._ledger.on_finished(request)
                return attempt.pair
            request.check_aborted()
            if request.stream is not None and attempt.messages:
                if not await self.migrations.move(request, attempt, stops_held, self._has_budget):
                    raise failure
                if not request.stream.body:  # nothing is left to be generated
                    self._ledger.on_finished(request)
                    await reply.send(request.stream.end())
                    return attempt.pair
            elif placement.pinned is not None or not self._may_retry(request, attempt):
                self.migrations.on_given_up(request)
                raise failure

    def _book(self, request: Request, placement: Placement) -> Attempt | None:
        """Decide where the request goes now, and make that its attempt. None: no decode worker has
        capacity for its prompt, or others wait for that."""
        began, handoffs = self._now(), self.handoffs
        if handoffs.waiting:
            return None
        try:
            pair, leg = self._decide(request, placement)
        except NoCapacityError:
            return None
        return self._begun(request, placement, pair, leg, began)

    def _decide(
        self, request: Request, placement: Placement
    ) -> tuple[PairDecision, PrefillLeg | None]:
        """The workers of both legs, or the one for the whole request, where it is booked now."""
        handoffs, shared = self.handoffs, request.shared
        pool = None if shared is None else handoffs.pool_for(placement, shared)
        if shared is None or pool is None:
            return PairDecision(self._decider.decide(placement)), None
        if handoffs.is_full(pool):
            self.hits.hit("max_unread_prompts")
            raise NoWorkersError("too many prompts wait for their readers", overloaded=True)
        may_move = request.stream is not None and request.moves < self.migrations.limit
        is_first = may_move and handoffs.sends_first(pool, shared)
        return handoffs.decide_pair(placement, pool, is_first)

    async def _book_with_capacity(self, request: Request, placement: Placement) -> Attempt:
        """The same once a decode worker has capacity."""
        decide = partial(self._decide, request, placement)
        pair, leg = await self.handoffs.await_capacity(decide, self._queue_s)
        return self._begun(request, placement, pair, leg, self._now())

    def _begun(
        self,
        request: Request,
        placement: Placement,
        pair: PairDecision,
        leg: PrefillLeg | None,
        began: float,
    ) -> Attempt:
        last, client = request.attempt, None
        try:
            if leg is not None:
                number = len(request.failures) + request.moves
                most = placement.expected_output_tokens or 0
                client = self.handoffs.client(pair, leg, request.request_id, number, most)
            queue_s = began - request.arrived if last is None else last.queue_s
            attempt = self._calls.new_attempt(placement, pair, began, queue_s, leg, client)
        except BaseException:
            self._ledger.release(placement.request_id, leg)
            raise
        request.attempt = attempt
        if request.trace is not NO_TRACE:
            request.trace.decided(request, attempt)
        return attempt

    def _end(self, request: Request, code: StatusCode, details: str) -> None:
        """The request is over, however it ended."""
        if (last := request.attempt) is not None and not last.ended:
            self._ledger.on_ended(last)  # it failed before it was sent
        if request.hedge is not None:
            self._hedging.drop(request)
        if request.stream is not None:
            self.migrations.settle(request)
        if self.prefetcher.plan.held:
            self.prefetcher.on_over(request.request_id)
        session, attempt = request.placement.session, request.attempt
        if session is not None:
            # A worker that failed it need not have the session's next request.
            failed = code is not StatusCode.OK and len(request.failures)
            if failed and attempt is not None and not request.failures.is_own_fault:
                self._sessions.unbind(session, attempt.decision.worker)
            self._sessions.end(session)
        if code is not StatusCode.OK:
            self._ledger.on_request_failed(request, code, details)

    def _may_retry(self, request: Request, attempt: Attempt) -> bool:
        """Whether to try another worker; takes from the budget if that makes work twice."""
        if attempt.messages or not request.failures.may_go_on:
            return False
        if request.carrier is not None:
            return request.carrier.moved
        return self._has_budget(request)

    def _has_budget(self, request: Request) -> bool:
        """Whether a further attempt may be made, as far as the work goes that it makes twice."""
        if request.failures.repeats_work and not request.retrying:
            if not self.budget.take(len(self._requests)):
                self.hits.hit("retry_budget")
                return False
            request.retrying = True
        return True
