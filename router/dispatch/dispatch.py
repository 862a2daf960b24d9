"""The dispatcher: takes a request to a worker and its answer back.

Invariants: a request is booked once per attempt and freed exactly once after it, whatever
happens. A message is passed on once and in order. Once one was passed on, the request stays
with its worker: nothing is silently repeated.
"""

import asyncio
import itertools
import math
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import cast

import grpc
from grpc import aio

from ...runtime.clock import Clock
from ...runtime.errors import InvalidRequestError, NoWorkersError, WorkerError
from ...runtime.identity import WorkerWithDpRank
from ...workers.health import HealthMonitor
from ...workers.trtllm_client import Metadata
from ..admission import NORMAL, Ticket, Urgency
from ..kv_router import KvRouter
from ..policy import Decision
from .generate_request import read_generate, with_request_id
from .observers import DispatchObserver, NoObserver
from .request import ABORT_TIMEOUT_S, Aborts, Flight
from .status import RequestAbortedError, status_of
from .turns import Admission

DP_RANK_KEY = "x-dynamo-dp-rank"
TOUCH_EVERY_S = 1.0
"""How often bookings in flight are renewed; far below any sensible expiry."""

# The worker is gone, or going: another one can do the work. CANCELLED is what a server that
# shuts down says; a call that we cancel ourselves does not end up here.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# The worker is alive but cannot do this: no reason to believe that another one could.
_FAULT = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)

Respond = Callable[[bytes], Awaitable[None]]


class Dispatcher:
    """Requests in flight between clients and workers.

    At most `max_attempts` workers are tried, as long as none has answered. `silence_s` is how
    long a worker may owe a message before it is given up; None: as long as its connection lives.
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
        observer: DispatchObserver | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._router = router
        self._monitor = monitor
        self._now = clock.now
        self._max_attempts = max_attempts
        self._silence = silence_s
        self._observer = observer or NoObserver()
        self._admission = admission
        self._flights: dict[str, Flight] = {}
        self._watch: asyncio.Task[None] | None = None
        self._ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())
        self.aborts = Aborts()

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    async def generate(
        self,
        request: bytes,
        respond: Respond,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        pinned: WorkerWithDpRank | None = None,
        urgency: Urgency = NORMAL,
    ) -> WorkerWithDpRank:
        """Have a worker answer a serialized GenerateRequest; return which one it was.

        Every message of the worker goes to `respond` as it is. Raises what `status_of` knows:
        InvalidRequestError, NoWorkersError, WorkerError, or the engine's own status. Cancel the
        task to give the request up; the worker is told.

        An id that is in flight already is refused: an abort or a release under it could hit the
        wrong one of the two. A request without an id is given one, which the answers carry.
        """
        flight = None
        code = grpc.StatusCode.OK
        try:
            flight = self._admit(request, pinned)
            flight.urgency = urgency
            decision = await self._serve(flight, respond, timeout, metadata)
            return decision.worker
        except BaseException as error:
            code = status_of(error)[0]
            raise
        finally:
            if flight is not None:
                del self._flights[flight.request_id]
            self._observer.on_end(flight, code)

    async def abort(self, request_id: str) -> tuple[bool, str]:
        """Stop a request in flight: (whether there was one, a word on it). Never raises."""
        flight = self._flights.get(request_id)
        if flight is None:
            return False, f"request {request_id} not found"
        flight.aborted = True
        if flight.client is None or flight.call is None:
            if self._admission is not None:
                error = RequestAbortedError(f"request {request_id} was aborted")
                self._admission.give_up(request_id, error)
            return True, "not started yet"
        try:
            return await flight.client.abort(request_id, timeout=ABORT_TIMEOUT_S)
        except grpc.RpcError as error:
            # The worker does not answer: at least let go of it.
            flight.call.cancel()
            return True, f"cancelled; its worker did not answer: {error.details()}"

    def start(self) -> None:
        """Begin to look after what is in flight."""
        self._watch = asyncio.create_task(self._look_after_flights(), name="flights")

    async def close(self) -> None:
        """Stop watching, and wait for aborts on their way."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self.aborts.close()

    def _admit(self, body: bytes, pinned: WorkerWithDpRank | None) -> Flight:
        facts = read_generate(body)
        refusal = self._monitor.facts.check_prompt(len(facts.token_ids), facts.largest_token)
        if refusal is not None:
            raise InvalidRequestError(refusal)
        request_id = facts.request_id
        if not request_id:
            request_id = next(self._ids)
            body = with_request_id(body, request_id)
        elif request_id in self._flights:
            raise InvalidRequestError(f"request id {request_id!r} is in use", field="request_id")
        flight = Flight(request_id, body, facts, self._now(), pinned)
        self._flights[request_id] = flight
        return flight

    async def _serve(
        self, flight: Flight, respond: Respond, timeout: float | None, metadata: Metadata
    ) -> Decision:
        """Try workers until one has answered."""
        failure: Exception | None = None
        failed: set[int] = set()
        for _ in range(self._max_attempts):
            try:
                if self._admission is not None and failure is None:
                    ticket = partial(self._ticket, flight)
                    async with self._admission.turn(flight.pinned, ticket):
                        if flight.aborted:  # after it was its turn, before it took it
                            raise RequestAbortedError(f"request {flight.request_id} was aborted")
                        decision = self._decide(flight, failed)
                else:
                    decision = self._decide(flight, failed)
            except NoWorkersError:
                if failure is None:
                    raise
                break
            if failure is not None:
                self._observer.on_retry(flight, failure)
            left = None if timeout is None else flight.arrived + timeout - self._now()
            failure = await self._attempt(flight, decision, respond, left, metadata)
            if failure is None:
                return decision
            if flight.messages or flight.aborted or flight.pinned is not None:
                break
            failed.add(decision.worker.worker_id)
        assert failure is not None
        raise failure

    def _ticket(self, flight: Flight) -> Ticket:
        facts, urgency = flight.facts, flight.urgency
        tokens, penalty_s = self._router.queue_terms(
            facts.token_ids, lora_name=facts.lora_name, cache_namespace=facts.cache_namespace
        )
        return Ticket(flight.request_id, flight.arrived, tokens, urgency, flight.pinned, penalty_s)

    def _decide(self, flight: Flight, failed: set[int]) -> Decision:
        """Choose a worker and book the request there."""
        facts, began = flight.facts, self._now()
        decision = self._router.decide(
            facts.token_ids,
            flight.request_id,
            lora_name=facts.lora_name,
            cache_namespace=facts.cache_namespace,
            excluded_workers=failed,
            pinned_worker=flight.pinned,
            expected_output_tokens=facts.max_tokens or None,
        )
        flight.decision, flight.decision_s = decision, self._now() - began
        return decision

    async def _attempt(
        self,
        flight: Flight,
        decision: Decision,
        respond: Respond,
        timeout: float | None,
        metadata: Metadata,
    ) -> Exception | None:
        """One worker's try. None: it answered. An error: another worker may be tried.

        Raises what no other worker could mend. The request is booked on entry, freed on return.
        """
        observer, router, now = self._observer, self._router, self._now
        worker_id, request_id = decision.worker.worker_id, flight.request_id
        call: aio.UnaryStreamCall[bytes, bytes] | None = None
        answers: AsyncGenerator[bytes, None] | None = None
        running = False  # on the worker, as far as we know
        try:
            client = flight.client = self._monitor.client(worker_id)
            if client is None:
                return WorkerError(f"worker {worker_id} has no address", worker_id=worker_id)
            entry = router.registry.entry(worker_id)
            if entry is not None and entry.dp_size > 1:
                metadata = (*metadata, (DP_RANK_KEY, str(decision.worker.dp_rank)))
            call = flight.call = client.generate(flight.body, timeout=timeout, metadata=metadata)
            running, flight.silent, flight.waiting_since = True, False, now()
            answers = cast("AsyncGenerator[bytes, None]", aiter(call))
            async for message in answers:
                at = now()
                observer.on_message(flight, message, at)
                if not flight.messages and flight.facts.streaming:  # else the whole answer
                    router.mark_prefill_complete(request_id)
                    self._load_fell()
                flight.messages += 1
                flight.last_message, flight.last_message_at = message, at
                flight.waiting_since = math.inf
                await respond(message)
                flight.waiting_since = now()
            running = False
            self._monitor.report_ok(worker_id)
            return None
        except grpc.RpcError as error:
            running = False
            return self._judge(flight, worker_id, error.code(), error.details() or "", error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if call is None or task is None or task.cancelling():
                raise  # by our client, or by our own shutdown
            running = flight.silent
            details = "it was silent for too long" if flight.silent else "it cancelled the request"
            return self._judge(flight, worker_id, grpc.StatusCode.CANCELLED, details, error)
        finally:
            # A message is a token or a few: it is their pace that a policy learns.
            router.free(request_id, output_tokens=flight.messages or None)
            self._load_fell()
            flight.waiting_since = math.inf
            if running and client is not None and call is not None:
                call.cancel()
                if answers is not None:  # a generator, which must not be left to the collector
                    await answers.aclose()
                self.aborts.send(client, request_id)

    def _load_fell(self) -> None:
        if self._admission is not None:
            self._admission.poll()

    def _judge(
        self,
        flight: Flight,
        worker_id: int,
        code: grpc.StatusCode,
        details: str,
        error: BaseException,
    ) -> Exception:
        """What a worker's failure means: returned if another worker may help, raised if not."""
        if flight.aborted and code is grpc.StatusCode.CANCELLED:
            raise RequestAbortedError(f"request {flight.request_id} was aborted") from None
        if flight.silent:
            self._monitor.report_failed(worker_id)
        elif code in _LOST:
            self._monitor.report_lost(worker_id)
        elif code in _FAULT:
            self._monitor.report_failed(worker_id)
        if code not in _LOST:
            retriable = code is grpc.StatusCode.RESOURCE_EXHAUSTED and not flight.messages
            if retriable and isinstance(error, Exception):
                return error
            raise error
        address = flight.client.address if flight.client is not None else "?"
        when = f"in mid-stream after {flight.messages} messages"
        return WorkerError(
            f"worker {worker_id} at {address} lost "
            f"{when if flight.messages else 'before it answered'}: {details}",
            worker_id=worker_id,
        )

    async def _look_after_flights(self) -> None:
        """Cancel what is silent for too long, and keep the bookings of the rest from expiring."""
        limit = math.inf if self._silence is None else self._silence
        touched = self._now()
        while True:
            await asyncio.sleep(min(TOUCH_EVERY_S, limit / 4))
            now = self._now()
            for flight in self._flights.values():
                if flight.waiting_since < now - limit and flight.call is not None:
                    flight.silent, flight.waiting_since = True, math.inf
                    flight.call.cancel()
            if now - touched >= TOUCH_EVERY_S:
                touched = now
                self._load_fell()  # workers come and go, and bookings of others expire
                for request_id in self._flights:
                    self._router.touch(request_id)
