"""The dispatcher: takes a request to a worker and its answer back.

Invariants: a request is booked once per attempt and freed exactly once after it, whatever
happens. A message is passed on once and in order. Once one was passed on, the request stays
with its worker: nothing is silently repeated. Whose fault a failure is says workers/failures.py.
"""

import asyncio
import itertools
import math
import secrets
from collections.abc import AsyncGenerator
from functools import partial
from typing import cast

import grpc

from ...runtime.clock import Clock
from ...runtime.errors import InvalidRequestError, NoWorkersError
from ...runtime.identity import WorkerWithDpRank
from ...runtime.limit_hits import LimitHits
from ...workers.failures import Origin
from ...workers.health import HealthMonitor
from ...workers.trtllm_client import Metadata
from ..access import ANONYMOUS, Caller, check_id, generation_id, own_id
from ..admission import NORMAL, Ticket, Urgency
from ..kv_router import KvRouter
from ..policy import Decision
from ..request_limits import RequestLimits
from .attempts import Attempts, RetryBudget
from .generate_request import GenerateFacts, Respond, restore_id, with_request_id
from .ledger import AttemptLedger
from .observers import DispatchObserver, NoObserver
from .plain_calls import PlainCalls
from .prefill_estimate import PrefillEstimate
from .request import ABORT_TIMEOUT_S, NO_TRACE, Aborts, Flight, TakenBack, Tracing
from .request_reader import RequestReader
from .status import ClientGoneError, RequestAbortedError, RequestTimeoutError, status_of
from .turns import Admission
from .watch import FlightWatch

DP_RANK_KEY = "x-dynamo-dp-rank"
CLOCK_SLACK_S = 0.05
"""A call that ends by its deadline may do so that much before we think it should."""


class Dispatcher:
    """Requests in flight between clients and workers.

    At most `max_attempts` workers are tried, as long as none has answered. `silence_s` is how
    long a worker may owe a message before it is given up; None: as long as its connection lives.
    `limits` are the other bounds, counted in `hits` when they are hit.
    `reader` reads requests, and is closed with the dispatcher.
    With an `admission`, requests wait for their turn before a worker is chosen.
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
        hits: LimitHits | None = None,
        reader: RequestReader | None = None,
        tracing: Tracing = NO_TRACE,
    ) -> None:
        limits = limits or RequestLimits()
        self._router = router
        self._monitor = monitor
        self._now = clock.now
        self._max_attempts = max_attempts
        self._observer = observer or NoObserver()
        self._admission = admission
        self._tracing = tracing
        self._flights: dict[str, Flight] = {}
        self._ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())
        estimate = PrefillEstimate()
        self.budget = RetryBudget(limits.retry_budget, limits.retry_budget_least)
        self.hits = hits or LimitHits()
        self.reader = reader or RequestReader(router.block_size, hits=self.hits)
        self.aborts = Aborts()
        self.plain = PlainCalls(monitor, clock, self._observer, max_attempts)
        self._ledger = AttemptLedger(router, monitor, clock, self.budget, estimate, self._load_fell)
        self._watch = FlightWatch(
            self._flights,
            router,
            monitor,
            clock,
            limits,
            silence_s=silence_s,
            budget=self.budget,
            estimate=estimate,
            hits=self.hits,
            admission=admission,
            on_load_fell=self._load_fell,
        )

    @property
    def in_flight(self) -> int:
        return len(self._flights) + self.plain.in_flight

    async def generate(
        self,
        request: bytes,
        respond: Respond,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        pinned: WorkerWithDpRank | None = None,
        urgency: Urgency = NORMAL,
        caller: Caller = ANONYMOUS,
    ) -> WorkerWithDpRank:
        """Have a worker answer a serialized GenerateRequest; return which one it was.

        Every message of the worker goes to `respond` as it is. Raises what `status_of` knows:
        InvalidRequestError, NoWorkersError, WorkerError, RequestTimeoutError, or the engine's own
        status. Cancel the task to give the request up; the worker is told.

        An id that the caller has in flight already is refused: an abort or a release under it could
        hit the wrong one of the two. A request without an id is given one, which the answers carry.
        """
        flight = None
        code, said = grpc.StatusCode.OK, ""
        trace = self._tracing.begin(metadata)
        try:
            facts = await self.reader.generate(request)
            flight = self._admit(request, facts, pinned, timeout, caller)
            own = own_id(flight.request_id, caller)
            if own != flight.request_id:
                respond = restore_id(respond, flight.request_id, own)
            flight.urgency, flight.trace = urgency, trace
            decision = await self._serve(flight, respond, metadata)
            return decision.worker
        except asyncio.CancelledError as error:
            code = grpc.StatusCode.CANCELLED
            if flight is None or not self._is_late(flight):
                raise
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            if flight.taken_back is None or cast("asyncio.Task[object]", flight.task).uncancel():
                raise  # by its client's deadline: nobody is there to be told
            raise RequestTimeoutError(flight.taken_back.text) from error
        except BaseException as error:
            code, said = status_of(error)
            if isinstance(error, ClientGoneError) and flight is not None and self._is_late(flight):
                code = grpc.StatusCode.DEADLINE_EXCEEDED
            raise
        finally:
            if flight is not None:
                del self._flights[flight.request_id]
                if code is not grpc.StatusCode.OK:
                    self._ledger.on_request_failed(flight, code, said)
            self._observer.on_end(flight, code)
            trace.ended(flight, code, said)

    async def abort(self, request_id: str, caller: Caller = ANONYMOUS) -> tuple[bool, str]:
        """Stop a request that the caller has in flight: (whether there was one, a word on it)."""
        flight = self._flights.get(generation_id(caller, request_id))
        if flight is None:
            return False, f"request {request_id} not found"
        flight.aborted = True
        if flight.client is None or flight.call is None:
            if self._admission is not None:
                error = RequestAbortedError(f"request {request_id} was aborted")
                self._admission.give_up(flight.request_id, error)
            return True, "not started yet"
        try:
            return await flight.client.abort(flight.request_id, timeout=ABORT_TIMEOUT_S)
        except grpc.RpcError as error:
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

    def start(self) -> None:
        """Begin to look after what is in flight."""
        self._watch.start()

    async def close(self) -> None:
        """Stop watching, and wait for aborts on their way."""
        await self._watch.close()
        await self.aborts.close()
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

    async def _serve(self, flight: Flight, respond: Respond, metadata: Metadata) -> Decision:
        """Try workers until one has answered."""
        failure: Exception | None = None
        while True:
            try:
                if self._admission is not None and failure is None:
                    ticket = partial(self._ticket, flight)
                    async with self._admission.turn(flight.pinned, ticket):
                        self._check_aborted(flight)  # after it was its turn, before it took it
                        decision = self._decide(flight)
                else:
                    self._check_aborted(flight)
                    decision = self._decide(flight)
            except NoWorkersError:
                if failure is None:
                    raise
                raise failure from None
            if failure is not None:
                self._observer.on_retry(flight, failure)
            failure = await self._attempt(flight, decision, respond, metadata)
            if failure is None:
                return decision
            self._check_aborted(flight)
            if flight.pinned is not None or not self._may_retry(flight):
                raise failure

    def _check_aborted(self, flight: Flight) -> None:
        if flight.aborted:
            raise RequestAbortedError(f"request {flight.request_id} was aborted")

    def _may_retry(self, flight: Flight) -> bool:
        """Whether to try another worker; takes from the budget if that makes work twice."""
        if flight.messages or not flight.attempts.may_go_on:
            return False
        if flight.attempts.repeats_work and not flight.retrying:
            if not self.budget.take(len(self._flights)):
                self.hits.hit("retry_budget")
                return False
            flight.retrying = True
        return True

    def _ticket(self, flight: Flight) -> Ticket:
        tokens, penalty_s = self._router.queue_terms(flight.facts.prompt)
        return Ticket(
            flight.request_id, flight.arrived, tokens, flight.urgency, flight.pinned, penalty_s
        )

    def _decide(self, flight: Flight) -> Decision:
        """Choose a worker and book the request there."""
        facts, began = flight.facts, self._now()
        excluded = flight.unfit
        if len(flight.attempts):
            excluded = excluded | flight.attempts.worker_ids
        else:
            flight.queue_s = began - flight.arrived
        decision = self._router.decide(
            facts.prompt,
            flight.request_id,
            excluded_workers=excluded,
            pinned_worker=flight.pinned,
            expected_output_tokens=facts.max_tokens or None,
        )
        flight.decision, flight.decision_s = decision, self._now() - began
        flight.trace.decided(flight)
        return decision

    async def _attempt(
        self, flight: Flight, decision: Decision, respond: Respond, metadata: Metadata
    ) -> Exception | None:
        """One worker's try. None: it answered. Else what to tell the client if nobody else does.

        The request is booked on entry, freed on return.
        """
        observer, now, ledger = self._observer, self._now, self._ledger
        reports = self._monitor.reports
        worker_id, request_id = decision.worker.worker_id, flight.request_id
        answers: AsyncGenerator[bytes, None] | None = None
        running = False  # on the worker, as far as we know
        client = flight.client = self._monitor.client(worker_id)
        call = None
        try:
            if client is None:
                said = "it has no address"
                return ledger.on_failed(flight, Origin.CONNECT, grpc.StatusCode.UNAVAILABLE, said)
            entry = self._router.registry.entry(worker_id)
            if entry is not None and entry.dp_size > 1:
                metadata = (*metadata, (DP_RANK_KEY, str(decision.worker.dp_rank)))
            ledger.on_sent(flight, decision)
            metadata = flight.trace.sent(flight, metadata)
            left = None if flight.deadline == math.inf else flight.deadline - flight.sent_at
            call = flight.call = client.generate(flight.body, timeout=left, metadata=metadata)
            running = True
            answers = cast("AsyncGenerator[bytes, None]", aiter(call))
            async for message in answers:
                at = now()
                observer.on_message(flight, message, at)
                if not flight.messages:
                    ledger.on_first_message(flight, message, at)
                flight.messages += 1
                flight.last_message, flight.last_message_at = message, at
                flight.since, flight.writing = at, True
                await respond(message)
                flight.since, flight.writing = now(), False
            running = False
            if not flight.messages:
                said = "it ended without an answer"
                return ledger.on_failed(flight, Origin.EMPTY, grpc.StatusCode.OK, said)
            reports.succeeded(worker_id, now() - flight.sent_at)
            return None
        except grpc.RpcError as error:
            running = False
            assert client is not None
            origin, details = client.origin_of(error), error.details() or ""
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._is_late(flight):
                origin = Origin.DEADLINE
            return ledger.on_failed(flight, origin, error.code(), details, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call is None or task is None or task.cancelling():
                ledger.on_cancelled(flight, worker_id, late=self._is_late(flight))
                raise  # by our client, by its deadline, by our own shutdown or by a time-out
            code, why = grpc.StatusCode.CANCELLED, flight.taken_back
            if why is None:  # its channel was closed
                return ledger.on_failed(flight, Origin.WORKER_DOWN, code, "it was removed")
            return ledger.on_failed(flight, why.origin, code, why.text)
        except BaseException:
            reports.given_up(worker_id)
            raise
        finally:
            ledger.on_ended(flight)
            flight.trace.attempt_ended(flight)
            if running and client is not None and call is not None:
                call.cancel()
                self.aborts.send(client, request_id)
                if answers is not None:  # a generator, which must not be left to the collector
                    await answers.aclose()

    def _is_late(self, flight: Flight) -> bool:
        """Whether its time is over: its client's deadline, or a limit of ours."""
        if flight.taken_back in (TakenBack.WRITE, TakenBack.TOTAL):
            return True
        return self._now() >= flight.deadline - CLOCK_SLACK_S

    def _load_fell(self) -> None:
        if self._admission is not None:
            self._admission.poll()
